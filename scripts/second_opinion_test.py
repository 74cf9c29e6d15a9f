#!/usr/bin/env python3
"""Tests of second_opinion.py: number formats, golden values of §16, recorded kernels."""

import json
import math
import os
import struct
import tempfile
import types
import unittest
from pathlib import Path

import numpy as np

from opinion import attention, checks, dcp, int8, kv_scales, packed_cache, safetensors_file
from opinion import number_formats as formats
from opinion.errors import Disagreement
from opinion.kernel_rules import RULES


def rules_of(**changes):
    settings = {
        "attention_type": "decoder",
        "causal": True,
        "sliding_window": None,
        "chunk_size": None,
        "encoder_window": "source",
        "logits_soft_cap": 0.0,
        "alibi": "none",
        "scale": 1.0,
    }
    settings["kernel"] = RULES[changes.pop("backend", "TRITON_ATTN")]
    settings.update(changes)
    return types.SimpleNamespace(**settings)


def visible(rules, query_len, seq_len, ranges=()):
    p = attention.positions(query_len, seq_len)
    mask = attention.allowed_keys(rules, p, seq_len, ranges)
    return [set(np.flatnonzero(row)) for row in mask]


class NumberFormats(unittest.TestCase):
    def test_every_f16_code_reads_as_the_ieee_half_it_is(self):
        codes = np.arange(65536, dtype=np.uint16)
        expected = codes.view(np.float16).astype(np.float32)
        np.testing.assert_array_equal(formats.decode("F16", codes), expected)

    def test_every_bf16_code_is_the_upper_half_of_a_float32(self):
        codes = np.arange(65536, dtype=np.uint16)
        wide = b"".join(struct.pack("<HH", 0, code) for code in range(65536))
        np.testing.assert_array_equal(formats.decode("BF16", codes), np.frombuffer(wide, "<f4"))

    def test_every_e5m2_code_is_the_upper_byte_of_a_half(self):
        codes = np.arange(256, dtype=np.uint8)
        halves = (codes.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
        np.testing.assert_array_equal(formats.decode("F8_E5M2", codes), halves)

    def test_every_e4m3_code_follows_its_bit_fields(self):
        for code in range(256):
            value = float(formats.decode("F8_E4M3", np.array([code], np.uint8))[0])
            exponent, mantissa = (code >> 3) & 15, code & 7
            if code & 0x7F == 0x7F:
                self.assertTrue(math.isnan(value))
                continue
            digits = mantissa if exponent == 0 else 8 + mantissa
            magnitude = digits * 2.0 ** (max(exponent, 1) - 10)
            self.assertEqual(value, -magnitude if code & 0x80 else magnitude, hex(code))

    def test_e4m3_limits_are_those_of_the_format(self):
        value = dict(enumerate(formats.decode("F8_E4M3", np.arange(256, dtype=np.uint8))))
        self.assertEqual((value[0x7E], value[0xFE]), (448, -448))
        self.assertEqual((value[0x08], value[0x01]), (2.0**-6, 2.0**-9))

    def test_float32_values_get_the_codes_that_the_search_gives(self):
        upper = np.arange(1 << 16, dtype=np.uint32) << 16
        for lower in (0, 1, 0x7FFF, 0x8000, 0xFFFF):
            values = (upper | np.uint32(lower)).view(np.float32)
            with np.errstate(invalid="ignore"):
                wide = values.astype(np.float64)
            for encode in (formats.encode_e4m3, formats.encode_e5m2):
                np.testing.assert_array_equal(encode(values), encode(wide))

    def test_fp8_rounding_gives_the_golden_codes(self):
        inputs = [1.0, -2.0, 448, 449, math.inf, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10]
        expected = [0x38, 0xC0, 0x7E, 0x7E, 0x7E, 0x01, 0x00, 0x01]
        self.assertEqual(list(formats.encode_e4m3(inputs)), expected)
        self.assertEqual(list(formats.encode_e5m2([1.0, 57344, 1e6])), [0x3C, 0x7B, 0x7B])
        self.assertEqual(list(formats.encode_e4m3([math.nan, -math.inf])), [0x7F, 0xFE])

    def test_fp8_rounding_keeps_codes_and_sends_ties_to_even(self):
        for name, encode in (("F8_E4M3", formats.encode_e4m3), ("F8_E5M2", formats.encode_e5m2)):
            codes = np.arange(256, dtype=np.uint8)
            values = formats.decode(name, codes)
            finite = np.isfinite(values)
            np.testing.assert_array_equal(encode(values[finite]), codes[finite])
            low = np.array([c for c in range(0x7E) if finite[c] and finite[c + 1]])
            middle = (values[low].astype(np.float64) + values[low + 1]) / 2
            np.testing.assert_array_equal(encode(middle), low + low % 2)
            np.testing.assert_array_equal(encode(np.nextafter(middle, np.inf)), low + 1)
            np.testing.assert_array_equal(encode(np.nextafter(middle, -np.inf)), low)

    def test_bf16_rounds_to_nearest_even(self):
        bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF], np.uint32)
        codes = formats.encode_bf16(bits.view(np.float32))
        self.assertEqual(codes.tolist(), [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80])

    def test_int8_rounding_gives_the_golden_values(self):
        self.assertEqual(list(formats.half_away_i8([2.5, -2.5, 200, -200])), [3, -3, 127, -128])
        self.assertEqual(list(formats.truncate_i8([2.9, -2.9, 200])), [2, -2, 127])

    def test_per_token_head_int8_gives_the_golden_codes(self):
        x = np.array([[1, -2, 0.5, 0.25], [3, -1.5, 0.75, 0.1]], np.float32)[:, None]
        away, scale = formats.quantise_per_token_head(x, to_int8=True)
        cut, _ = formats.quantise_per_token_head(x, to_int8=True, int8_round="trunc")
        self.assertEqual(away[:, 0].tolist(), [[64, -127, 32, 16], [127, -64, 32, 4]])
        self.assertEqual(cut[:, 0].tolist(), [[63, -127, 31, 15], [127, -63, 31, 4]])
        np.testing.assert_array_equal(scale[:, 0], np.float32([0.015748031, 0.023622047]))

    def test_an_all_zero_vector_gets_the_smallest_scale(self):
        codes, scale = formats.quantise_per_token_head(np.zeros((1, 1, 4), np.float32), True)
        self.assertEqual((codes.tolist(), scale[0, 0]), ([[[0, 0, 0, 0]]], np.float32(1e-6)))


