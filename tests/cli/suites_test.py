"""The shipped suites: what must pass does, and the independent check agrees with what was saved."""

import unittest

from must_pass_testing import CUDA_LIST, OpinionTest, default_ids, firsts, must_pass_ids
from tool import BINARY, SCENARIOS, strict_json
import gpu_suites
import must_pass
from unsupported_reasons import is_external, place_of


class Suites(OpinionTest):
    def test_smoke_suites_pass_and_a_second_opinion_agrees(self):
        # Of one pair of each suite. The label thorough asks about the others.
        smoke = [id for id in default_ids() if id.startswith("smoke")]
        self.check_with_opinion(smoke, judged=firsts(smoke))

    def test_every_suite_has_pairs_that_must_pass(self):
        suites = {file.stem for file in SCENARIOS.glob("*.yaml")}
        # Gigabytes of cache for a few tokens; without a GPU tests/matrix/far_ops.h shows the same.
        large = {suite for suite in suites if suite.startswith("large-")}
        listed = {id.split("/")[0] for id in must_pass_ids()}
        self.assertEqual(suites - listed, large)
        self.assertLessEqual(large, {id.split("/")[0] for id in gpu_suites.must_pass_ids([CUDA_LIST])})

    def test_the_lists_are_what_support_says(self):
        self.assertEqual(must_pass.differences(BINARY), [])

    def test_on_cuda_the_listed_pairs_are_supported_and_the_others_refused_as_section_13_says(self):
        outcome = self.expect(0, "support", *sorted(SCENARIOS.glob("*.yaml")), "--device", "cpu",
                              "--assume-sm", "90", "--json", "-")  # fmt: skip
        pairs = {pair["id"]: pair for pair in strict_json(outcome.out)}
        listed = must_pass_ids() + gpu_suites.must_pass_ids([CUDA_LIST])
        self.assertEqual([id for id in listed if not pairs.get(id, {}).get("supported")], [])
        unknown = {reason for pair in pairs.values() for reason in pair["reasons"]
                   if place_of(reason) is None and not is_external(pair["backend"])}  # fmt: skip
        self.assertEqual(unknown, set())

    def test_every_shipped_scenario_is_valid(self):
        files = sorted(SCENARIOS.rglob("*.yaml"))
        outcome = self.expect(0, "validate", *files)
        self.assertEqual(outcome.out.count(": ok ("), len(files))


if __name__ == "__main__":
    unittest.main()
