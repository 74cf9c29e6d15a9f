"""Python classes on a GPU, through the real binary. Skipped, with the reason, where there is no GPU, or no
Python with torch for it.
"""

import unittest

from gpu_test import CASES, no_gpu
from pythons import PythonTest, python_with_torch

PREFIX = "attnbench.adapters."
FAULTY = """\
import torch
from attnbench.adapters.torch_sdpa import Math

class Waits(Math):
    def run(self):
        result = super().run()
        torch.cuda.current_stream().synchronize()
        return result

class OnOtherStream(Math):
    def run(self):
        self.side = getattr(self, "side", None) or torch.cuda.Stream()
        with torch.cuda.stream(self.side):
            self.tensors.output.copy_(torch.cat([part.flatten(0, 1) for part in super().run()]))
    def prepare(self, problem, tensors):
        super().prepare(problem, tensors)
        self.tensors = tensors

class Device(Math):
    def run(self):
        torch.cuda.set_device(torch.cuda.device_count() - 1)
        return super().run()
"""

# Single operations in torch: indices of a plan, sums without a loop.
OPERATIONS = """\
import torch

class Write:
    attention_types, operations, kv, features = ("op",), ("reshape_and_cache",), "paged", ()
    def prepare(self, problem, tensors):
        slots = tensors.slot_mapping[: problem.num_tokens]
        self.places = slots // problem.block_size, slots % problem.block_size
        self.count, self.tensors = problem.num_tokens, tensors
    def run(self):
        self.tensors.key_cache[self.places] = self.tensors.key[: self.count]
        self.tensors.value_cache[self.places] = self.tensors.value[: self.count]

class WriteWaits(Write):
    def run(self):
        super().run()
        torch.cuda.current_stream().synchronize()

class Merge:
    attention_types, operations, lse, features = ("op",), ("merge",), "natural", ()
    def prepare(self, problem, tensors):
        self.tensors = tensors
    def run(self):
        t = self.tensors
        lse = torch.logaddexp(t.prefix_lse, t.suffix_lse)
        parts = ((t.prefix_output, t.prefix_lse), (t.suffix_output, t.suffix_lse))
        weights = [(own - lse).exp().nan_to_num(0.0).T[..., None] for _, own in parts]
        t.output.copy_(sum(part.float() * weight for (part, _), weight in zip(parts, weights)))
        t.lse.copy_(lse)

class MergeBase2(Merge):
    lse = "base_2"
"""
CACHE_AND_MERGE = """\
schema: 1
name: operations
attention: {type: op, num_heads: 8, num_kv_heads: 2, head_size: 64, dtype: bfloat16}
sweep:
  op.name: [reshape_and_cache, merge]
  op.tokens: [70]
timing: {samples: 3, min_time_ms: 1, timeout_s: 2}
"""


@unittest.skipIf(no_gpu(), no_gpu())
class PythonOnGpu(PythonTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.python = python_with_torch("torch.cuda")

    def run_on_gpu(self, *classes, options=(), code=0):
        self.write("cases.yaml", CASES)
        chosen = [word for name in classes for word in ("--backend", f"python:{name}")]
        results = self.results("cases.yaml", "--device", "cuda", *chosen, *options, code=code)
        return {tuple(id.split("/")[1:]): result for id, result in results.items()}

    def test_torch_passes_and_is_timed_in_the_stream_and_in_a_graph(self):
        names = ("torch_sdpa:Math", "torch_sdpa:Flash", "torch_sdpa:Cudnn", "torch_flex:Flex")
        for mode in ("stream", "graph"):
            results = self.run_on_gpu(*(PREFIX + name for name in names),
                                      options=("--set", f"timing.mode={mode}"))  # fmt: skip
            self.assertEqual(len(results), 2 * len(names))
            for id, result in results.items():
                self.assertEqual(result["status"], "passed", (id, result["reasons"]))
                self.assertEqual(result["timing"]["mode"], mode)
                self.assertTrue(result["throughput"]["gbps"] > 0)

    def test_single_operations_pass_in_the_stream_and_in_a_graph_and_a_wait_is_noticed(self):
        self.write("mine.py", OPERATIONS)
        self.write("operations.yaml", CACHE_AND_MERGE)
        chosen = [word for name in ("Write", "Merge", "WriteWaits", "MergeBase2")
                  for word in ("--backend", f"python:mine:{name}")]  # fmt: skip
        for mode in ("stream", "graph"):
            results = self.results("operations.yaml", "--device", "cuda", "--set",
                                   f"timing.mode={mode}", *chosen, code=1)  # fmt: skip
            by_backend = {r["backend"].split(":")[-1]: r for r in results.values()
                          if r["status"] != "unsupported"}  # fmt: skip
            for name in ("Write", "Merge"):
                result = by_backend[name]
                self.assertEqual(result["status"], "passed", (name, result["reasons"]))
                self.assertEqual(result["timing"]["mode"], mode)
                self.assertGreater(result["throughput"]["gbps"], 0)
                # None of the program's but those that bring what it returned.
                self.assertEqual([k["name"] for k in result["kernels"] if not k["name"].startswith("copy ")], [])
            self.assertIn("run() waits for the stream", by_backend["WriteWaits"]["reasons"][0])
            self.assertEqual(by_backend["MergeBase2"]["status"], "incorrect")

    def test_a_run_that_waits_or_leaves_the_stream_is_incorrect(self):
        self.write("faulty.py", FAULTY)
        results = self.run_on_gpu("faulty:Waits", "faulty:OnOtherStream", "faulty:Device", code=1,
                                  options=("--no-timing",))  # fmt: skip
        for (_, backend), result in results.items():
            expected = "passed" if backend.endswith("Device") else "incorrect"
            self.assertEqual(result["status"], expected, (backend, result["reasons"]))
            if backend.endswith("Waits"):
                self.assertIn("run() waits for the stream that it is given", result["reasons"][0])


if __name__ == "__main__":
    unittest.main()
