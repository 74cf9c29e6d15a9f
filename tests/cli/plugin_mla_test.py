"""Kernels of users over the latents of MLA, through the real binary: between attnbench's projections,
with every form of the cache, judged like ours, and each fault named."""

import subprocess
import sys
import unittest

from plugins import PLUGINS, PluginTest
from tool import ROOT, TIME_LIMIT_S, words_only, thorough

MLA = PLUGINS / "libmla_plugin.so"
# Decodes, several query tokens and a prefill, in this order so that the built-in ones take it as well.
LATENTS = """\
schema: 1
name: latents
attention: {type: mla, num_heads: 4, dtype: bfloat16}
mla: {kv_lora_rank: 128, qk_nope_head_dim: 32, qk_rope_head_dim: 64, v_head_dim: 32}
kv_cache: {block_size: 64}
batch: 2q1s70_q1s130_q5s100_q30
timing: {samples: 3, min_time_ms: 1, timeout_s: 2, l2: warm}
"""
FP8 = ("--set", "kv_cache.dtype=fp8", "--set", "kv_cache.k_scale=0.02", "--set",
       "kv_cache.q_scale=0.03")  # fmt: skip
# The one size that fp8_ds_mla has.
SPARSE = LATENTS.replace("kv_lora_rank: 128", "kv_lora_rank: 512, sparse_topk: 128")
LISTS = ("--set", "mla.sparse.valid=0.5", "--set", "mla.sparse.duplicates=0.25")
NO_KEYS = ("--set", "mla.sparse.valid=0.0")


class MlaPluginTest(PluginTest):
    def run_mla(self, scenario, *backends, settings=(), code=0, timing=False):
        chosen = [word for name in backends for word in ("--backend", name)]
        options = () if timing else ("--no-timing",)
        return self.run_plugin(scenario, MLA, *chosen, *settings, *options, code=code)

    def all_pass(self, scenario, *backends, **more):
        results = self.run_mla(scenario, *backends, **more)
        self.assertEqual(list(results), list(backends))
        for result in results.values():
            self.assertEqual(result["status"], "passed", result["reasons"])
        return results

    def incorrect(self, scenario, backend, *parts, **more):
        result = self.run_mla(scenario, backend, code=1, **more)[backend]
        self.assertEqual(result["status"], "incorrect", result["reasons"])
        for part in parts:
            self.assertIn(part, "\n".join(result["reasons"]))


