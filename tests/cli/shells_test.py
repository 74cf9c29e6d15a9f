"""Completion scripts and the manual page, in the shells and formatters that are there."""

import os
import shutil
import subprocess
import unittest
from pathlib import Path

from tool import BINARY, TIME_LIMIT_S, ToolTest

COMMANDS = ("run", "support", "explain", "gate", "report", "diff", "history", "init", "list", "help")


class Shells(ToolTest):
    def script(self, *arguments, name):
        return self.write(name, self.expect(0, *arguments).out)

    def run_words(self, *words, **options):
        path = f"{Path(BINARY).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(words, cwd=self.dir, env=self.environment(PATH=path), text=True,
                              capture_output=True, timeout=TIME_LIMIT_S, **options)  # fmt: skip
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        return done.stdout

    def bash(self, *words):
        """What bash offers for the last word."""
        script = self.script("completion", "bash", name="c.bash")
        line = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _attnbench; ' \
               'printf "%s\\n" "${COMPREPLY[@]}"'  # fmt: skip
        out = self.run_words("bash", "--norc", "-c", line, "-", script, "attnbench", *words)
        return [word for word in out.splitlines() if word]

    def test_bash_offers_commands_options_choices_names_and_files(self):
        for command in COMMANDS:
            self.assertIn(command, self.bash(""))
        self.assertEqual(self.bash("expl"), ["explain"])
        self.assertIn("run", self.bash("help", ""))
        options = self.bash("run", "--no-")
        self.assertIn("--no-timing", options)
        self.assertNotIn("--json", options)
        self.assertEqual(self.bash("run", "--device", "c"), ["cpu", "cuda"])
        self.assertEqual(self.bash("run", "--seed", ""), [])
        self.assertEqual(self.bash("run", "--backend", "TRITON"), ["TRITON_ATTN"])
        self.write("a file.json", "{}")
        self.write("mine.yaml", "")
        self.assertEqual(self.bash("run", "--json", "a"), ["a file.json"])
        self.assertIn("quickstart", self.bash("run", "quick"))
        self.assertEqual(self.bash("run", "mine"), ["mine.yaml"])
        self.assertEqual(self.bash("list", ""), ["backends", "scenarios", "metrics"])

    def test_zsh_reads_its_script(self):
        script = self.script("completion", "zsh", name="_attnbench")
        text = Path(script).read_text()
        self.assertTrue(text.startswith("#compdef attnbench\n"))
        for command in COMMANDS:
            self.assertIn(f"'{command}:", text)
        if shutil.which("zsh") is None:
            self.skipTest("no zsh")
        self.run_words("zsh", "-f", "-n", script)
        defined = "autoload -Uz compinit && compinit -u -D; source ./_attnbench; " \
                  "echo ${_comps[attnbench]}"  # fmt: skip
        self.assertEqual(self.run_words("zsh", "-f", "-c", defined).strip(), "_attnbench")

    def test_fish_completes_by_its_script(self):
        script = self.script("completion", "fish", name="attnbench.fish")
        if shutil.which("fish") is None:
            self.skipTest("no fish")

        def offered(line):
            out = self.run_words("fish", "--no-config", "-c",
                                 f"source {script}; complete -C '{line}'")  # fmt: skip
            return [answer.split("\t")[0] for answer in out.splitlines()]

        self.assertIn("explain", offered("attnbench expl"))
        self.assertIn("--no-timing", offered("attnbench run --no-t"))
        self.assertEqual(sorted(offered("attnbench run --device c")), ["cpu", "cuda"])
        self.assertEqual(offered("attnbench run --backend TRITON"), ["TRITON_ATTN"])
        self.assertIn("quickstart", offered("attnbench run quick"))

    def test_the_manual_page_has_every_command_and_no_fault(self):
        script = self.script("man", name="attnbench.1")
        page = Path(script).read_text()
        for command in COMMANDS[:-1]:
            self.assertIn(f"\n.SS {command}\n", page)
        self.assertIn("\\fB\\-\\-no\\-timing\\fR", page)
        self.assertNotIn("\n.\n", page)
        if shutil.which("groff") is None:
            self.skipTest("no groff")
        self.assertEqual(self.run_words("groff", "-man", "-ww", "-z", script), "")
        shown = self.run_words("groff", "-man", "-Tascii", "-P-cbou", script)
        self.assertIn("--save-tensors DIR", shown)
        self.assertIn("EXIT STATUS", shown)

    def test_an_unknown_shell_is_refused_with_those_that_there_are(self):
        self.assertIn("one of bash, zsh, fish, found 'tcsh'", self.expect(2, "completion", "tcsh").err)


if __name__ == "__main__":
    unittest.main()
