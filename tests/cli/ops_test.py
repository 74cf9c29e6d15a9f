"""Single operations, and options that only some backends read, from a scenario file."""

import unittest

import numpy as np

from tool import ToolTest

DECODER = """\
schema: 1
name: s
attention: {num_heads: 4, num_kv_heads: 2, head_size: 64%s}
kv_cache: {dtype: %s, k_scale: %s, v_scale: 0.03, q_scale: %s}
batch: 3q4s60
timing: {samples: 3, min_time_ms: 1, timeout_s: 2, l2: warm}
"""
# With a cache in the type of the keys, which has no scales.
COPIES = DECODER.replace("dtype: %s, k_scale: %s, v_scale: 0.03, q_scale: %s", "dtype: auto")


class Ops(ToolTest):
    def test_traffic_is_what_the_operation_has_to_move(self):
        self.write(
            "o.yaml",
            "schema: 1\nname: o\nattention: {type: op, num_heads: 2, head_size: 64}\n"
            "op: {name: output_quant, tokens: 10}\noutput_quant: {type: fp8_static}\n"
            "timing: {samples: 3, min_time_ms: 1, timeout_s: 2, l2: warm}\n",
        )
        result = self.results("o.yaml")["o/q10/OPS"]
        self.assertEqual(result["status"], "passed")
        self.assertEqual(result["throughput"]["bytes"], 10 * 2 * 64 * (2 + 1))
        self.assertEqual(result["throughput"]["bound"], "memory")
        self.assertIn("output_quant", [s["name"] for s in result["timing"]["steps"]])
        self.assertIn("kFp8StaticTensorSym", self.expect(0, "explain", "o.yaml").out)

    def test_quantising_by_the_largest_element_reads_everything_twice(self):
        self.write("scales.json", '{"a": {"q": 0.5, "k": 0.5, "v": 0.5}}')
        for scales, reads in (("null", 2), ("scales.json", 1)):
            self.write(
                "o.yaml",
                "schema: 1\nname: o\nattention: {type: op, num_heads: 2, head_size: 40}\n"
                "op: {name: mm_quant, tokens: 10}\n"
                "mm_encoder: {layer_names: [a], fp8_scale_path: %s}\n"
                "timing: {samples: 3, min_time_ms: 1, timeout_s: 2, l2: warm}\n" % scales,
            )
            result = self.results("o.yaml")["o/q10/OPS"]
            # Three times two heads, whose 40 elements become 48 codes.
            self.assertEqual(result["throughput"]["bytes"], 10 * 3 * 2 * (reads * 40 * 2 + 48))

    def test_saturation_is_counted_and_noticed(self):
        self.write(
            "o.yaml",
            "schema: 1\nname: o\nattention: {type: op, num_heads: 2, head_size: 64}\n"
            "op: {name: quantize, tokens: 10}\nkv_cache: {q_scale: 0.0001}\n",
        )
        self.assertRegex(self.expect(0, "run", "o.yaml", "--no-timing").err,
                         r"o/q10: \d+ of 1280 elements saturate in fp8")  # fmt: skip

    def test_cudnn_and_ops_are_known_names(self):
        listed = self.expect(0, "list", "backends").out
        self.assertIn("OPS", listed)
        self.assertIn("CUDNN", listed)
        self.write("d.yaml", COPIES % "")
        outcome = self.expect(3, "run", "d.yaml", "--backend", "CUDNN", "--no-timing")
        # Beside it is what this machine does not have: the library, or the headers when building.
        self.assertIn("CUDNN needs a CUDA device", outcome.out + outcome.err)


class Options(ToolTest):
    def saved(self, name):
        from opinion import safetensors_file

        return safetensors_file.read(self.dir / "t" / name)[0]

    def test_fp8_queries_are_codes_of_q_scale(self):
        from opinion import number_formats

        self.write("d.yaml", DECODER % (", query_dtype: fp8_e4m3", "fp8", 0.02, 0.025))
        results = self.results("d.yaml", "--no-timing", "--save-tensors", "t")
        self.assertEqual(results["s/3q4s60/FLASH_ATTN"]["status"], "passed")
        self.assertIn("fp8 query", results["s/3q4s60/TRITON_ATTN"]["reasons"])
        tensors = self.saved("s__3q4s60__FLASH_ATTN.safetensors")
        self.assertEqual(tensors["query"].dtype, "F8_E4M3")
        values = number_formats.decode("F8_E4M3", tensors["query"].raw) * np.float32(0.025)
        np.testing.assert_array_equal(tensors["query_dequantized"].raw, values)

    def test_a_16_bit_cache_has_no_fp8_queries(self):
        self.write("d.yaml", COPIES % ", query_dtype: fp8_e4m3")
        outcome = self.expect(3, "run", "d.yaml", "--no-timing")
        self.assertRegex(outcome.out + outcome.err, r"3 results of .*: unsupported: fp8 query")

    def test_per_head_scales_are_those_of_their_heads(self):
        from opinion import number_formats

        self.write("d.yaml", DECODER % ("", "fp8", "[0.02, 0.05]", 1.0))
        results = self.results("d.yaml", "--no-timing", "--save-tensors", "t")
        self.assertEqual(results["s/3q4s60/FLASH_ATTN"]["status"], "passed")
        tensors = self.saved("s__3q4s60__FLASH_ATTN.safetensors")
        key = number_formats.decode("BF16", tensors["key"].raw)
        for head, scale in enumerate(np.array([0.02, 0.05], dtype=np.float32)):
            codes = number_formats.encode_e4m3(key[:, head] / scale)
            values = number_formats.decode("F8_E4M3", codes) * scale
            np.testing.assert_array_equal(tensors["key_dequantized"].raw[:, head], values)

    def test_speculative_tokens_make_short_queries_decodes(self):
        self.write("d.yaml", COPIES % ", num_speculative_tokens: 3")
        with_tokens = self.expect(0, "explain", "d.yaml", "--backend", "FLASH_ATTN_IX").out
        without = self.expect(0, "explain", "d.yaml", "--backend", "FLASH_ATTN_IX",
                              "--set", "attention.num_speculative_tokens=0").out  # fmt: skip
        self.assertRegex(with_tokens, r"num_decodes +3")
        self.assertRegex(without, r"num_decodes +0")

    def test_batch_invariance_is_refused_by_the_ixformer_layout_alone(self):
        self.write("d.yaml", COPIES % ", batch_invariant: true")
        results = self.results("d.yaml", "--no-timing")
        self.assertEqual(results["s/3q4s60/FLASH_ATTN"]["status"], "passed")
        self.assertEqual(results["s/3q4s60/TRITON_ATTN"]["status"], "passed")
        self.assertEqual(results["s/3q4s60/FLASH_ATTN_IX"]["reasons"],
                         ["batch invariance not supported"])  # fmt: skip


if __name__ == "__main__":
    unittest.main()
