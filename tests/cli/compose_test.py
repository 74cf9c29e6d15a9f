"""`attnbench compose`: chains of attention, merges and ranks."""

import unittest

from tool import TINY, TINY_CASE, ToolTest, strict_json


class Compose(ToolTest):
    def test_every_chain_of_the_programs_own_fits(self):
        file = self.write("tiny.yaml", TINY)
        cases = strict_json(self.expect(0, "compose", file, "--json", "-").out)
        chains = [chain for case in cases for chain in case["chains"]]
        self.assertEqual(
            {(c["attention"], c["merge"]) for c in chains},
            {(name, "OPS") for name in ("FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN")},
        )
        self.assertEqual(len(chains), 6, "both exchanges")
        for chain in chains:
            self.assertTrue(chain["fits"], chain)
            self.assertEqual(chain["mismatches"], [])
            self.assertGreater(chain["row_error"], 0)

    def test_what_goes_by_positions_is_not_composed(self):
        file = self.write("tiny.yaml", TINY)
        outcome = self.expect(3, "compose", file, "--set", "attention.sliding_window=8")
        self.assertIn("windows and ALiBi go by positions", outcome.out)
        self.assertTrue(outcome.out.startswith(f"tiny/{TINY_CASE}: "), outcome.out)

    def test_a_reason_of_several_cases_stands_once_with_their_number(self):
        file = self.write("tiny.yaml", TINY + "sweep: {attention.sliding_window: [null, 8, 16, 24]}\n")
        out = self.expect(0, "compose", file).out
        self.assertEqual(out.count("windows and ALiBi go by positions"), 1)
        self.assertRegex(out, r"(?m)^3 cases: windows and ALiBi go by positions")


if __name__ == "__main__":
    unittest.main()
