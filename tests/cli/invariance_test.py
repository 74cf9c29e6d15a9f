"""`attnbench invariance`: what a request's bytes depend on."""

import unittest

from tool import ToolTest, strict_json


class Invariance(ToolTest):
    def study(self, *arguments):
        return strict_json(self.expect(0, "invariance", *arguments, "--json", "-").out)

    def test_a_kernel_that_promises_invariance_keeps_its_bytes_in_every_batch(self):
        for pair in self.study("smoke-batch-invariant"):
            if pair["refusals"]:
                continue
            beside = [c for c in pair["changes"] if "alike" in c["change"] or "after" in c["change"]]
            self.assertTrue(beside, pair["id"])
            for change in beside:
                self.assertTrue(change.get("equal"), (pair["id"], change))

    def test_differences_are_numbers_beside_the_error_of_the_worst_row(self):
        pairs = [p for p in self.study("smoke-prefill", "--backend", "FLASH_ATTN")
                 if not p["refusals"]]
        self.assertTrue(pairs)
        changed = [c for p in pairs for c in p["changes"] if not c.get("equal", True)]
        self.assertTrue(changed, "a decode splits its keys and a prefill does not")
        for pair in pairs:
            self.assertLess(pair["row_error"], 0.05)
            for change in pair["changes"]:
                if change.get("equal") is False:
                    self.assertGreater(change["max_abs"], 0)
                    self.assertLess(change["row_error"], 0.05)

    def test_the_table_has_a_column_a_backend_and_says_what_is_not_studied(self):
        run = self.expect(0, "invariance", "smoke-prefill", "smoke-mla")
        self.assertIn("FLASH_ATTN", run.out)
        self.assertIn("run again", run.out)
        reason = "attention.type mla: no request of it can be taken out of its batch"
        self.assertRegex(run.out, rf"(?m)^\d\d results of MLA, FLASHMLA, \S.*: {reason}$")
        self.assertEqual(run.out.count(reason), 1)
        one = self.expect(3, "invariance", "smoke-mla", "--filter", "/q130s\\w+_q140s300_q200/MLA$")
        self.assertEqual(one.out, f"smoke-mla/q130s700_q140s300_q200/MLA: {reason}\n")

    def test_nothing_to_study_is_no_success(self):
        self.expect(3, "invariance", "smoke-mla")


if __name__ == "__main__":
    unittest.main()
