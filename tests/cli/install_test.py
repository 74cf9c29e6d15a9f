"""cmake --install: what is installed works without the source tree."""

import subprocess
import unittest
from pathlib import Path

from tool import BINARY, TIME_LIMIT_S, ToolTest

BUILD = Path(BINARY).resolve().parent


@unittest.skipUnless(
    (BUILD / "cmake_install.cmake").exists(), "the binary is not in a build folder"
)
class Install(ToolTest):
    def test_the_installed_program_finds_its_scenarios(self):
        subprocess.run(["cmake", "--install", BUILD, "--prefix", self.dir / "usr"],
                       check=True, capture_output=True, timeout=TIME_LIMIT_S)  # fmt: skip
        program = self.dir / "usr" / "bin" / "attnbench"
        run = subprocess.run(
            [program, "run", "smoke", "--backend", "FLASH_ATTN", "--no-timing", "--json", "r.json"],
            cwd=self.dir, capture_output=True, text=True, timeout=TIME_LIMIT_S,
        )  # fmt: skip
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        # Not those of the source tree, which the build knows too.
        share = self.dir / "usr" / "share" / "attnbench"
        text = (share / "scenarios" / "smoke.yaml").read_text()
        (share / "scenarios" / "smoke.yaml").write_text(text.replace("name: smoke", "name: other"))
        listed = subprocess.run([program, "explain", "smoke"], cwd=self.dir, capture_output=True,
                                text=True, timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertIn("other", listed.stdout)
        notice = self.dir / "usr" / "share" / "doc" / "attnbench" / "copyright-d3"
        self.assertIn("Redistribution and use", notice.read_text())


if __name__ == "__main__":
    unittest.main()