class RightOnes(MlaPluginTest):
    def test_every_request_comes_as_a_decode_between_our_projections(self):
        results = self.all_pass(LATENTS, "MLA", "RIGHT", "NO_LSE", timing=True)
        right = results["RIGHT"]
        steps = {step["name"]: step["median_us"] for step in right["timing"]["steps"]}
        self.assertEqual(list(steps), ["write_cache", "project_query", "concat_query", "attend",
                                       "project_value"])  # fmt: skip
        self.assertLess(right["lse_error"]["max_abs"], 1e-2)
        self.assertIsNone(results["NO_LSE"]["lse_error"])
        # Work over the latents of every row: 2 N (2 Lkv + R) a pair.
        pairs = 70 + 70 + 130 + (96 + 97 + 98 + 99 + 100) + 30 * 31 / 2
        self.assertEqual(right["throughput"]["flops"], 2 * 4 * (2 * 128 + 64) * pairs)
        keys, rows = 2 * 70 + 130 + 100 + 30, 38
        bytes = 2 * (keys * (128 + 64) + rows * 4 * (2 * 128 + 64))
        self.assertEqual(right["throughput"]["bytes"], bytes)

    def test_blocks_padded_heads_and_shared_prefixes(self):
        for setting in ("kv_cache.block_size=16", "mla.q_pad_num_heads=16",
                        "output_quant.type=fp8_static"):  # fmt: skip
            with self.subTest(setting=setting):
                self.all_pass(LATENTS, "RIGHT", settings=("--set", setting))
        shared = LATENTS.replace("2q1s70_q1s130_q5s100_q30", "5q2s150")
        self.all_pass(shared + "cascade: {common_prefix_len: 64}\n", "RIGHT")

    def test_an_fp8_cache_with_fp8_queries_or_with_those_of_16_bits(self):
        results = self.all_pass(LATENTS, "RIGHT", "WIDE_QUERY", settings=FP8, timing=True)
        for backend, is_quantised in (("RIGHT", True), ("WIDE_QUERY", False)):
            steps = [step["name"] for step in results[backend]["timing"]["steps"]]
            self.assertEqual("quantise_query" in steps, is_quantised, backend)
        per_row = 4 * (128 + 64) * 38
        difference = (
            results["WIDE_QUERY"]["throughput"]["bytes"] - results["RIGHT"]["throughput"]["bytes"]
        )
        self.assertEqual(difference, per_row)
        padded = ("--set", "mla.q_pad_num_heads=16")
        self.all_pass(LATENTS, "RIGHT", "WIDE_QUERY", settings=(*FP8, *padded))
        calculated = (*FP8[:2], "--set", "kv_cache.calculate_kv_scales=true")
        self.all_pass(LATENTS, "RIGHT", settings=calculated)

    def test_probabilities_in_e4m3_have_the_limits_of_the_problem_that_asks_for_them(self):
        asked = ("--set", "attention.probability_dtype=fp8_e4m3")
        self.all_pass(LATENTS, "RIGHT", "E4M3_PROBABILITY", settings=(*FP8, *asked))
        self.incorrect(LATENTS, "E4M3_PROBABILITY", "of the row's size", settings=FP8)

    def test_lists_of_entries_over_every_cache(self):
        for settings in ((), LISTS, ("--set", "kv_cache.dtype=fp8_ds_mla", *LISTS), (*FP8, *LISTS)):
            with self.subTest(settings=settings):
                self.all_pass(SPARSE, "RIGHT", settings=settings)
        # As in FLASHMLA_SPARSE, fp8 is fp8_ds_mla for a kernel that knows no other.
        for dtype in ("fp8", "fp8_ds_mla"):
            self.all_pass(SPARSE, "ONLY_DS_MLA", settings=("--set", f"kv_cache.dtype={dtype}"))
        dense = LATENTS.replace("kv_lora_rank: 128", "kv_lora_rank: 512")
        self.all_pass(dense, "RIGHT", settings=("--set", "kv_cache.dtype=fp8_ds_mla"))

    def test_saved_tensors_are_judged_with_numpy_alone(self):
        save = ("--save-tensors", "saved")
        self.all_pass(LATENTS, "BASE_2", "WIDE_QUERY", settings=save)
        self.all_pass(SPARSE, "PLUS_INF", settings=(*save, *LISTS))
        asked = (*FP8, "--set", "attention.probability_dtype=fp8_e4m3")
        self.all_pass(LATENTS.replace("name: ", "name: rounded-"), "E4M3_PROBABILITY",
                      settings=(*save, *asked))  # fmt: skip
        opinion = subprocess.run(
            [sys.executable, "-B", ROOT / "scripts" / "second_opinion.py", self.dir / "saved"],
            capture_output=True, text=True, timeout=TIME_LIMIT_S)  # fmt: skip
        self.assertEqual(opinion.returncode, 0, opinion.stdout + opinion.stderr)
        self.assertIn("4 passed", opinion.stdout)

    def test_explain_says_what_it_is_given(self):
        self.write("latents.yaml", LATENTS)
        shown = self.expect(0, "explain", "latents.yaml", "--device", "cpu", "--plugin", MLA,
                            "--backend", "RIGHT", *FP8).out  # fmt: skip
        self.assertRegex(shown, r"form +latent, all requests")
        self.assertRegex(shown, r"query +fp8_e4m3")


