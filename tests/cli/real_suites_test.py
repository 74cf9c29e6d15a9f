"""The shipped suites at real dimensions: the pairs that a CPU can afford must pass. Apart from
suites_test.py, so that the two run at the same time: each takes minutes."""

import re
import unittest

from must_pass_testing import MIN_CHECKED_ROWS, MustPassTest, must_pass_ids


class RealSuites(MustPassTest):
    def test_the_listed_pairs_of_the_other_suites_pass(self):
        ids = [id for id in must_pass_ids() if not id.startswith("smoke")]
        for suite in sorted({id.split("/")[0] for id in ids}):
            listed = [re.escape(id) for id in ids if id.split("/")[0] == suite]
            # 64 rows are what is demanded; more would only cost time at these sizes.
            self.check_must_pass([suite], "--filter", "^(" + "|".join(listed) + ")$",
                                 "--set", f"validation.max_rows={MIN_CHECKED_ROWS}")  # fmt: skip


if __name__ == "__main__":
    unittest.main()