class PackedCaches(unittest.TestCase):
    def drawn(self, *shape):
        x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
        return formats.decode("BF16", formats.encode_bf16(x))

    def relative_error(self, read, x):
        return float(np.sqrt(((read - x) ** 2).mean() / (x**2).mean()))

    def test_int4_reads_back_near_what_was_stored_beside_a_far_larger_column(self):
        x = self.drawn(9, 2, 128)
        x[..., 5] = 50
        read = packed_cache.dequantise_int4(*packed_cache.quantise_int4(x, "bfloat16"))
        self.assertLess(self.relative_error(read, x), 0.15)

    def test_nvfp4_reads_back_near_what_was_stored(self):
        x, scale = self.drawn(9, 2, 64), np.float32(0.02)
        codes, scales = packed_cache.quantise_nvfp4(x, scale)
        self.assertEqual((codes.shape, scales.shape), ((9, 2, 32), (9, 2, 4)))
        read = packed_cache.dequantise_nvfp4(codes, scales, scale)
        self.assertLess(self.relative_error(read, x), 0.15)

    def test_scales_of_values_are_found_again_in_their_swizzle(self):
        scales = np.random.default_rng(4).integers(0, 255, (3, 16, 2, 8)).astype(np.uint8)
        swizzled = packed_cache.swizzle(scales)
        np.testing.assert_array_equal(packed_cache.unswizzle(swizzled), scales)
        slot, block = 6, 5
        place = slot // 4 * 4 + block // 2, block % 2 * 4 + slot % 4
        self.assertEqual(swizzled[1, place[0], 1, place[1]], scales[1, slot, 1, block])

    def test_entries_of_model1_lie_in_two_parts_of_a_block(self):
        entries = np.random.default_rng(5).integers(0, 255, (2, 16, 584)).astype(np.uint8)
        blocks = packed_cache.model1_to_blocks(entries)
        np.testing.assert_array_equal(packed_cache.model1_from_blocks(blocks), entries)
        flat = blocks.reshape(2, -1)
        np.testing.assert_array_equal(flat[1, 3 * 576 : 4 * 576], entries[1, 3, :576])
        np.testing.assert_array_equal(flat[1, 16 * 576 + 3 * 8 :][:8], entries[1, 3, 576:])

    def test_model1_scales_are_powers_of_two_that_no_value_exceeds(self):
        latents = self.drawn(5, 448)
        entries, read = packed_cache.model1_entries(latents, np.zeros((5, 64), np.uint16))
        scales = np.ldexp(1.0, entries[:, 576:583].astype(int) - 127)
        largest = np.abs(latents.reshape(5, 7, 64)).max(axis=2)
        self.assertTrue((largest / scales <= 448).all() and (largest / scales > 224).all())
        self.assertLess(self.relative_error(read, latents), 0.05)