class Refusals(MlaPluginTest):
    def reasons(self, scenario, backend, *settings):
        result = self.run_mla(scenario, backend, settings=settings, code=3)[backend]
        self.assertEqual(result["status"], "unsupported")
        return words_only(result["reasons"])

    def test_what_is_not_declared_is_named(self):
        declared = "which the plugin does not declare"
        self.assertEqual(self.reasons(LATENTS, "PLAIN", *FP8),
                         [f"needs ATTNBENCH_FP8_KV, {declared}"])  # fmt: skip
        self.assertEqual(self.reasons(SPARSE, "PLAIN"), [f"needs ATTNBENCH_MLA_TOPK, {declared}"])
        self.assertEqual(self.reasons(SPARSE, "PLAIN", "--set", "kv_cache.dtype=fp8_ds_mla"),
                         [f"needs ATTNBENCH_MLA_TOPK, {declared}",
                          f"needs ATTNBENCH_MLA_DS_KV, {declared}"])  # fmt: skip
        e4m3 = ("--set", "attention.probability_dtype=fp8_e4m3")
        self.assertEqual(self.reasons(LATENTS, "FP8", *FP8, *e4m3),
                         [f"needs ATTNBENCH_FP8_PROBABILITY, {declared}"])  # fmt: skip
        for backend, settings in (("WIDE_QUERY", FP8), ("RIGHT", ())):
            self.assertEqual(self.reasons(LATENTS, backend, *settings, *e4m3),
                             ["e4m3 P without fp8 query, key and value"])  # fmt: skip
        fp8_query = ("--set", "attention.query_dtype=fp8_e4m3")
        self.assertEqual(self.reasons(LATENTS, "WIDE_QUERY", *FP8, *fp8_query),
                         [f"needs ATTNBENCH_FP8_QUERY, {declared}"])  # fmt: skip

    def test_an_fp8_query_is_refused_where_none_is_handed_over(self):
        asked = ("--set", "attention.query_dtype=fp8_e4m3")
        self.all_pass(LATENTS, "RIGHT", settings=(*FP8, *asked))
        for scenario, backend, settings in (
            (LATENTS, "RIGHT", ()),
            (SPARSE, "RIGHT", FP8),
            (SPARSE, "RIGHT", ("--set", "kv_cache.dtype=fp8_ds_mla")),
            (SPARSE, "ONLY_DS_MLA", ("--set", "kv_cache.dtype=fp8")),
        ):
            with self.subTest(backend=backend, settings=settings):
                self.assertEqual(self.reasons(scenario, backend, *settings, *asked), ["fp8 query"])

    def test_fp8_as_another_word_for_fp8_ds_mla_has_its_size_and_type(self):
        words = ["fp8_ds_mla needs kv_lora_rank 512, qk_rope_head_dim 64 and bfloat16"]
        small = SPARSE.replace("kv_lora_rank: 512", "kv_lora_rank: 128")
        exchanged = SPARSE.replace("kv_lora_rank: 512", "kv_lora_rank: 448")
        exchanged = exchanged.replace("qk_rope_head_dim: 64", "qk_rope_head_dim: 128")
        half = SPARSE.replace("bfloat16", "float16")
        for scenario in (small, exchanged, half):
            with self.subTest(scenario=scenario):
                found = self.reasons(scenario, "ONLY_DS_MLA", "--set", "kv_cache.dtype=fp8")
                self.assertEqual(found, words)

    def test_ranks_other_types_and_the_plugins_own_words(self):
        self.assertEqual(self.reasons(LATENTS, "RIGHT", "--set", "dcp.world_size=2"),
                         ["DCP not supported"])  # fmt: skip
        self.assertEqual(self.reasons(LATENTS, "ONLY_DECODES"), ["more than one query token"])
        self.all_pass(LATENTS.replace("2q1s70_q1s130_q5s100_q30", "3q1s70"), "ONLY_DECODES")
        self.assertEqual(self.reasons(LATENTS, "RIGHT", "--set", "attention.dtype=float16"),
                         ["dtype not supported"])  # fmt: skip
        self.assertEqual(self.reasons(LATENTS, "RIGHT", "--set", "attention.dtype=float32"),
                         ["float32 latents are not handed to plugins"])  # fmt: skip


