"""The saved tensors of an operation and what its problem says, and how results are compared."""

import json

import numpy as np

from . import number_formats as formats
from .errors import Disagreement, FormatError

FP8_MAX = np.float32(448.0)
NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


class OpCase:
    """Tensors of a file and what its problem says."""

    def __init__(self, tensors, metadata):
        self.tensors = tensors
        self.problem = json.loads(metadata["problem"])
        self.op, self.cache = self.problem["op"], self.problem["kv_cache"]
        self.attention, self.mla = self.problem["attention"], self.problem["mla"]
        self.quant, self.dcp = self.problem["output_quant"], self.problem["dcp"]
        self.dtype = self.attention["dtype"]
        self.heads = self.attention["num_heads"]
        self.kv_heads = self.attention["num_kv_heads"]
        self.batch = [
            (row["query_len"], row["seq_len"])
            for row in self.problem["batch"]
            for _ in range(row["count"])
        ]
        self.num_tokens = sum(query_len for query_len, _ in self.batch)

    def raw(self, name):
        if name not in self.tensors:
            raise FormatError(f"tensor {name!r} is missing")
        return self.tensors[name].raw

    def values(self, name):
        self.raw(name)
        return formats.decode(self.tensors[name].dtype, self.tensors[name].raw)

    def store(self, values):
        """Bits of float32 values in the model's type."""
        return encode(NAMES[self.dtype], values)


def encode(dtype, values):
    if dtype == "BF16":
        return formats.encode_bf16(values)
    if dtype == "F16":
        return formats.encode_f16(values)
    return np.asarray(values, dtype=np.float32)


def require_bytes(name, actual, expected):
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise Disagreement(f"{name}: {actual.shape} {actual.dtype}, expected {expected.shape}")
    size = actual.dtype.itemsize
    a = np.ascontiguousarray(actual).view(np.uint8).reshape(-1, size)
    e = np.ascontiguousarray(expected).view(np.uint8).reshape(-1, size)
    wrong = (a != e).any(axis=1)
    if wrong.any():
        where = np.unravel_index(int(np.argmax(wrong)), actual.shape)
        raise Disagreement(
            f"{name}{[int(i) for i in where]} is {actual[where]}, expected {expected[where]} "
            f"({np.count_nonzero(wrong)} of {wrong.size} differ)"
        )