class ContextParallel(unittest.TestCase):
    def test_slots_of_two_ranks_are_the_golden_ones(self):
        rules = types.SimpleNamespace(block_size=4, dcp_world_size=2, dcp_interleave_size=2)
        positions = np.arange(10)
        slots = dcp.slots_of_positions(np.array([5, 9]), positions, rules)
        holders = dcp.ranks_of(positions, 2, 2)
        golden = (
            [20, 21, -1, -1, 22, 23, -1, -1, 36, 37],
            [-1, -1, 20, 21, -1, -1, 22, 23, -1, -1],
        )
        for rank in (0, 1):
            self.assertEqual(np.where(holders == rank, slots, -1).tolist(), golden[rank])


class CalculatedScales(unittest.TestCase):
    def test_scales_are_the_largest_magnitudes_over_the_ranges(self):
        query, keys, values = (np.array([[0.5, -x]], np.float32) for x in (80.0, 50.0, 40.0))
        saved = np.array([80 / 200, 50 / 200, 40 / 100], np.float32)
        self.assertEqual(kv_scales.check(saved, query, keys, values), saved.tolist())
        with self.assertRaises(Disagreement):
            kv_scales.check(saved, query, values, keys)

    def test_nothing_but_zeros_has_a_scale_of_one(self):
        ones, none = np.ones(3, np.float32), np.zeros((0, 4), np.float32)
        self.assertEqual(kv_scales.check(ones, none, none, np.zeros((2, 4))), [1, 1, 1])

    def test_new_rows_are_the_last_of_each_request_and_prefills_of_cross_attention(self):
        self.assertEqual(kv_scales.new_rows([2, 0, 1], [3, 2, 1]).tolist(), [1, 2, 5])
        self.assertEqual(kv_scales.new_rows([2, 1], [3, 2], cross=True).tolist(), [0, 1, 2])


class Int8Quantisation(unittest.TestCase):
    def test_mode_2_gives_the_golden_codes(self):
        x = np.array([[1, -2, 0.5, 0.25], [3, -1.5, 0.75, 0.1]], np.float32)[:, None]
        codes, scales = int8.quantise_by_token(x)
        self.assertEqual(codes[:, 0].tolist(), [[64, -127, 32, 16], [127, -64, 32, 4]])
        np.testing.assert_array_equal(scales[:, 0], np.float32([2, 3]) / np.float32(127))

    def test_a_zero_vector_has_scale_and_codes_of_zero(self):
        codes, scales = int8.quantise_by_token(np.zeros((1, 1, 4), np.float32))
        self.assertEqual((codes.tolist(), scales[0, 0]), ([[[0, 0, 0, 0]]], 0))

    def test_rounding_is_to_even_and_saturates(self):
        x = np.array([2.5, 3.5, -2.5, 200, -200, np.nan], np.float32)
        self.assertEqual(int8.nearest_even_i8(x).tolist(), [2, 4, -2, 127, -128, 0])

    def test_value_scales_are_largest_magnitudes_and_one_for_zeros(self):
        values = np.array([[[1, 0]], [[-254, 0]]], np.float32)
        self.assertEqual(int8.value_scales(values).tolist(), [[2, 1]])


