"""The indexer of sparse MLA through the real binary: its operations, and a step that chooses its own
keys."""

import sys
import unittest

from tool import ToolTest

STEP = """\
schema: 1
name: step
attention: {type: mla, num_heads: 2, dtype: bfloat16}
mla: {qk_nope_head_dim: 32, v_head_dim: 32, sparse_topk: 128, sparse: {indices: indexer}, index_n_heads: 4}
kv_cache: {block_size: 64}
batch: 2q1s300_q30s200_q5s5
backends: [FLASHMLA_SPARSE, REFERENCE]
"""
TOPK = """\
schema: 1
name: topk
attention: {type: op, num_heads: 2, head_size: 64, dtype: bfloat16}
op: {name: index_topk}
mla: {sparse_topk: 128}
batch: 2q1s300
"""


class Step(ToolTest):
    def test_it_chooses_its_keys_in_steps_of_its_own(self):
        self.write("step.yaml", STEP + "timing: {samples: 3, min_time_ms: 1, timeout_s: 2, l2: warm}\n")
        results = self.results("step.yaml", "--device", "cpu")
        for id, result in results.items():
            self.assertEqual(result["status"], "passed", (id, result["reasons"]))
        sparse = next(r for id, r in results.items() if id.endswith("FLASHMLA_SPARSE"))
        names = [step["name"] for step in sparse["timing"]["steps"]]
        for name in ("write_index_cache", "index_logits", "index_topk"):
            self.assertIn(name, names)
        self.assertLess(names.index("index_topk"), min(
            i for i, name in enumerate(names) if name.startswith("attend_sparse")))  # fmt: skip

    def test_lists_are_saved_and_ascend(self):
        from opinion import safetensors_file

        self.write("step.yaml", STEP)
        self.results("step.yaml", "--device", "cpu", "--no-timing", "--save-tensors", "t")
        saved = next(path for path in (self.dir / "t").iterdir() if "FLASHMLA_SPARSE" in path.name)
        tensors, _ = safetensors_file.read(saved)
        lists = tensors["topk_indices"].raw
        self.assertEqual(lists.shape, (37, 128))
        first = lists[0]
        self.assertTrue((first[1:] > first[:-1]).all() and first[0] >= 0)
        # The token at position 0 of a prompt sees itself alone.
        self.assertEqual(sorted(lists[32].tolist())[-2:], [-1, 0])

    def test_what_contradicts_it_is_refused_with_its_line(self):
        for setting, words in (
            ("mla.sparse.valid=0.5", "mla.sparse.indices: expected random with mla.sparse.valid"),
            ("mla.index_ue8m0=false", "mla.index_ue8m0: expected true with mla.sparse.indices indexer"),
            ("mla.index_n_heads=4096", "mla.index_n_heads: expected at most 512 with indexer"),
        ):
            self.write("step.yaml", STEP)
            self.assertIn(words, self.expect(2, "validate", "step.yaml", "--set", setting).err)
        self.write("topk.yaml", TOPK.replace("mla: {sparse_topk: 128}\n", ""))
        self.assertIn("mla.sparse_topk: expected how many keys are chosen for op index_topk, found null",
                      self.expect(2, "validate", "topk.yaml").err)  # fmt: skip

    def test_explain_names_what_an_engine_calls(self):
        self.write("topk.yaml", TOPK)
        self.assertIn("top_k_per_row", self.expect(0, "explain", "topk.yaml", "--device", "cpu").out)


if __name__ == "__main__":
    sys.exit(unittest.main())
