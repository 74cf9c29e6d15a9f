"""Users' kernels for the prefills of MLA, through the real binary: called for the new tokens and for
each chunk of the context, judged as a part of the whole step."""

import sys
import unittest

from plugins import PLUGINS, PluginTest
from tool import words_only

PREFILL = PLUGINS / "libmla_prefill_plugin.so"
NEW = """\
schema: 1
name: new
attention: {type: mla, num_heads: 3, dtype: bfloat16}
mla: {kv_lora_rank: 128, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 24}
kv_cache: {block_size: 64}
batch: q30_q17
timing: {samples: 12, min_time_ms: 1, timeout_s: 4, l2: warm}
"""
# Decodes in front, and a context in three chunks of which one request has only two.
CHUNKS = NEW.replace("name: new", "name: chunks").replace(
    "v_head_dim: 24}", "v_head_dim: 24, workspace_tokens: 128}"
).replace("q30_q17", "2q1s70_q20s170_q9s100")


class PrefillTest(PluginTest):
    def run_prefill(self, text, *names, options=("--no-timing",), settings=(), code=0):
        chosen = [word for name in names for word in ("--backend", name)]
        set_words = [word for setting in settings for word in ("--set", setting)]
        return self.run_plugin(text, PREFILL, *chosen, *set_words, *options, code=code)


class Right(PrefillTest):
    def passes(self, text, *names, **more):
        results = self.run_prefill(text, *names, **more)
        for name in names:
            self.assertEqual(results[name]["status"], "passed", (name, results[name]["reasons"]))
        return results

    def test_new_tokens_alone(self):
        self.passes(NEW, "MLA", "RIGHT", "ONLY_CAUSAL")

    def test_chunks_of_a_context_behind_decodes(self):
        results = self.passes(CHUNKS, "MLA", "RIGHT", "PLUS_INF", options=())
        names = [step["name"] for step in results["RIGHT"]["timing"]["steps"]]
        self.assertIn("attend_new_tokens", names)
        self.assertGreaterEqual(names.count("attend_context"), 2)
        self.assertLess(results["RIGHT"]["lse_error"]["max_abs"], 1e-2)
        flops = [results[name]["throughput"]["flops"] for name in ("MLA", "RIGHT")]
        self.assertEqual(*flops)

    def test_every_form_of_the_cache_and_of_the_output(self):
        for settings in (("kv_cache.dtype=fp8", "kv_cache.k_scale=0.02"),
                         ("output_quant.type=fp8_static", "output_quant.scale=0.02"),
                         ("mla.v_pad=on",)):  # fmt: skip
            with self.subTest(settings):
                self.passes(CHUNKS, "MLA", "RIGHT", settings=settings)


class Refused(PrefillTest):
    def reasons(self, text, name, *settings):
        result = self.run_prefill(text, name, settings=settings, code=3)[name]
        self.assertEqual(result["status"], "unsupported")
        return words_only(result["reasons"])

    def test_with_the_reason(self):
        self.assertEqual(self.reasons(CHUNKS, "ONLY_CAUSAL"),
                         ["needs ATTNBENCH_NON_CAUSAL, which the plugin does not declare"])  # fmt: skip
        self.assertEqual(self.reasons(NEW.replace("q30_q17", "2q1s70"), "RIGHT"),
                         ["no prefills in the batch"])  # fmt: skip
        self.assertEqual(self.reasons(CHUNKS, "RIGHT", "dcp.world_size=3", "mla.workspace_tokens=192"),
                         ["DCP not supported"])  # fmt: skip


class Wrong(PrefillTest):
    def incorrect(self, text, name, *parts, options=("--no-timing",)):
        result = self.run_prefill(text, name, options=options, code=1)[name]
        self.assertEqual(result["status"], "incorrect", (name, result["reasons"]))
        for part in parts:
            self.assertIn(part, "\n".join(result["reasons"]))

    def test_faults_in_the_context_and_in_the_new_tokens(self):
        for name in ("IGNORES_CAUSALITY", "SKIPS_CONTEXT", "FORGETS_LSE_OF_CHUNK", "BASE_2",
                     "REMEMBERS", "ONE_STATE"):  # fmt: skip
            with self.subTest(name):
                self.incorrect(CHUNKS, name)

    def test_outputs_that_are_kept_are_found_among_timed_samples(self):
        self.incorrect(CHUNKS, "REMEMBERS_LATER", "timed sample", options=())

    def test_inputs_stay_as_they_are(self):
        self.incorrect(NEW, "WRITES_QUERY", "query was changed at")
        self.incorrect(NEW, "WRITES_LENGTHS", "seq_lens was changed at")


if __name__ == "__main__":
    sys.exit(unittest.main())
