"""int8 attention, the ranks of a decode-context group and vision encoders in e4m3, in the hands of
users' libraries, through the real binary."""

import unittest

from plugins import PLUGINS, PluginTest
from tool import thorough, words_only

FORMS = PLUGINS / "libforms_plugin.so"
TIMING = "timing: {samples: 6, min_time_ms: 1, timeout_s: 4, l2: warm}\n"
HEADS = "attention: {type: decoder, num_heads: 4, num_kv_heads: 2, head_size: 64, dtype: bfloat16}\n"
INT8 = f"schema: 1\nname: int8\n{HEADS}kv_cache: {{int8_level: LEVEL}}\nbatch: q20_3q1s70\n{TIMING}"
DECODES = INT8.replace("q20_3q1s70", "4q1s70_q2s33")
# A rank without a key: the request of 3 tokens has 2 in its context.
RANKS = f"schema: 1\nname: dcp\n{HEADS}dcp: {{world_size: 4, comm: COMM}}\nbatch: 3q1s90_q2s3_q7s40\n{TIMING}"
ENCODER = f"""\
schema: 1
name: vit
attention: {{type: mm_encoder, num_heads: 4, num_kv_heads: 4, head_size: 72, dtype: bfloat16}}
mm_encoder: {{attn_dtype: fp8}}
batch: q60_q33_q40
{TIMING}"""
UNDECLARED = "needs ATTNBENCH_{}, which the plugin does not declare".format


class FormsTest(PluginTest):
    def run_forms(self, text, *names, options=(), code=0):
        chosen = [word for name in names for word in ("--backend", name)]
        return self.run_plugin(text, FORMS, *chosen, *options, code=code)

    def passes(self, text, *names, options=()):
        results = self.run_forms(text, *names, options=options)
        for name in names:
            self.assertEqual(results[name]["status"], "passed", (name, results[name]["reasons"]))
        return results

    def incorrect(self, text, *names):
        results = self.run_forms(text, *names, options=("--no-timing",), code=1)
        for name in names:
            self.assertEqual(results[name]["status"], "incorrect", name)
        return results

    def refused(self, text, name, *reasons, options=()):
        result = self.run_forms(text, name, options=("--no-timing", *options), code=3)[name]
        self.assertEqual(words_only(result["reasons"]), list(reasons))


class Int8(FormsTest):
    def test_both_levels_run_and_pass_beside_ours(self):
        self.both_levels_pass(INT8)

    @thorough
    def test_both_levels_pass_over_decodes(self):
        self.both_levels_pass(DECODES)

    def both_levels_pass(self, text):
        for level in ("1", "2"):
            with self.subTest(level=level):
                results = self.passes(text.replace("LEVEL", level), "FLASH_ATTN_IX", "RIGHT")
                for result in results.values():
                    self.assertIsNotNone(result["quantization_error"])

    def test_a_scale_that_is_forgotten_is_noticed(self):
        text = INT8.replace("LEVEL", "1")
        self.incorrect(text, "NO_QUERY_SCALE", "NO_KEY_SCALE", "NO_VALUE_SCALE", "REMEMBERS")

    def test_level_2_has_values_without_a_scale(self):
        self.passes(INT8.replace("LEVEL", "2"), "NO_VALUE_SCALE", options=("--no-timing",))

    def test_what_it_needs_is_asked_for(self):
        text = INT8.replace("LEVEL", "1")
        self.refused(text, "PLAIN", UNDECLARED("INT8_CODES"))
        self.refused(text, "INTERLEAVED", "int8 attention needs kv PAGED")
        self.refused(text, "RAGGED", "int8 attention needs kv PAGED")
        self.refused(text, "RIGHT", "attention sinks with int8 attention",
                     options=("--set", "attention.sinks=normal"))


class Ranks(FormsTest):
    def test_an_exchange_passes_beside_ours(self):
        self.exchanges_pass("ag_rs")

    @thorough
    def test_the_other_exchanges_pass_beside_ours(self):
        self.exchanges_pass("ag_ar", "a2a")

    def exchanges_pass(self, *comms):
        for comm in comms:
            with self.subTest(comm):
                text = RANKS.replace("COMM", comm)
                self.passes(text, "FLASH_ATTN", "RIGHT", "INTERLEAVED")

    def test_an_fp8_cache(self):
        text = RANKS.replace("COMM", "ag_rs") + "kv_cache: {dtype: fp8, k_scale: 0.02, v_scale: 0.01}\n"
        self.passes(text, "RIGHT", options=("--no-timing",))
        self.incorrect(text, "NO_KEY_SCALE")

    def test_a_rank_that_is_wrong_is_named(self):
        results = self.incorrect(RANKS.replace("COMM", "ag_rs"), "FORGETS_LAST_RANK",
                                 "SKIPS_LAST_KEY", "REMEMBERS")
        self.assertIn("rank 3", " ".join(results["FORGETS_LAST_RANK"]["reasons"]))

    def test_what_it_needs_is_asked_for(self):
        text = RANKS.replace("COMM", "ag_rs")
        self.refused(text, "PLAIN", UNDECLARED("DCP"))
        self.refused(text, "RAGGED", "the ranks of DCP need kv PAGED or PAGED_INTERLEAVED")
        self.refused(text, "WITHOUT_LSE", "the ranks of DCP need an LSE NATURAL, HT, EMPTY_MINUS_INF")
        for setting, reason in (
            ("attention.sliding_window=16", "DCP with a sliding window"),
            ("attention.sinks=normal", "DCP with sinks"),
            ("kv_cache.int8_level=1", "DCP with int8 attention"),
        ):
            self.refused(text, "RIGHT", reason, options=("--set", setting))


class Encoder(FormsTest):
    @thorough
    def test_codes_of_padded_heads_pass_beside_ours(self):
        self.passes(ENCODER, "MM_FLASHINFER", "RIGHT", "WITHOUT_LSE")

    def test_a_scale_that_is_forgotten_is_noticed(self):
        self.incorrect(ENCODER, "NO_QUERY_SCALE", "NO_KEY_SCALE", "NO_VALUE_SCALE", "REMEMBERS")

    def test_what_it_needs_is_asked_for(self):
        self.refused(ENCODER, "PLAIN", UNDECLARED("FP8_KV"), UNDECLARED("FP8_QUERY"))
        self.refused(ENCODER, "RIGHT", "scales by signed elements, which other signs change",
                     options=("--set", "mm_encoder.amax=signed"))


if __name__ == "__main__":
    unittest.main()
