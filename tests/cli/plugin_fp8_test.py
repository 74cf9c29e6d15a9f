"""Plugins with fp8 queries, keys and probabilities, through the real binary."""

import unittest

from plugins import PLUGINS, PluginTest
from tool import TINY

FP8 = PLUGINS / "libfp8_plugin.so"
SCALED = """\
schema: 1
name: fp8
attention: {type: decoder, num_heads: 4, num_kv_heads: 2, head_size: 64, dtype: bfloat16, query_dtype: QUERY}
kv_cache: {dtype: fp8, q_scale: 0.061, k_scale: 0.023, v_scale: 0.017}
batch: q32_3q1s100
"""
TOKEN_HEADS = """\
schema: 1
name: token-heads
attention: {type: decoder, num_heads: 4, num_kv_heads: 2, head_size: 64, dtype: bfloat16}
kv_cache: {dtype: DTYPE}
batch: q32_3q1s100
timing: {samples: 6, min_time_ms: 1, timeout_s: 4, l2: warm}
"""
QUERY, PROBABILITY = "ATTNBENCH_FP8_QUERY", "ATTNBENCH_FP8_PROBABILITY"


class Fp8(PluginTest):
    def run_fp8(self, *names, query="fp8_e4m3", code=0, probability="auto", more=()):
        chosen = [word for name in names for word in ("--backend", name)]
        return self.run_plugin(SCALED.replace("QUERY", query), FP8, "--no-timing", *chosen, *more,
                               "--set", f"attention.probability_dtype={probability}",
                               code=code)  # fmt: skip

    def test_it_passes_by_the_limits_of_the_scenario_beside_the_native_backend(self):
        limits = {}
        for probability in ("auto", "fp8_e4m3"):
            results = self.run_fp8("RIGHT", "RAGGED", "FLASH_ATTN", probability=probability)
            for result in results.values():
                self.assertEqual(result["status"], "passed", result["reasons"])
                self.assertIsNotNone(result["quantization_error"])
            self.assertEqual(len({result["error"]["rule"] for result in results.values()}), 1)
            limits[probability] = results["RIGHT"]["error"]["rule"]
        self.assertNotEqual(limits["auto"], limits["fp8_e4m3"])
        self.assertIn("P fp8_e4m3", limits["fp8_e4m3"])

    def test_a_16_bit_query_over_the_same_cache(self):
        results = self.run_fp8("RIGHT", "RAGGED", "WIDE_QUERY", query="auto")
        for result in results.values():
            self.assertEqual(result["status"], "passed", result["reasons"])

    def test_a_scale_for_each_head(self):
        more = ("--set", "kv_cache.k_scale=[0.023, 0.061]", "--set",
                "kv_cache.v_scale=[0.017, 0.11]")  # fmt: skip
        for result in self.run_fp8("RIGHT", "RAGGED", more=more).values():
            self.assertEqual(result["status"], "passed", result["reasons"])

    def test_a_cache_with_a_scale_for_each_token_and_head(self):
        for dtype in ("fp8_per_token_head", "int8_per_token_head"):
            text = TOKEN_HEADS.replace("DTYPE", dtype)
            words = ("--backend", "INTERLEAVED", "--backend", "TRITON_ATTN")
            for result in self.run_plugin(text, FP8, *words).values():
                self.assertEqual(result["status"], "passed", (dtype, result["reasons"]))
                self.assertIsNotNone(result["quantization_error"])
            wrong = self.run_plugin(text, FP8, "--backend", "NO_TOKEN_SCALES", "--no-timing", code=1)
            self.assertEqual(wrong["NO_TOKEN_SCALES"]["status"], "incorrect")
        refused = self.run_plugin(text, FP8, "--backend", "RIGHT", "--no-timing", code=3)["RIGHT"]
        self.assertEqual(refused["reasons"],
                         ["scales of each token and head need kv PAGED_INTERLEAVED"])  # fmt: skip

    def test_a_scale_that_is_forgotten_or_mixed_up_is_noticed(self):
        names = ("NO_Q_SCALE", "NO_K_SCALE", "NO_V_SCALE", "SWAPS_SCALES")
        for query in ("fp8_e4m3", "auto"):
            results = self.run_fp8(*names, query=query, code=1, probability="auto")
            for name, result in results.items():
                is_right = name == "NO_Q_SCALE" and query == "auto"
                self.assertEqual(result["status"], "passed" if is_right else "incorrect", name)

    def test_probabilities_that_are_rounded_unasked_are_not_excused(self):
        result = self.run_fp8("ALWAYS_ROUNDS_P", code=1)["ALWAYS_ROUNDS_P"]
        self.assertEqual(result["status"], "incorrect")
        result = self.run_fp8("ALWAYS_ROUNDS_P", probability="fp8_e4m3")["ALWAYS_ROUNDS_P"]
        self.assertEqual(result["status"], "passed", result["reasons"])

    def test_what_a_plugin_does_not_declare_it_is_not_given(self):
        results = self.run_fp8("WIDE_P", "WIDE_QUERY", probability="fp8_e4m3", code=3)
        needs = "needs {}, which the plugin does not declare"
        self.assertEqual(results["WIDE_P"]["reasons"], [needs.format(PROBABILITY)])
        self.assertEqual(results["WIDE_QUERY"]["reasons"],
                         [needs.format(QUERY), needs.format(PROBABILITY)])  # fmt: skip

    def test_e4m3_queries_and_probabilities_want_e4m3_keys(self):
        wants = {"kv_cache.dtype=fp8_e5m2": ["fp8 query", "e4m3 P without fp8 query, key and value"],
                 "attention.query_dtype=auto": ["e4m3 P without fp8 query, key and value"]}  # fmt: skip
        for setting, reasons in wants.items():
            result = self.run_fp8("RIGHT", probability="fp8_e4m3", more=("--set", setting),
                                  code=3)["RIGHT"]  # fmt: skip
            self.assertEqual(result["reasons"], reasons)
        self.assertEqual(self.run_plugin(TINY, FP8, "--backend", "RIGHT", "--no-timing")["RIGHT"]
                         ["status"], "passed")  # fmt: skip


if __name__ == "__main__":
    unittest.main()
