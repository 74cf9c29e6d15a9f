"""The pairs of the shipped suites that only the label thorough runs."""

import unittest

from must_pass_testing import OpinionTest, thorough_ids


class ThoroughSuites(OpinionTest):
    def test_the_other_pairs_at_real_dimensions_pass(self):
        self.check_real_pairs([id for id in thorough_ids() if not id.startswith("smoke")])

    def test_the_other_pairs_of_smoke_suites_pass_and_a_second_opinion_agrees(self):
        self.check_with_opinion([id for id in thorough_ids() if id.startswith("smoke")])


if __name__ == "__main__":
    unittest.main()
