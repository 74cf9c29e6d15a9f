"""Scenarios from standard input and from folders; help, version and lists."""

import re
import subprocess
import unittest

from tool import BINARY, TIME_LIMIT_S, TINY, TINY_CASE, Outcome, ToolTest, strict_json


class Arguments(ToolTest):
    def piped(self, text, *arguments):
        done = subprocess.run([BINARY, *arguments], cwd=self.dir, env=self.environment(), input=text,
                              capture_output=True, text=True, timeout=TIME_LIMIT_S)  # fmt: skip
        return Outcome(done)

    def test_a_scenario_comes_from_standard_input(self):
        outcome = self.piped(TINY, "run", "-", "--no-timing", "--json", "r.json")
        self.assertEqual((outcome.code, outcome.err), (0, ""))
        results = strict_json((self.dir / "r.json").read_text())["results"]
        self.assertIn(f"tiny/{TINY_CASE}/FLASH_ATTN", [result["id"] for result in results])
        self.assertEqual(self.piped(TINY, "validate", "-").out, "-: ok (1 case)\n")

    def test_errors_of_standard_input_have_lines_and_paths_are_of_the_working_directory(self):
        error = self.piped(TINY.replace("batch: ", "batsh: "), "run", "-").err
        self.assertIn("<stdin>:4: unknown key 'batsh'", error)
        self.write("base.yaml", TINY)
        outcome = self.piped("schema: 1\nname: child\nextends: base.yaml\n", "validate", "-")
        self.assertEqual((outcome.code, outcome.err), (0, ""))
        self.assertIn("found it twice", self.piped(TINY, "run", "-", "-").err)

    def test_a_folder_stands_for_its_scenarios_in_order(self):
        self.write("suite/b.yaml", TINY.replace("name: tiny", "name: second"))
        self.write("suite/a.yml", TINY.replace("name: tiny", "name: first"))
        self.write("suite/results.json", "{}")
        self.write("suite/deeper/c.yaml", TINY)
        results = self.results("suite", "--no-timing", "--backend", "FLASH_ATTN")
        self.assertEqual(list(results), [f"first/{TINY_CASE}/FLASH_ATTN",
                                         f"second/{TINY_CASE}/FLASH_ATTN"])  # fmt: skip
        lines = self.expect(0, "validate", "suite").out
        self.assertEqual(lines, "suite/a.yml: ok (1 case)\nsuite/b.yaml: ok (1 case)\n")
        (self.dir / "empty").mkdir()
        self.assertIn("empty: expected a folder with scenarios, found no .yaml file in it",
                      self.expect(2, "run", "empty").err)  # fmt: skip

    def test_a_shipped_name_wins_over_a_folder_of_that_name(self):
        self.write("quickstart/x.yaml", TINY)
        self.assertIn("quickstart: ok (3 cases)", self.expect(0, "validate", "quickstart").out)

    def test_help_of_a_command_is_its_help_option(self):
        self.assertEqual(self.expect(0, "help", "run").out, self.expect(0, "run", "--help").out)
        self.assertEqual(self.expect(0, "help").out, self.expect(0, "--help").out)
        self.assertIn("did you mean 'gate'?", self.expect(2, "help", "gats").err)
        self.assertIn("expected at most one command, found 2",
                      self.expect(2, "help", "run", "gate").err)  # fmt: skip
        self.assertEqual(self.expect(0, "-V").out, self.expect(0, "--version").out)

    def test_help_fits_the_width_and_keeps_its_words(self):
        commands = re.findall(r"(?m)^  ([a-z]+) {2,}", self.expect(0, "--help").out)
        self.assertIn("compose", commands)
        for command in ([], *([name] for name in commands)):
            wide, narrow = (self.expect(0, *command, "--help", COLUMNS=width).out.split("\nExample:")
                            for width in ("400", "80"))  # fmt: skip
            # Examples are lines to copy.
            self.assertEqual([x for x in narrow[0].splitlines() if len(x) > 80], [], command)
            self.assertEqual(narrow[0].split(), wide[0].split())

    def test_small_scenarios_do_not_bury_the_others(self):
        text = self.expect(0, "list", "scenarios").out
        self.assertIn("models/llama-3.1-8b", text)
        self.assertNotIn("smoke-prefill", text)
        self.assertIn("attnbench list scenarios --all", text)
        self.assertIn("smoke-prefill", self.expect(0, "list", "scenarios", "--all").out)

    def test_lists_are_there_for_scripts(self):
        names = self.expect(0, "list", "scenarios", "--names").out.splitlines()
        self.assertIn("smoke-prefill", names)
        self.assertIn("models/llama-3.1-8b", names)
        listed = strict_json(self.expect(0, "list", "--json").out)
        self.assertEqual(set(listed), {"backends", "scenarios", "metrics"})
        self.assertEqual([entry["name"] for entry in listed["scenarios"]], names)
        groups = {entry["name"]: entry["group"] for entry in listed["scenarios"]}
        self.assertEqual(groups["decode"], "benchmark")
        self.assertEqual(groups["models/llama-3.1-8b"], "model")
        self.assertEqual(groups["smoke-prefill"], "check")
        units = {entry["name"]: entry["unit"] for entry in listed["metrics"]}
        self.assertEqual(units["median_us"], "us")
        self.assertEqual(set(strict_json(self.expect(0, "list", "backends", "--json").out)),
                         {"backends"})  # fmt: skip


if __name__ == "__main__":
    unittest.main()
