#!/usr/bin/env python3
"""scripts/split_choice.py on results made here."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import split_choice  # noqa: E402


def result(case, splits, median, backend="FLASH_ATTN"):
    timing = None if median is None else {"median_us": median}
    return {"case": f"decode-splits/{case},attention.num_splits={splits}", "backend": backend,
            "timing": timing}


class SplitChoice(unittest.TestCase):
    def run_on(self, *files, tolerance="0.03"):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for i, results in enumerate(files):
                paths.append(os.path.join(folder, f"{i}.json"))
                with open(paths[-1], "w", encoding="utf-8") as file:
                    json.dump({"results": results}, file)
            text = io.StringIO()
            with contextlib.redirect_stdout(text), contextlib.redirect_stderr(io.StringIO()):
                code = split_choice.main([*paths, "--tolerance", tolerance])
        return code, text.getvalue()

    def test_a_choice_near_the_best_passes(self):
        code, text = self.run_on([result("q1s1k", "null", 10.2), result("q1s1k", 4, 10.0),
                                  result("q1s1k", 8, 14.0)])
        self.assertEqual(code, 0)
        self.assertIn("by 4 splits", text)
        self.assertIn("+2.0 %", text)

    def test_a_choice_far_from_the_best_fails_and_is_marked(self):
        code, text = self.run_on([result("q1s1k", "null", 10.5), result("q1s1k", 4, 10.0),
                                  result("q1s8k", "null", 7.0), result("q1s8k", 4, 7.0)])
        self.assertEqual(code, 1)
        self.assertEqual([line.endswith("<--") for line in text.splitlines()[:2]], [True, False])
        self.assertIn("2 points, 1 of them", text)

    def test_backends_and_cases_are_points_of_their_own(self):
        code, text = self.run_on([result("q1s1k", "null", 10.0), result("q1s1k", 4, 20.0),
                                  result("q1s1k", "null", 9.0, "FLASH_ATTN_IX"),
                                  result("q1s1k", 4, 8.0, "FLASH_ATTN_IX")])
        self.assertEqual(code, 1)
        self.assertIn("2 points, 1 of them", text)

    def test_of_several_files_the_least_time_counts(self):
        first = [result("q1s1k", "null", 12.0), result("q1s1k", 4, 10.0)]
        second = [result("q1s1k", "null", 10.0), result("q1s1k", 4, 11.0)]
        self.assertEqual(self.run_on(first)[0], 1)
        self.assertEqual(self.run_on(first, second)[0], 0)

    def test_what_was_not_timed_is_no_point(self):
        untimed = [result("q1s1k", "null", 10.0), result("q1s1k", 4, None)]
        self.assertEqual(self.run_on(untimed)[0], 2)
        self.assertEqual(self.run_on([result("q1s1k", 4, 10.0)])[0], 2)


if __name__ == "__main__":
    unittest.main()
