"""The pairs of the shipped suites that only the label thorough runs, and the second opinion about those that
suites_test.py runs without one."""

import unittest

from must_pass_testing import OpinionTest, default_ids, firsts, thorough_ids


class ThoroughSuites(OpinionTest):
    def test_the_other_pairs_at_real_dimensions_pass(self):
        self.check_real_pairs([id for id in thorough_ids() if not id.startswith("smoke")])

    def test_the_other_pairs_of_smoke_suites_pass_and_a_second_opinion_agrees(self):
        self.check_with_opinion([id for id in thorough_ids() if id.startswith("smoke")])

    def test_a_second_opinion_agrees_with_the_other_default_pairs(self):
        smoke = [id for id in default_ids() if id.startswith("smoke")]
        judged = set(firsts(smoke))
        self.check_with_opinion([id for id in smoke if id not in judged])


if __name__ == "__main__":
    unittest.main()
