"""Faults planted in the real binary on the CPU: each costs its own case and nothing else."""

import unittest

from tool import TINY, TINY_CASE, ToolTest

# Seconds of silence after which a case that hangs is ended; what runs beside it takes milliseconds.
HANG_LIMIT = 5


class Faults(ToolTest):
    def run_with(self, *faults, code=4):
        self.write("tiny.yaml", TINY)
        options = [x for fault in faults for x in ("--plant-fault", fault)]
        results = self.results("tiny.yaml", "--device", "cpu", "--no-timing",
                               "--hang-limit", HANG_LIMIT, *options, code=code)  # fmt: skip
        return {id.split("/")[2]: result for id, result in results.items()}

    def test_a_crash_and_a_hang_end_one_case_each_and_the_rest_still_runs(self):
        results = self.run_with("crash=/FLASH_ATTN$", "hang=/FLASH_ATTN_IX$")
        self.assertEqual(results["FLASH_ATTN"]["status"], "error")
        self.assertIn("in phase 'run': signal 11", results["FLASH_ATTN"]["reasons"][0])
        self.assertEqual(results["FLASH_ATTN_IX"]["status"], "error")
        self.assertIn("time limit", results["FLASH_ATTN_IX"]["reasons"][0])
        self.assertEqual(results["TRITON_ATTN"]["status"], "passed")
        for result in results.values():
            self.assertEqual(result["case"], TINY_CASE)
            self.assertEqual(result["problem"]["attention"]["head_size"], 64)

    def test_an_overrun_names_the_buffer(self):
        results = self.run_with("overrun=/FLASH_ATTN$")
        self.assertEqual(results["FLASH_ATTN"]["status"], "error")
        self.assertIn("out-of-bounds write: planted buffer: 1 byte past its end",
                      results["FLASH_ATTN"]["reasons"][0])  # fmt: skip
        self.assertEqual(results["TRITON_ATTN"]["status"], "passed")

    def test_the_command_that_repeats_a_result_plants_the_fault_again(self):
        results = self.run_with("crash=/FLASH_ATTN$")
        self.assertIn("--plant-fault 'crash=/FLASH_ATTN$'", results["FLASH_ATTN"]["repro"])

    def test_bad_faults_are_bad_usage(self):
        self.write("tiny.yaml", TINY)
        for fault, complaint in (
            ("stroke=.", "expected hang, crash, overrun or exit"),
            ("hang", "expected hang, crash, overrun or exit"),
            ("hang=nowhere", "no result id matches"),
            ("hang=([", "regular expression"),
        ):
            with self.subTest(fault=fault):
                outcome = self.expect(2, "run", "tiny.yaml", "--device", "cpu",
                                      "--plant-fault", fault)  # fmt: skip
                self.assertIn(complaint, outcome.err)


if __name__ == "__main__":
    unittest.main()
