"""attnbench init: what it writes builds and passes as its last lines say."""

import os
import shlex
import shutil
import subprocess
import unittest
from pathlib import Path

from pythons import python_with_torch
from tool import BINARY, TIME_LIMIT_S, ToolTest, skip_without


class Init(ToolTest):
    def shell(self, line, **changes):
        """Runs a line as a user would, with attnbench on the path."""
        path = f"{Path(BINARY).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-c", line], cwd=self.dir, env=self.environment(PATH=path, **changes), text=True,
            capture_output=True, timeout=TIME_LIMIT_S)  # fmt: skip

    def next_lines(self, out):
        """The commands behind "next:"."""
        return out[out.index("next: ") + len("next: "):].strip()

    def test_a_plugin_builds_and_passes_at_once(self):
        if shutil.which("cmake") is None:
            skip_without("cmake")
        out = self.expect(0, "init", "plugin", "my kernel").out
        self.assertIn("wrote my kernel/my_attention.cpp", out)
        lines = [line.strip() for line in self.next_lines(out).splitlines()]
        self.assertEqual(len(lines), 2, out)
        built = self.shell(lines[0], CXXFLAGS="-Wall -Wextra -Werror")
        self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
        run = self.shell(lines[1] + " --no-timing --backend MY_ATTENTION")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("3 passed", run.stdout)

    def test_a_python_backend_passes_at_once(self):
        python = python_with_torch()
        out = self.expect(0, "init", "python").out
        line = self.next_lines(out) + " --no-timing --device cpu"
        run = self.shell(line, ATTNBENCH_PYTHON=str(python))
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("3 passed", run.stdout)

    def test_a_python_backend_is_valid_python_and_names_itself(self):
        out = self.expect(0, "init", "python", "adapter").out
        source = (self.dir / "adapter" / "my_attention.py").read_text()
        compile(source, "my_attention.py", "exec")
        words = shlex.split(self.next_lines(out))
        self.assertIn("python:my_attention:MyAttention", words)
        self.assertIn("class MyAttention:", source)

    def test_a_scenario_is_valid_and_may_go_to_stdout(self):
        self.expect(0, "init", "scenario", "mine.yaml")
        self.assertEqual(self.expect(0, "validate", "mine.yaml").out, "mine.yaml: ok (3 cases)\n")
        self.assertEqual(
            self.expect(0, "init", "scenario", "-").out, (self.dir / "mine.yaml").read_text())  # fmt: skip

    def test_a_file_name_needs_no_word_before_it(self):
        text = self.expect(0, "init", "-").out
        self.assertIn("wrote mine.yaml", self.expect(0, "init", "mine.yaml").out)
        self.assertEqual((self.dir / "mine.yaml").read_text(), text)
        for words, found in ((("scenari",), "'scenari'; did you mean 'scenario'?"),
                             (("a.yaml", "b.yaml"), "'a.yaml'; see ")):  # fmt: skip
            error = self.expect(2, "init", *words).err
            self.assertIn("KIND: expected one of scenario, plugin, python, or the file of a "
                          f"scenario, found {found}", error)  # fmt: skip

    def test_nothing_is_replaced(self):
        self.write("mine/case.yaml", "kept")
        error = self.expect(2, "init", "plugin", "mine").err
        self.assertIn("mine/case.yaml: expected no file, found one; nothing was written", error)
        self.assertEqual(self.files(), ["mine", "mine/case.yaml"])
        self.assertIn("init scenario", self.expect(2, "init", "plugin", "p", "--hf", "x").err)


if __name__ == "__main__":
    unittest.main()
