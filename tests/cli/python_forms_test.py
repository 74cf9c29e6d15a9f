"""Forms of attention beside the plain one, in the hands of Python classes, through the real binary: the
prefills of MLA over several chunks, ranks, int8, scales by token and head, encoders, and operations with
operands by name."""

import unittest

from pythons import NumpyTest
from tool import ROOT, thorough

TIMING = "timing: {samples: 6, min_time_ms: 1, timeout_s: 4, l2: warm}\n"
# A context in three chunks, of which one request has two, behind decodes.
PREFILL = f"""\
schema: 1
name: prefill
attention: {{type: mla, num_heads: 2, dtype: float16}}
mla: {{kv_lora_rank: 64, qk_nope_head_dim: 128, qk_rope_head_dim: 64, v_head_dim: 128,
      workspace_tokens: 128}}
kv_cache: {{block_size: 64}}
batch: 2q1s70_q20s170_q9s100
{TIMING}"""
HEADS = "{num_heads: 4, num_kv_heads: 2, head_size: 64, dtype: float16}"
DECODER = f"schema: 1\nname: d\nattention: {HEADS}\nbatch: 3q1s90_q2s3_q7s40\n{TIMING}"
RANKS = DECODER + "dcp: {world_size: 4, comm: COMM}\n"
ENCODER = f"""\
schema: 1
name: vit
attention: {{type: mm_encoder, num_heads: 4, num_kv_heads: 2, head_size: 72, dtype: float16}}
batch: q60_q33_q40
{TIMING}"""
LATENTS = """\
{type: op, num_heads: 3, num_kv_heads: 1, head_size: 48, v_head_size: 32, dtype: float16}
mla: {kv_lora_rank: 64, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 32}"""


def operation(name, attention="{type: op, num_heads: 4, head_size: 64, dtype: float32}", more=""):
    return (f"schema: 1\nname: o\nattention: {attention}\nop: {{name: {name}}}\n{more}"
            f"batch: 3q1s70_q5s33_q48\n{TIMING}")  # fmt: skip


CORRECT = operation("dcp_correct", more="dcp: {world_size: 2, comm: a2a}\n")
SLICES = operation("metadata")


class FormsTest(NumpyTest):
    def setUp(self):
        super().setUp()
        self.write("mine.py", (ROOT / "tests" / "python" / "numpy_forms.py").read_text())

    def passes(self, scenario, *names):
        """Timed samples are judged as well."""
        results = self.run_classes(scenario, *names, options=())
        for name in names:
            self.assertEqual(results[name]["status"], "passed", (name, results[name]["reasons"]))
            self.assertTrue(results[name]["timing"]["checked_samples"])
        return results

    def incorrect(self, scenario, name):
        result = self.run_classes(scenario, name, code=1)[name]
        self.assertEqual(result["status"], "incorrect", result["reasons"])
        return "\n".join(result["reasons"])


class Right(FormsTest):
    @thorough
    def test_prefills_of_mla_over_no_and_three_chunks(self):
        self.prefills_pass("q20_q9", "2q1s70_q20s170_q9s100")

    @thorough
    def test_prefills_of_mla_over_two_and_more_chunks(self):
        self.prefills_pass("q20s60_q9s90", "q20s600")

    def prefills_pass(self, *batches):
        for batch in batches:
            with self.subTest(batch):
                results = self.passes(PREFILL.replace("2q1s70_q20s170_q9s100", batch), "Prefill",
                                      "PrefillReturned")  # fmt: skip
                for result in results.values():
                    self.assertLess(result["lse_error"]["max_abs"], 1e-3)

    def test_ranks(self):
        for comm in ("ag_rs", "a2a"):
            with self.subTest(comm):
                self.passes(RANKS.replace("COMM", comm), "Rank", "RankReturned")

    @thorough
    def test_int8_and_scales_by_token_and_head(self):
        for level in (1, 2):
            (result,) = self.passes(DECODER + f"kv_cache: {{int8_level: {level}}}\n", "Int8").values()
            self.assertIsNotNone(result["quantization_error"])
        self.passes(DECODER + "kv_cache: {dtype: int8_per_token_head}\n", "TokenHead")

    def test_encoders(self):
        self.passes(ENCODER, "Encoder", "EncoderReturned")

    def test_operations_with_operands_by_name(self):
        self.passes(operation("gather", LATENTS), "Gather")
        self.passes(operation("rope"), "Rope")

    @thorough
    def test_more_operations_with_operands_by_name(self):
        self.passes(CORRECT, "Correct")
        self.passes(SLICES, "Slices")


class Wrong(FormsTest):
    def test_what_is_forgotten_is_noticed(self):
        self.assertIn("lse of request", self.incorrect(PREFILL, "PrefillWithoutLse"))
        words = self.incorrect(RANKS.replace("COMM", "ag_rs"), "RankWithoutTheLast")
        self.assertIn("rank 3", words)
        self.assertIn("output[", self.incorrect(CORRECT, "CorrectUnweighted"))
        self.assertIn("prefill_query_start_loc[0]", self.incorrect(SLICES, "SlicesOfTheBatch"))


if __name__ == "__main__":
    unittest.main()
