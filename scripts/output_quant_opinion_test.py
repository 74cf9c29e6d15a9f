#!/usr/bin/env python3
"""The independent check of quantised outputs against values worked out by hand (semantics §9, §16)."""

import unittest

import numpy as np

from opinion import output_quant


def spec(kind, **more):
    base = {"type": kind, "scale": 1.0, "ue8m0": False, "column_major": False,
            "tma_aligned": False, "swizzle": True}  # fmt: skip
    return {**base, **more}


class OutputQuant(unittest.TestCase):
    def test_static_codes_multiply_by_the_reciprocal(self):
        rows = np.array([[1.0, -2.0, 448.0, 1e6]], np.float32)
        codes, scales = output_quant.quantise(rows, spec("fp8_static"))
        self.assertEqual(codes.tolist(), [[0x38, 0xC0, 0x7E, 0x7E]])
        self.assertEqual(scales.tolist(), [1.0])

    def test_a_group_scale_is_the_largest_value_over_448(self):
        rows = np.zeros((3, 256), np.float32)
        rows[1, 130] = -448.0
        codes, scales = output_quant.quantise(rows, spec("fp8_group128"))
        self.assertEqual(scales[1].tolist(), [np.float32(1e-10) / np.float32(448), 1.0])
        self.assertEqual(codes[1, 130], 0xFE)

    def test_ue8m0_rounds_up_to_a_power_of_two(self):
        for given, expected in ((1.0, 1.0), (1.1, 2.0), (0.0045, 0.0078125), (0.0, 2.0**-33)):
            rows = np.full((1, 64), given * 448, np.float32)
            _, scales = output_quant.quantise(rows, spec("fp8_group64", ue8m0=True))
            self.assertEqual(scales.tolist(), [[expected]])

    def test_aligned_scales_stand_by_column_with_poison_behind_the_rows(self):
        rows = np.full((3, 128), 448.0, np.float32)
        _, scales = output_quant.quantise(rows, spec("fp8_group64", tma_aligned=True))
        self.assertEqual(scales.shape, (2, 4))
        self.assertTrue((scales[:, :3] == 1).all() and np.isnan(scales[:, 3]).all())

    def test_nvfp4_packs_the_even_column_low_and_rounds_ties_to_even(self):
        rows = np.zeros((1, 16), np.float32)
        rows[0, :6] = [6, 0.25, 0.75, -2.5, 5, 1.25]
        codes, scales = output_quant.quantise(rows, spec("nvfp4", swizzle=False))
        self.assertEqual(scales.tolist(), [[0x38]])
        self.assertEqual(codes[0, :3].tolist(), [0x07, 0xC2, 0x26])

    def test_swizzled_scales_lie_where_the_specification_says(self):
        scales = np.zeros((129, 16), np.uint8)
        places = {(0, 3): 3, (0, 4): 512, (1, 0): 16, (31, 3): 499, (32, 0): 4, (127, 3): 511,
                  (128, 0): 2048, (5, 15): 1619}  # fmt: skip
        for value, place in enumerate(places, 1):
            scales[place] = value
        flat = output_quant._swizzle(scales).reshape(-1)
        self.assertEqual([flat[at] for at in places.values()], list(range(1, len(places) + 1)))
        self.assertEqual(np.count_nonzero(flat), len(places))


if __name__ == "__main__":
    unittest.main()
