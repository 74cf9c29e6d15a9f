"""The shipped suites at real dimensions: the pairs that a CPU can afford must pass. Apart from
suites_test.py, so that the two run at the same time: each takes minutes."""

import unittest

from must_pass_testing import MustPassTest, default_ids


class RealSuites(MustPassTest):
    def test_the_listed_pairs_of_the_other_suites_pass(self):
        self.check_real_pairs([id for id in default_ids() if not id.startswith("smoke")])


if __name__ == "__main__":
    unittest.main()
