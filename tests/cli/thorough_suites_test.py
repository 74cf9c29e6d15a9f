"""The pairs of the shipped suites that only the label thorough runs."""

import unittest

from must_pass_testing import MustPassTest, thorough_ids


class ThoroughSuites(MustPassTest):
    def test_the_pairs_that_the_default_tests_leave_out_pass(self):
        self.check_real_pairs(thorough_ids())


if __name__ == "__main__":
    unittest.main()