class GoldenAttention(unittest.TestCase):
    LOGITS, VALUES = np.array([[0.5, -1.0, 2.0]]), np.array([[1.0], [2.0], [4.0]])

    def test_sinks_take_weight_and_enter_the_lse(self):
        total = math.exp(0.5) + math.exp(-1) + math.exp(2)
        for sink, output, weight in ((None, 3.3959037, 0.0), (1.0, 2.6345155, math.e)):
            got, got_lse = attention.softmax_rows(self.LOGITS, self.VALUES, sink)
            self.assertAlmostEqual(got[0, 0], output, places=6)
            self.assertAlmostEqual(got_lse[0], math.log(total + weight), places=12)

    def test_extreme_sinks_leave_all_or_nothing(self):
        free, _ = attention.softmax_rows(self.LOGITS, self.VALUES, None)
        none, _ = attention.softmax_rows(self.LOGITS, self.VALUES, -math.inf)
        full, lse = attention.softmax_rows(self.LOGITS, self.VALUES, math.inf)
        self.assertEqual(free[0, 0], none[0, 0])
        self.assertEqual((full[0, 0], lse[0]), (0.0, math.inf))

    def test_a_row_without_keys_is_zero_with_the_sink_or_minus_infinity_as_lse(self):
        hidden = np.full((1, 3), -np.inf)
        for sink, expected in ((None, -math.inf), (0.25, 0.25)):
            output, lse = attention.softmax_rows(hidden, self.VALUES, sink)
            self.assertEqual((output[0, 0], lse[0]), (0.0, expected))

    def test_merging_partials_is_a_softmax_over_their_lses(self):
        for lses, parts, output, lse in (
            ([0.0, math.log(3)], [1.0, 3.0], 2.5, math.log(4)),
            ([-math.inf, 0.25], [2.0, 5.0], 5.0, 0.25),
        ):
            got, got_lse = attention.softmax_rows(np.array([lses]), np.array([[x] for x in parts]))
            self.assertAlmostEqual(got[0, 0], output, places=12)
            self.assertAlmostEqual(got_lse[0], lse, places=12)

    def test_weight_zero_hides_a_nan_value(self):
        scores = np.array([[0.0, -np.inf]])
        output, _ = attention.softmax_rows(scores, np.array([[2.0], [math.nan]]))
        self.assertEqual(output[0, 0], 2.0)

    def test_mm_prefix_ranges_override_causality_and_window(self):
        seen = visible(rules_of(sliding_window=2), 6, 6, [(1, 4)])
        block = {1, 2, 3, 4}
        self.assertEqual(seen, [{0}, {0} | block, block, block, block, {4, 5}])
        plain = visible(rules_of(sliding_window=2), 6, 6)
        self.assertEqual(visible(rules_of(sliding_window=2), 6, 6, [(3, 3), (0, 0)]), plain)
        self.assertEqual(visible(rules_of(), 6, 6, [(0, 1)])[0], {0, 1})

    def test_windows_are_symmetric_for_encoders_and_look_back_for_decoders(self):
        encoder = visible(rules_of(attention_type="encoder", causal=False, sliding_window=3), 5, 5)
        self.assertEqual([encoder[i] for i in (0, 2, 4)], [{0, 1, 2}, set(range(5)), {2, 3, 4}])
        decoder = visible(rules_of(sliding_window=3), 5, 5)
        self.assertEqual((decoder[4], decoder[1]), ({2, 3, 4}, {0, 1}))

    def test_the_ixformer_encoder_window_looks_back_only_unless_asked(self):
        settings = {
            "backend": "FLASH_ATTN_IX",
            "attention_type": "encoder",
            "causal": False,
            "sliding_window": 3,
        }
        self.assertEqual(visible(rules_of(**settings), 5, 5)[2], {0, 1, 2})
        settings["encoder_window"] = "symmetric"
        self.assertEqual(visible(rules_of(**settings), 5, 5)[2], set(range(5)))
        settings.update(attention_type="encoder_only", encoder_window="source")
        self.assertEqual(visible(rules_of(**settings), 5, 5)[2], set(range(5)))

    def test_positions_are_aligned_bottom_right(self):
        self.assertEqual(visible(rules_of(), 2, 4), [{0, 1, 2}, {0, 1, 2, 3}])
        self.assertEqual(visible(rules_of(), 3, 1), [set(), set(), {0}])

    def test_alibi_has_the_reference_point_of_its_backend(self):
        sqrt = attention.alibi_bias(rules_of(alibi="sqrt"), [9], 12, 3)[0] * 0.5
        self.assertEqual((sqrt[9], sqrt[5], sqrt[0], sqrt[11]), (0.0, -1.0, -1.5, 0.0))
        p = attention.positions(2, 5)
        triton = attention.alibi_bias(rules_of(alibi="linear"), p, 5, 2)
        self.assertEqual(triton[0].tolist(), [-3, -2, -1, 0, 1])
        flash = attention.alibi_bias(rules_of(alibi="linear", backend="FLASH_ATTN"), p, 5, 2)
        self.assertEqual(flash[1].tolist(), [0, 1, 2, 3, 4])
        windowed = rules_of(alibi="linear", backend="FLASH_ATTN", sliding_window=2)
        self.assertEqual(attention.alibi_bias(windowed, p, 5, 2)[0].tolist(), [-3, -2, -1, 0, -1])

    def test_slopes_follow_the_geometric_series(self):
        np.testing.assert_allclose(attention.geometric_slopes(8), 0.5 ** np.arange(1, 9))
        np.testing.assert_allclose(
            attention.geometric_slopes(6), [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
        )


GOLDEN_DIR = os.environ.get("ATTNBENCH_GOLDEN_DIR", "")


@unittest.skipUnless(GOLDEN_DIR, "ATTNBENCH_GOLDEN_DIR is not set")
class RecordedKernels(unittest.TestCase):
    def test_outputs_of_vllm_kernels_agree_with_reference_and_stated_error(self):
        files = sorted(Path(GOLDEN_DIR).glob("*.safetensors"))
        self.assertTrue(files, f"no files in {GOLDEN_DIR}")
        for file in files:
            with self.subTest(file.name):
                checks.check_file(file)

    def test_a_shifted_window_would_be_noticed(self):
        file = Path(GOLDEN_DIR) / "mix_gemma_d64_g8.safetensors"
        tensors, metadata = safetensors_file.read(file)
        problem = json.loads(metadata["problem"])
        problem["attention"]["sliding_window"] += 1
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / file.name
            safetensors_file.write(path, tensors, {"problem": json.dumps(problem)})
            with self.assertRaises(Disagreement):
                checks.check_file(path)


if __name__ == "__main__":
    unittest.main()
