"""Attention in eager PyTorch: a backend to start from.

attnbench run case.yaml --backend python:my_attention:MyAttention
"""

import math

import torch


class MyAttention:
    """attention in eager torch, one request after the other"""

    version = "1"
    packages = ("torch",)
    devices = ("cpu", "cuda")
    dtypes = ("float32", "float16", "bfloat16")
    features = ("causal", "gqa")  # a case that needs more is reported as unsupported

    def prepare(self, problem, tensors):
        """Not timed: allocate, compile, plan. Query, keys and values are not there yet."""
        self.problem, self.tensors = problem, tensors

    def run(self):
        """Timed: reads tensors.query, key and value, writes tensors.output."""
        p, t = self.problem, self.tensors
        group = p.num_heads // p.num_kv_heads
        for query_len, seq_len, row, first_key in p.requests():
            rows, keys = slice(row, row + query_len), slice(first_key, first_key + seq_len)
            query = t.query[rows].float()
            key = t.key[keys].float().repeat_interleave(group, 1)
            value = t.value[keys].float().repeat_interleave(group, 1)
            scores = p.scale * torch.einsum("qhd,khd->hqk", query, key)
            position = torch.arange(seq_len - query_len, seq_len, device=query.device)
            index = torch.arange(seq_len, device=query.device)
            scores = scores.masked_fill(index[None, :] > position[:, None], -math.inf)
            output = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)
            t.output[rows] = output.to(t.output.dtype)
