"""The packages, built as users build them and tried where nothing else of this project is.

Takes minutes, because both are built from source without -march=native: ./scripts/test -L package.
ATTNBENCH_DEB and ATTNBENCH_WHEEL name packages that are there already, which are then only tried.
"""

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD_LIMIT_S = 3000
RUN_LIMIT_S = 300
SCENARIO = """\
schema: 1
name: tiny
attention: {type: decoder, num_heads: 4, num_kv_heads: 2, head_size: 64, dtype: bfloat16}
batch: q32_4q1s100
"""


def run(*words, code=0, timeout=RUN_LIMIT_S, **options):
    """Runs a command and returns its standard output; its exit code has to be `code`."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                          timeout=timeout, **options)  # fmt: skip
    if done.returncode != code:
        raise AssertionError(f"{words}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def environment(**changes):
    """Without what would lead the program to the source tree or to another interpreter."""
    left_out = ("ATTNBENCH_BIN", "ATTNBENCH_PYTHON", "PYTHONPATH", "VIRTUAL_ENV")
    return {**{k: v for k, v in os.environ.items() if k not in left_out}, **changes}


class PackageTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = Path(scratch.name)

    def newest(self, pattern):
        found = sorted(glob.glob(str(pattern)), key=os.path.getmtime)
        self.assertTrue(found, f"no file {pattern}")
        return found[-1]

    def check_results(self, text):
        results = json.loads(text)["results"]
        self.assertEqual({result["status"] for result in results}, {"passed"})
        self.assertIn("FLASH_ATTN", [result["backend"] for result in results])


class Wheel(PackageTest):
    """In a virtual environment of its own, away from the source tree."""

    def wheel(self):
        if "ATTNBENCH_WHEEL" in os.environ:
            return os.environ["ATTNBENCH_WHEEL"]
        run(sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "-w", self.dir,
            timeout=BUILD_LIMIT_S, cwd=self.dir)  # fmt: skip
        return self.newest(self.dir / "attnbench-*.whl")

    def test_the_wheel_brings_program_scenarios_header_and_adapters(self):
        wheel = Path(self.wheel())
        self.assertRegex(wheel.name, r"^attnbench-[0-9.]+-py3-none-.*\.whl$")
        venv.create(self.dir / "venv", with_pip=True, system_site_packages=False)
        python = self.dir / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--no-index", "--no-deps", wheel)
        empty = self.dir / "empty"
        empty.mkdir()
        (empty / "tiny.yaml").write_text(SCENARIO)

        def attnbench(*words, **options):
            return run(*words, cwd=empty, env=environment(PATH="/usr/bin:/bin"), **options)

        command = self.dir / "venv" / "bin" / "attnbench"
        self.assertEqual(attnbench(python, "-m", "attnbench", "-V"), attnbench(command, "-V"))
        self.assertIn(wheel.name.split("-")[1], attnbench(command, "-V"))
        self.check_results(attnbench(command, "run", "tiny.yaml", "--no-timing", "--device", "cpu",
                                     "--json", "-"))  # fmt: skip
        self.assertIn("models/llama-3.1-8b", attnbench(command, "list", "scenarios", "--names"))
        self.assertIn("(1 case)", attnbench(command, "validate", "models/llama-3.1-8b"))
        attnbench(command, "nonsense", code=2)
        attnbench(python, "-m", "attnbench", "run", "no-such-file", code=2)
        package = Path(attnbench(python, "-c", "import attnbench; print(attnbench.__file__)").strip()).parent
        self.assertTrue((package / "include" / "attnbench_backend.h").is_file())
        self.assertTrue((package / "adapters" / "torch_sdpa.py").is_file())
        found = attnbench(python, "-c", "import attnbench; print(attnbench.find_program())").strip()
        self.assertEqual(Path(found), package / "bin" / "attnbench")
        # Nothing but the C library, so that any distribution with as new a one will do.
        needed = run("ldd", found)
        for library in ("libstdc++", "libfmt", "libyaml"):
            self.assertNotIn(library, needed)


class Deb(PackageTest):
    """Unpacked below a root of its own, in which the program runs by chroot where this is allowed."""

    def deb(self):
        if "ATTNBENCH_DEB" in os.environ:
            return os.environ["ATTNBENCH_DEB"]
        run("cmake", "--preset", "package-cpu", cwd=ROOT)
        run("cmake", "--build", "--preset", "package-cpu", cwd=ROOT, timeout=BUILD_LIMIT_S)
        run("cpack", "--config", ROOT / "build-package-cpu" / "CPackConfig.cmake", "-B", self.dir)
        return self.newest(self.dir / "*.deb")

    def fill_root(self, deb):
        """The package, a shell, and the libraries that the package says it needs: nothing else."""
        root = self.dir / "root"
        run("dpkg-deb", "-x", deb, root)
        libraries = [word for line in run("ldd", root / "usr/bin/attnbench").splitlines()
                     for word in line.split() if word.startswith("/")]  # fmt: skip
        for library in libraries:
            target = root / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
        for folder in ("tmp", "proc", "work"):
            (root / folder).mkdir()
        (root / "work" / "tiny.yaml").write_text(SCENARIO)
        return root

    def test_the_package_runs_where_nothing_else_is(self):
        deb = self.deb()
        fields = run("dpkg-deb", "-f", deb)
        self.assertRegex(fields, r"(?m)^Package: attnbench(-cuda)?$")
        self.assertRegex(fields, r"(?m)^Maintainer: .* <.*@.*>$")
        self.assertRegex(fields, r"(?m)^Depends: .*libc6")
        files = run("dpkg-deb", "-c", deb)
        for path in ("usr/bin/attnbench", "usr/include/attnbench_backend.h",
                     "usr/share/attnbench/scenarios/decode.yaml",
                     "usr/share/attnbench/python/attnbench/adapter.py",
                     "usr/share/man/man1/attnbench.1",
                     "usr/share/bash-completion/completions/attnbench",
                     "usr/share/zsh/vendor-completions/_attnbench",
                     "usr/share/fish/vendor_completions.d/attnbench.fish"):  # fmt: skip
            self.assertIn(f" ./{path}", files)
        self.assertIn("/copyright\n", files)
        self.assertIn("docs/plugins.md\n", files)
        root = self.fill_root(deb)
        self.assertIn('complete -F _attnbench attnbench',
                      (root / "usr/share/bash-completion/completions/attnbench").read_text())  # fmt: skip
        if os.geteuid() != 0:
            self.skipTest("chroot needs root")

        def inside(*words):
            return run("unshare", "-m", "sh", "-c",
                       f'mount -t proc proc {root}/proc && exec chroot {root} /usr/bin/attnbench "$@"',
                       "-", *words)  # fmt: skip

        self.check_results(inside("run", "/work/tiny.yaml", "--no-timing", "--device", "cpu", "--json", "-"))
        self.assertIn("quickstart", inside("list", "scenarios", "--names"))
        self.assertIn("(3 cases)", inside("validate", "quickstart"))


if __name__ == "__main__":
    unittest.main()
