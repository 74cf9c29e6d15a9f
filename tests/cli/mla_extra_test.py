"""FlashMLA's operands beside lists of keys: sinks, the length of a list, and a second cache, from the
scenario through the real binary, held against numpy."""

import unittest

from tool import ToolTest, words_only

SCENARIO = """\
schema: 1
name: lists
attention: {type: mla, num_heads: 4, dtype: bfloat16}
mla: {kv_lora_rank: 448, qk_nope_head_dim: 32, qk_rope_head_dim: 64, v_head_dim: 32, sparse_topk: 128}
kv_cache: {block_size: 64, dtype: fp8_model1_mla}
batch: 2q1s150_q3s140
backends: [FLASHMLA_SPARSE]
timing: {samples: 6, min_time_ms: 1, timeout_s: 6, l2: warm}
"""
SINKS = ("--set", "attention.sinks=[0.5, -.inf, 3, .inf]")
LENGTHS = ("--set", "mla.sparse.topk_length=[100, 0, 7]")
EXTRA = ("--set", "mla.sparse.extra_topk=128", "--set", "mla.sparse.extra_keys=90", "--set",
         "mla.sparse.extra_block_size=16")
EXTRA_LENGTHS = ("--set", "mla.sparse.extra_topk_length=[0, 0, 60]")
ALL = (*SINKS, *LENGTHS, *EXTRA, *EXTRA_LENGTHS)


class MlaExtraTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.write("lists.yaml", SCENARIO)

    def run_lists(self, *options, code=0):
        return list(self.results("lists.yaml", "--device", "cpu", *options, code=code).values())

    def test_each_of_them_and_all_together_pass(self):
        for options in (SINKS, LENGTHS, EXTRA, (*EXTRA, *EXTRA_LENGTHS), ALL):
            for dtype in ("fp8_model1_mla", "auto"):
                with self.subTest(options=options, dtype=dtype):
                    (result,) = self.run_lists(*options, "--no-timing", "--set",
                                             f"kv_cache.dtype={dtype}")
                    self.assertEqual(result["status"], "passed", result["reasons"])

    def test_the_entries_of_656_bytes_have_them_too(self):
        sizes = ("--set", "mla.kv_lora_rank=512", "--set", "kv_cache.dtype=fp8_ds_mla")
        (result,) = self.run_lists(*ALL, *sizes, "--no-timing")
        self.assertEqual(result["status"], "passed", result["reasons"])

    def test_timed_samples_are_judged(self):
        (result,) = self.run_lists(*ALL)
        self.assertEqual(result["status"], "passed", result["reasons"])
        names = [step["name"] for step in result["timing"]["steps"]]
        for name in ("attend_extra", "merge_extra", "add_sinks"):
            self.assertIn(name, names)

    def test_saved_tensors_hold_what_the_definition_makes_of_them(self):
        """A row that sees no key is 0 with an empty LSE; a sink of +inf makes 0, one of -inf nothing."""
        import numpy
        from opinion import safetensors_file

        self.run_lists(*ALL, "--no-timing", "--save-tensors", "saved")
        (path,) = (self.dir / "saved").glob("*.safetensors")
        tensors, _ = safetensors_file.read(path)
        output, lse = tensors["output"].raw, tensors["lse"].raw
        self.assertEqual(output.shape[:2], (5, 4))
        self.assertFalse(output[1].any())  # neither of its lists counts
        self.assertTrue(numpy.isneginf(lse[:, 1]).all())
        self.assertFalse((output[:, 3] & 0x7FFF).any())  # bits of bfloat16
        self.assertTrue(numpy.isfinite(lse[3, 2:]).all())
        self.assertEqual(tensors["topk_length"].raw.tolist(), [100, 0, 7, 7, 7])
        self.assertTrue((tensors["topk_indices"].raw[0, 100:] == -1).all())
        self.assertEqual(tensors["extra_topk_length"].raw.tolist(), [0, 0, 60, 60, 60])
        self.assertEqual(tensors["extra_kv_c"].raw.shape, (270, 448))

    def test_others_refuse_them_by_name(self):
        others = ("--assume-sm", "100", "--backend", "FLASHINFER_MLA_SPARSE", "--set",
                  "mla.kv_lora_rank=512", "--set", "mla.qk_nope_head_dim=128", "--set",
                  "kv_cache.dtype=auto")  # fmt: skip
        (result,) = self.run_lists(*others, *ALL, "--no-timing", code=3)
        self.assertEqual(words_only(result["reasons"]),
                         ["attention sinks not supported", "topk_length not supported",
                          "a second cache not supported"])  # fmt: skip

    def test_contradictions_name_the_key(self):
        for setting, words in (
            ("mla.sparse.topk_length=[1, 2]", "mla.sparse.topk_length: expected one integer, or 3"),
            ("mla.sparse.topk_length=129", "mla.sparse.topk_length: expected at most 128"),
            ("mla.sparse.extra_topk=100", "mla.sparse.extra_topk: expected a multiple of 128"),
            ("mla.sparse.extra_keys=5", "read only with mla.sparse.extra_topk"),
        ):
            error = self.expect(2, "validate", "lists.yaml", "--set", setting).err
            self.assertIn(words, error)
        error = self.expect(2, "validate", "lists.yaml", "--set", "mla.sparse.extra_topk=128").err
        self.assertIn("mla.sparse.extra_keys: expected how many keys", error)
        error = self.expect(2, "validate", "lists.yaml", *LENGTHS, "--set",
                            "mla.sparse.indices=indexer").err  # fmt: skip
        self.assertIn("mla.sparse.indices: expected random with mla.sparse.topk_length", error)

    def test_explain_says_what_is_attended(self):
        text = self.expect(0, "explain", "lists.yaml", "--device", "cpu", *ALL).out
        self.assertIn("second cache", text)
        self.assertIn("90 keys a request", text)
        self.assertIn("list lengths", text)
        self.assertIn("sinks", text)


if __name__ == "__main__":
    unittest.main()
