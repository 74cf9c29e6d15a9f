#!/usr/bin/env python3
"""Tests of opinion/mm.py: sequences of images and windows, fp8 codes and scales."""

import types
import unittest

import numpy as np

from opinion import mm
from opinion.errors import Disagreement
from opinion.safetensors_file import StoredTensor


def case_of(mm_encoder, cu_seqlens=None, lengths=(10, 20)):
    """A case of images with these lengths."""
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tensors = {}
    if cu_seqlens is not None:
        tensors["cu_seqlens"] = StoredTensor("I32", np.array(cu_seqlens, dtype=np.int32))
    rules = types.SimpleNamespace(section=lambda name: mm_encoder)
    return types.SimpleNamespace(
        rules=rules,
        tensors=tensors,
        need=tensors.__getitem__,
        query_start_loc=starts,
        seq_lens=np.array(lengths, dtype=np.int64),
    )


class Sequences(unittest.TestCase):
    def test_an_image_is_one_sequence_without_a_window(self):
        self.assertEqual(mm.image_lengths([[28, 42], [15, 29]], 14, None), [6, 2])

    def test_windows_are_cut_row_by_row_and_are_smaller_at_the_border(self):
        self.assertEqual(mm.image_lengths([[70, 98]], 14, 4), [16, 12, 4, 3])

    def test_cu_seqlens_must_be_those_of_the_batch(self):
        mm.check_sequences(case_of({}, [0, 10, 30]))
        for wrong in ([0, 11, 30], [0, 10, 29], [0, 30]):
            with self.assertRaises(Disagreement):
                mm.check_sequences(case_of({}, wrong))

    def test_the_batch_form_has_rows_of_kv_len_and_no_cu_seqlens(self):
        form = {"batch_size": 2, "kv_len": 7}
        mm.check_sequences(case_of(form, lengths=(7, 7)))
        with self.assertRaises(Disagreement):
            mm.check_sequences(case_of(form, lengths=(7, 8)))
        with self.assertRaises(Disagreement):
            mm.check_sequences(case_of(form, [0, 7, 14], lengths=(7, 7)))


class Fp8(unittest.TestCase):
    def test_columns_of_padding_are_zero_and_golden_values_have_their_codes(self):
        x = np.array([1.0, -2.0, 448.0, 460.0, 2**-9, 2**-10], dtype=np.float32)
        codes = mm.quantise(x.reshape(1, 1, 6), 1.0)
        self.assertEqual(codes.shape, (1, 1, 16))
        self.assertEqual(codes[0, 0, :6].tolist(), [0x38, 0xC0, 0x7E, 0x7E, 0x01, 0x00])
        self.assertFalse(codes[0, 0, 6:].any())

    def test_padded_heads_divide_and_others_multiply_by_the_reciprocal(self):
        # In float32 175 / 7 is exactly halfway between 24 and 26, 175 * (1 / 7) lies above that.
        scale = np.float32(7.0)
        self.assertGreater(np.float32(175) * (np.float32(1) / scale), np.float32(25))
        padded = mm.quantise(np.full((1, 1, 8), 175, dtype=np.float32), scale)
        whole = mm.quantise(np.full((1, 1, 16), 175, dtype=np.float32), scale)
        self.assertEqual((padded[0, 0, 0], whole[0, 0, 0]), (0x5C, 0x5D))

    def test_scales_of_zeros_are_the_floor_and_keep_zeros(self):
        zeros = np.zeros((2, 1, 16), dtype=np.float32)
        scale = mm.dynamic_scale(zeros, "abs")
        # 2^-126 / 448 to the nearest subnormal, multiples of 2^-149.
        self.assertEqual(float(scale), 18725 * 2.0**-149)
        self.assertFalse(mm.quantise(zeros, scale).any())

    def test_signed_maxima_do_not_see_negative_values(self):
        x = np.array([-8.0, 2.0], dtype=np.float32)
        self.assertEqual(mm.dynamic_scale(x, "abs"), np.float32(8) / np.float32(448))
        self.assertEqual(mm.dynamic_scale(x, "signed"), np.float32(2) / np.float32(448))


if __name__ == "__main__":
    unittest.main()