class Conventions(MlaPluginTest):
    def test_base_and_empty_rows_are_converted_and_a_wrong_declaration_is_named(self):
        self.all_pass(LATENTS, "BASE_2", "PLUS_INF", "TURNED")
        self.all_pass(LATENTS, "TURNED", settings=("--set", "mla.q_pad_num_heads=16"))
        self.incorrect(LATENTS, "SAYS_TURNED", "lse[")
        self.incorrect(LATENTS, "SAYS_NATURAL", "LSE is in base 2, declared natural")
        self.incorrect(LATENTS, "SAYS_BASE_2", "LSE is natural, declared base 2")
        for backend, result in self.all_pass(SPARSE, "RIGHT", "BASE_2", "PLUS_INF",
                                             settings=NO_KEYS).items():  # fmt: skip
            self.assertEqual(result["lse_error"]["inf_count"], 4 * 38, backend)
        self.incorrect(SPARSE, "SAYS_MINUS_INF", "LSE of rows that see no key is +inf, declared -inf",
                       settings=NO_KEYS)  # fmt: skip


class FaultyOnes(MlaPluginTest):
    def test_wrong_attention_is_incorrect(self):
        self.incorrect(LATENTS, "NO_ROPE", "output[")
        # The slot behind the last key holds NaN.
        self.incorrect(LATENTS, "READS_PAST_END", "NaN")
        self.incorrect(LATENTS, "NO_QUERY_SCALE", "output[", settings=FP8)
        self.incorrect(LATENTS, "NO_KEY_SCALE", "output[", settings=FP8)
        self.incorrect(SPARSE, "REPEATS_ONCE", "output[", settings=LISTS)

    @thorough
    def test_what_is_remembered_is_incorrect(self):
        for settings in ((), FP8):
            self.incorrect(LATENTS, "REMEMBERS", "a run with the query negated gave the same output",
                           settings=settings)  # fmt: skip
            self.incorrect(LATENTS, "REMEMBERS_CACHE", "remembers earlier values", settings=settings)
        self.incorrect(SPARSE, "REMEMBERS_CACHE", "remembers earlier values",
                       settings=("--set", "kv_cache.dtype=fp8_ds_mla"))  # fmt: skip
        for settings in ((), LISTS, ("--set", "kv_cache.dtype=fp8_ds_mla")):
            self.incorrect(SPARSE, "REMEMBERS_LISTS", "output[", settings=settings)
        self.incorrect(SPARSE, "REMEMBERS",
                       "a run with the query negated and half of every list gave the same output")
        self.incorrect(LATENTS, "REMEMBERS_LATER", "timed sample ", timing=True)

    @thorough
    def test_a_quantised_output_is_negated_with_its_input(self):
        for type in ("fp8_group64", "nvfp4"):
            wide = LATENTS.replace("v_head_dim: 32", "v_head_dim: 64")
            settings = ("--set", f"output_quant.type={type}")
            self.all_pass(wide, "RIGHT", settings=settings)
            self.incorrect(wide, "REMEMBERS_CACHE", "remembers earlier values", settings=settings)

    def test_changed_inputs_are_named(self):
        self.incorrect(LATENTS, "WRITES_QUERY", "query was changed at [0, 1, 0]: it is an input")
        self.incorrect(SPARSE, "WRITES_SLOTS", "topk_slots was changed at [0, 1]: it is an input")
        self.incorrect(LATENTS, "WRITES_CACHE", "cache write: ")

    def test_writes_past_a_buffer_name_it(self):
        for backend, words in (
            ("OVERRUN_OUTPUT", "out-of-bounds write: output: 1 byte past its end"),
            ("OVERRUN_LSE", "out-of-bounds write: lse: 4 bytes past its end"),
            ("OVERRUN_WORKSPACE", "out-of-bounds write: MLA workspace: 1 byte past its end"),
        ):
            result = self.run_mla(LATENTS, backend, code=4)[backend]
            self.assertEqual(result["status"], "error")
            self.assertIn(words, result["reasons"][0])
            self.assertIn(f"run() of {backend}", result["reasons"][0])


if __name__ == "__main__":
    unittest.main()
