"""Operations that users' libraries get by the names of their operands, through the real binary: each
of them runs, wrong ones are found, and of equal logits any choice is right."""

import sys
import unittest

from plugins import PLUGINS, PluginTest
from tool import thorough, words_only

NAMED = PLUGINS / "libnamed_ops_plugin.so"
BATCH = "batch: 3q1s70_q5s33_q48\n"
TIMING = "timing: {samples: 12, min_time_ms: 1, timeout_s: 4, l2: warm}\n"
HEADS = "attention: {type: op, num_heads: 4, num_kv_heads: 2, head_size: 64, dtype: DTYPE}\n"
LATENTS = """\
attention: {type: op, num_heads: 3, num_kv_heads: 1, head_size: 48, v_head_size: 32, dtype: DTYPE}
mla: {kv_lora_rank: 64, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 32}
"""


def scenario(name, op, attention=HEADS, more="", dtype="bfloat16"):
    head = attention.replace("DTYPE", dtype)
    return f"schema: 1\nname: {name}\n{head}op: {op}\n{more}{BATCH}{TIMING}"


INDEX = "attention: {type: op, num_heads: 2, num_kv_heads: 1, head_size: 64, dtype: DTYPE}\n"
CASES = {
    "write of latents": scenario("w", "{name: reshape_and_cache}", LATENTS),
    "write of int8": scenario("i", "{name: reshape_and_cache, cache_layout: IX}",
                              more="kv_cache: {int8_level: 1}\n"),
    "write of int8 level 2": scenario("j", "{name: reshape_and_cache, cache_layout: IX}",
                                      more="kv_cache: {int8_level: 2}\n"),
    "write of token heads": scenario("t", "{name: reshape_and_cache, cache_layout: TR}",
                                     more="kv_cache: {dtype: fp8_per_token_head}\n"),
    "gather": scenario("g", "{name: gather}", LATENTS),
    "raw gather": scenario("r", "{name: gather, raw: true}", LATENTS),
    "rope": scenario("p", "{name: rope}"),
    "rope of pairs": scenario("q", "{name: rope, rope_style: gptj, rotary_dim: 32}"),
    "rope of latents": scenario("m", "{name: rope}", LATENTS),
    "rope and cache": scenario("c", "{name: rope_and_cache}"),
    "rope and cache of latents": scenario("d", "{name: rope_and_cache}", LATENTS),
    "quantize": scenario("z", "{name: quantize}", more="kv_cache: {q_scale: 0.01}\n"),
    "dcp correct": scenario("x", "{name: dcp_correct}", more="dcp: {world_size: 2, comm: a2a}\n",
                            dtype="float32"),
    "output quant": scenario("o", "{name: output_quant}",
                             more="output_quant: {type: fp8_static, scale: 0.02}\n"),
    "mm quant": scenario("e", "{name: mm_quant}"),
    "index keys": scenario("k", "{name: index_key_cache}", INDEX),
    "index keys of f32 scales": scenario("s", "{name: index_key_cache}", INDEX,
                                         more="mla: {index_ue8m0: false}\n"),
    "index logits": scenario("l", "{name: index_logits}", INDEX, more="mla: {index_n_heads: 5}\n"),
    "index topk": scenario("n", "{name: index_topk}", INDEX, more="mla: {sparse_topk: 128}\n"),
}  # fmt: skip
# Fewer keys are chosen than there are.
LONG = CASES["index topk"].replace(BATCH, "batch: 2q1s400_q5s300\n")


class NamedTest(PluginTest):
    def run_named(self, text, *names, options=("--no-timing",), code=0):
        chosen = [word for name in names for word in ("--backend", name)]
        return self.run_plugin(text, NAMED, *chosen, *options, code=code)

    def passes(self, text, *names, options=("--no-timing",)):
        results = self.run_named(text, *names, options=options)
        for name in names:
            self.assertEqual(results[name]["status"], "passed", (name, results[name]["reasons"]))
        return results


class Right(NamedTest):
    def test_every_operation_runs_and_passes_beside_ours(self):
        for name, text in CASES.items():
            with self.subTest(name):
                self.passes(text, "OPS", "RIGHT")

    def test_they_are_timed_with_other_values_in_each_sample(self):
        self.are_timed("rope and cache", "index topk", "gather")

    @thorough
    def test_others_are_timed_with_other_values_in_each_sample(self):
        self.are_timed("write of latents", "output quant", "dcp correct")

    def are_timed(self, *names):
        for name in names:
            with self.subTest(name):
                results = self.passes(CASES[name], "OPS", "RIGHT", options=())
                ours, mine = results["OPS"]["throughput"], results["RIGHT"]["throughput"]
                self.assertEqual(ours["bytes"], mine["bytes"])

    def test_of_equal_logits_any_choice_and_any_order_is_right(self):
        self.passes(LONG, "OPS", "RIGHT", "LAST_OF_EQUALS", options=())

    def test_what_is_not_declared_never_reaches_the_plugin(self):
        undeclared = "needs ATTNBENCH_{}, which the plugin does not declare".format
        for case, name, *reasons in (
            ("gather", "ONLY_ROPE", "operation gather not supported"),
            ("gather", "PLAIN", undeclared("V_HEAD_SIZE"), undeclared("LATENTS")),
            ("write of int8", "PLAIN", undeclared("INT8_CODES")),
        ):
            result = self.run_named(CASES[case], name, code=3)[name]
            self.assertEqual(words_only(result["reasons"]), reasons)


class Wrong(NamedTest):
    def incorrect(self, text, name, *parts, options=("--no-timing",)):
        result = self.run_named(text, name, options=options, code=1)[name]
        self.assertEqual(result["status"], "incorrect", (name, result["reasons"]))
        for part in parts:
            self.assertIn(part, "\n".join(result["reasons"]))

    def test_a_token_that_is_left_out_is_found_in_each_operation(self):
        for name, text in CASES.items():
            if name in ("write of latents", "write of int8", "write of int8 level 2",
                        "write of token heads", "rope and cache", "rope and cache of latents",
                        "index keys", "index keys of f32 scales"):
                continue  # their last row is padding, at position 0
            with self.subTest(name):
                self.incorrect(text, "SKIPS_LAST_TOKEN")

    def test_results_of_the_first_run_are_not_those_of_the_next(self):
        for name, text in CASES.items():
            with self.subTest(name):
                self.incorrect(text, "REMEMBERS")

    def test_results_that_are_kept_later_are_found_among_timed_samples(self):
        # Not a gather, whose values lie in a cache that every sample has; nor a choice of as many keys
        # as there are, which no logit changes.
        self.are_found_later("rope", "index logits", "write of token heads")
        self.incorrect(LONG, "REMEMBERS_LATER", "timed sample", "is chosen, position", options=())

    @thorough
    def test_results_of_other_operations_that_are_kept_later_are_found_too(self):
        self.are_found_later("rope and cache", "quantize", "write of latents", "write of int8 level 2")

    def are_found_later(self, *names):
        for name in names:
            with self.subTest(name):
                self.incorrect(CASES[name], "REMEMBERS_LATER", "timed sample", options=())

    def test_operands_stay_as_they_are(self):
        self.incorrect(CASES["quantize"], "WRITES_OPERAND", "was changed at")

    def test_a_choice_of_other_keys_is_named(self):
        self.incorrect(LONG, "SMALLEST_LOGITS", "is chosen, position", "is not")
        self.incorrect(LONG, "TWICE", "which is chosen already")


if __name__ == "__main__":
    sys.exit(unittest.main())
