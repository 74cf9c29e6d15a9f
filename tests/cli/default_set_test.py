"""What `./scripts/test` runs, and what only `--all` does: together everything, and the first no less than
it did at 262e7ac, before there was a label for slow cases."""

import json
import re
import subprocess
import unittest
from collections import defaultdict
from pathlib import Path

from must_pass_testing import default_ids, must_pass_ids, thorough_ids, thorough_patterns
from run_chosen import chosen_of
from tool import BINARY, ROOT, TIME_LIMIT_S
import mutation_test

BUILD = Path(BINARY).resolve().parent
LEAST_SUITES, LEAST_PAIRS = 125, 1460
LEAST_DOCTEST_CASES = 1294
LEAST_MUTANTS = 130
# Run by their own labels, also in a CI.
OWN_LABELS = {"fuzz", "compile-all", "limits", "package", "slurm"}


def excluded_labels(option):
    """Labels that the script leaves out, by default or with an option."""
    (regex,) = re.findall(rf"(?m)^ *{option}select=\(--label-exclude '\^\(([a-z|-]+)\)\$'\)",
                          (ROOT / "scripts" / "test").read_text(encoding="utf-8"))  # fmt: skip
    return set(regex.split("|"))


def all_tests():
    """(name, command, labels) of everything that ctest knows."""
    done = subprocess.run(["ctest", "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True,
                          text=True, check=True, timeout=TIME_LIMIT_S)  # fmt: skip
    found = []
    for test in json.loads(done.stdout)["tests"]:
        properties = {one["name"]: one["value"] for one in test.get("properties", ())}
        found.append((test["name"], test.get("command", [""]), set(properties.get("LABELS", ()))))
    return found


class Labels(unittest.TestCase):
    def test_all_leaves_out_what_has_a_label_of_its_own_and_the_default_also_what_is_thorough(self):
        self.assertEqual(excluded_labels(r"--all\) "), OWN_LABELS)
        self.assertEqual(excluded_labels(""), OWN_LABELS | {"thorough"})
        self.assertIn('scripts/test" --all "$@"', (ROOT / ".ci" / "run").read_text(encoding="utf-8"))


class Suites(unittest.TestCase):
    def test_every_pair_is_run_by_default_or_is_thorough(self):
        self.assertEqual(sorted(default_ids() + thorough_ids()), sorted(must_pass_ids()))

    def test_every_pattern_of_thorough_pairs_has_some(self):
        for pattern in thorough_patterns():
            self.assertTrue(any(pattern.fullmatch(id) for id in must_pass_ids()), pattern.pattern)

    def test_of_every_small_suite_the_default_runs_some_pairs(self):
        smoke = {id.split("/")[0] for id in must_pass_ids() if id.startswith("smoke")}
        self.assertEqual(smoke - {id.split("/")[0] for id in default_ids()}, set())

    def test_the_default_has_as_many_suites_and_pairs_as_before(self):
        self.assertGreaterEqual(len(default_ids()), LEAST_PAIRS)
        self.assertGreaterEqual(len({id.split("/")[0] for id in default_ids()}), LEAST_SUITES)


class Mutants(unittest.TestCase):
    def test_every_mutant_is_planted_by_default_or_thorough_and_as_many_by_default_as_before(self):
        quick, rest, every = map(mutation_test.wanted_mutants, ("quick", "thorough", "all"))
        self.assertGreaterEqual(len(quick), LEAST_MUTANTS)
        names = [mutant["name"] for mutant in quick + rest]
        self.assertEqual(sorted(names), sorted(mutant["name"] for mutant in every))
        # Of what each list is about there are some by default.
        self.assertEqual({is_of_gate for is_of_gate in map(mutation_test.is_of_gate, quick)}, {True, False})


@unittest.skipUnless((BUILD / "CTestTestfile.cmake").exists(), "the binary is not in a build folder")
class MarkedTests(unittest.TestCase):
    """Tests of Python files that are marked as thorough."""

    def test_a_file_with_marked_tests_has_others_and_both_are_tests_of_ctest(self):
        commands = {name: (command, labels) for name, command, labels in all_tests()}
        for file in sorted((ROOT / "tests" / "cli").glob("*_test.py")):
            if not re.search(r"(?m)^ *@thorough$", file.read_text(encoding="utf-8")):
                continue
            name = "cli." + file.stem.removesuffix("_test")
            for which, test in (("quick", name), ("thorough", name + ".thorough")):
                command, labels = commands[test]
                self.assertEqual(command[-2:], [which, str(file)])
                self.assertEqual("thorough" in labels, which == "thorough", test)
                self.assertTrue(chosen_of(file, which), test)


@unittest.skipUnless((BUILD / "CTestTestfile.cmake").exists(), "the binary is not in a build folder")
class DoctestCases(unittest.TestCase):
    def listed(self, command):
        done = subprocess.run([*command, "--list-test-cases", "--no-intro", "--no-version"], text=True,
                              capture_output=True, check=True, timeout=TIME_LIMIT_S)  # fmt: skip
        return {line for line in done.stdout.splitlines() if not line.startswith(("[doctest]", "=="))}

    def test_every_case_is_in_a_test_and_the_default_has_as_many_as_before(self):
        all_runs, default_runs = defaultdict(set), defaultdict(set)
        for _, command, labels in all_tests():
            program = Path(command[0])
            if not program.name.startswith("test_") or not program.exists() or labels & OWN_LABELS:
                continue
            cases = self.listed(command)
            all_runs[program] |= cases
            # Those that need a GPU are cases that say so where there is none.
            if "thorough" not in labels:
                default_runs[program] |= cases
        self.assertTrue(all_runs)
        for program, cases in all_runs.items():
            self.assertEqual(self.listed([program]) - cases, set(), program)
        if len(all_runs) >= 20:  # everything was built
            count = sum(map(len, default_runs.values()))
            self.assertGreaterEqual(count, LEAST_DOCTEST_CASES)


if __name__ == "__main__":
    unittest.main()
