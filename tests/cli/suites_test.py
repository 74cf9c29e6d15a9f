"""The shipped suites: what must pass does, and a second opinion agrees with what was saved."""

import re
import subprocess
import sys
import unittest

from tool import ROOT, SCENARIOS, ToolTest, strict_json
import gpu_suites
from unsupported_reasons import place_of

MIN_CHECKED_ROWS = 64
CPU_LIST, CUDA_LIST = gpu_suites.MUST_PASS


def must_pass_ids():
    return gpu_suites.must_pass_ids([CPU_LIST])


class Suites(ToolTest):
    def check_must_pass(self, suites, *arguments):
        """Runs the suites; `arguments` may filter. Each listed pair must have passed."""
        results = self.results(*(SCENARIOS / f"{suite}.yaml" for suite in suites),
                               "--no-timing", *arguments)  # fmt: skip
        wanted = [id for id in must_pass_ids() if id.split("/")[0] in suites]
        self.assertTrue(wanted)
        problems = []
        for id in wanted:
            result = results.get(id)
            if result is None:
                problems.append(f"{id}: not among the results")
            elif result["status"] != "passed":
                problems.append(f"{id}: {result['status']} {result['reasons']}")
            elif result["error"]["checked_rows"] < MIN_CHECKED_ROWS:
                problems.append(f"{id}: checked on {result['error']['checked_rows']} rows")
        self.assertEqual(problems, [])

    def test_smoke_suites_pass_and_a_second_opinion_agrees(self):
        suites = sorted({id.split("/")[0] for id in must_pass_ids() if id.startswith("smoke")})
        for suite in suites:
            self.check_must_pass([suite], "--save-tensors", "tensors")
        opinion = subprocess.run(
            [sys.executable, ROOT / "scripts" / "second_opinion.py", self.dir / "tensors"],
            capture_output=True,
            text=True,
        )
        complaints = [x for x in opinion.stdout.splitlines() if not x.startswith("passed ")]
        self.assertEqual(opinion.returncode, 0, "\n".join(complaints) + opinion.stderr)
        counted = int(re.search(r"(\d+) passed, 0 failed", opinion.stdout)[1])
        smoke_ids = [id for id in must_pass_ids() if id.startswith("smoke")]
        self.assertGreaterEqual(counted, len(smoke_ids))

    def test_the_listed_pairs_of_the_other_suites_pass(self):
        ids = [id for id in must_pass_ids() if not id.startswith("smoke")]
        for suite in sorted({id.split("/")[0] for id in ids}):
            listed = [re.escape(id) for id in ids if id.split("/")[0] == suite]
            # 64 rows are what is demanded; more would only cost time at these sizes.
            self.check_must_pass([suite], "--filter", "^(" + "|".join(listed) + ")$",
                                 "--set", f"validation.max_rows={MIN_CHECKED_ROWS}")  # fmt: skip

    def test_every_suite_has_pairs_that_must_pass(self):
        suites = {file.stem for file in SCENARIOS.glob("*.yaml")}
        self.assertEqual(suites - {id.split("/")[0] for id in must_pass_ids()}, set())

    def test_on_cuda_the_listed_pairs_are_supported_and_the_others_refused_as_section_13_says(self):
        outcome = self.expect(0, "support", *sorted(SCENARIOS.glob("*.yaml")), "--device", "cpu",
                              "--assume-sm", "90", "--json", "-")  # fmt: skip
        pairs = {pair["id"]: pair for pair in strict_json(outcome.out)}
        listed = must_pass_ids() + gpu_suites.must_pass_ids([CUDA_LIST])
        self.assertEqual([id for id in listed if not pairs.get(id, {}).get("supported")], [])
        unknown = {reason for pair in pairs.values() for reason in pair["reasons"]
                   if place_of(reason) is None}  # fmt: skip
        self.assertEqual(unknown, set())

    def test_every_shipped_scenario_is_valid(self):
        files = sorted(SCENARIOS.rglob("*.yaml"))
        outcome = self.expect(0, "validate", *files)
        self.assertEqual(outcome.out.count(": ok ("), len(files))


if __name__ == "__main__":
    unittest.main()
