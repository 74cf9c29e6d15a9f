"""A small FlashInfer-Trace data set in the form of flashinfer-bench's and of FlashInfer's own dumps, with
solutions of which some are wrong, and flashinfer-bench's models where they are installed."""

import importlib
import json
import struct
import sys
import types
from pathlib import Path

import numpy as np
from tool import ROOT, skip_without

DEPS = ROOT / "build" / "deps" / "python"
HEADS, KV_HEADS, SIZE = 4, 2, 64

# Attention of one request by its rows of keys, in the order of positions; the LSE is of base 2.
ATTEND = """\
import numpy as np

MASKED = True

def attend(q, k, v, scale, base=2.0):
    q, k, v = (np.asarray(each, np.float32) for each in (q, k, v))
    query_len, heads, _ = q.shape
    group = heads // k.shape[1]
    output = np.zeros((query_len, heads, v.shape[-1]), np.float32)
    lse = np.zeros((query_len, heads), np.float32)
    for i in range(query_len):
        seen = len(k) - query_len + i + 1 if MASKED else len(k)
        for head in range(heads):
            scores = scale * (k[:seen, head // group] @ q[i, head]).astype(np.float64)
            weights = np.exp(scores - scores.max())
            output[i, head] = weights @ v[:seen, head // group] / weights.sum()
            lse[i, head] = (scores.max() + np.log(weights.sum())) / np.log(base)
    return output, lse

def paged(q, k_cache, v_cache, starts, kv_indptr, kv_indices, scale, output, lse, base=2.0, order=lambda x: x):
    for b in range(len(kv_indptr) - 1):
        pages = order(np.array(kv_indices[kv_indptr[b]:kv_indptr[b + 1]]))
        k = np.concatenate([k_cache[page] for page in pages])
        v = np.concatenate([v_cache[page] for page in pages])
        rows = slice(starts[b], starts[b + 1])
        output[rows], lse[rows] = attend(q[rows], k, v, scale, base)
"""
DECODE_ARGUMENTS = "q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale, return_lse, output, lse"
DECODE_CALL = ("    paged(q, k_cache, v_cache, range(len(q) + 1), kv_indptr, kv_indices, sm_scale, "
               "output, lse{more})\n")  # fmt: skip


def decode(more=""):
    return f"from attend import paged\n\ndef run({DECODE_ARGUMENTS}):\n" + DECODE_CALL.format(more=more)


RETURNS = f"""\
import torch
import numpy as np
from attend import paged

def run({DECODE_ARGUMENTS.removesuffix(", output, lse")}):
    assert return_lse
    output = np.zeros(q.shape, np.float32).view(torch.Tensor)
    lse = np.zeros(q.shape[:2], np.float32).view(torch.Tensor)
{DECODE_CALL.format(more="")}    return {{"lse": lse, "output": output}}
"""
RAGGED = """\
from attend import attend

def run(q, k, v, qo_indptr, kv_indptr, sm_scale, output, lse):
    for b in range(len(qo_indptr) - 1):
        rows, keys = slice(qo_indptr[b], qo_indptr[b + 1]), slice(kv_indptr[b], kv_indptr[b + 1])
        output[rows], lse[rows] = attend(q[rows], k[keys], v[keys], sm_scale)
"""
MLA = """\
import numpy as np
from attend import attend

def run(q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices, sm_scale, ckv_scale, return_lse, output, lse):
    assert ckv_scale is None
    for b in range(len(kv_indptr) - 1):
        pages = np.array(kv_indices[kv_indptr[b]:kv_indptr[b + 1]])
        c = np.concatenate([ckv_cache[page] for page in pages])[:, None]
        p = np.concatenate([kpe_cache[page] for page in pages])[:, None]
        q = np.concatenate([q_nope[b], q_pe[b]], -1)[None]
        output[b:b + 1], lse[b:b + 1] = attend(q, np.concatenate([c, p], -1), c, sm_scale)
"""
PREFILL = """\
from attend import paged

def run(q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, sm_scale, output, lse):
    paged(q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, sm_scale, output, lse)
"""
MLA_PREFILL = """\
import numpy as np
from attend import attend

def run(q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, sm_scale, output, lse):
    for b in range(len(kv_indptr) - 1):
        pages, rows = np.array(kv_indices[kv_indptr[b]:kv_indptr[b + 1]]), slice(qo_indptr[b], qo_indptr[b + 1])
        c = np.concatenate([ckv_cache[page] for page in pages])[:, None]
        p = np.concatenate([kpe_cache[page] for page in pages])[:, None]
        q = np.concatenate([q_nope[rows], q_pe[rows]], -1)
        output[rows], lse[rows] = attend(q, np.concatenate([c, p], -1), c, sm_scale)
"""
SPARSE = """\
import numpy as np
from attend import attend

def run(q_nope, q_pe, ckv_cache, kpe_cache, sparse_indices, sm_scale, output, lse):
    c_all, p_all = ckv_cache.reshape(-1, ckv_cache.shape[-1]), kpe_cache.reshape(-1, kpe_cache.shape[-1])
    for t in range(len(q_nope)):
        rows = [row for row in np.array(sparse_indices[t]) if row != -1]
        c, p = c_all[rows][:, None], p_all[rows][:, None]
        q = np.concatenate([q_nope[t], q_pe[t]], -1)[None]
        output[t:t + 1], lse[t:t + 1] = attend(q, np.concatenate([c, p], -1), c, sm_scale)
"""


def safetensors(tensors):
    """The bytes of a file of float32, float16, int32, int64 and uint32 arrays."""
    names = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64", "uint32": "U32"}
    header, data = {}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": names[str(array.dtype)], "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}  # fmt: skip
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def definition(name, op_type, axes, inputs, outputs, dtype="float32"):
    """Sizes are constants, None is a variable; dtypes are `dtype` unless said."""
    tensor = lambda shape, dtype=dtype, **more: {"shape": shape, "dtype": dtype, **more}
    return {"name": name, "op_type": op_type, "tags": ["status:verified"],
            "axes": {axis: {"type": "var"} if size is None else {"type": "const", "value": size}
                     for axis, size in axes.items()},
            "inputs": {key: tensor(*value[0], **value[1]) for key, value in inputs.items()},
            "outputs": {key: tensor(value, "float32" if key == "lse" else dtype)
                        for key, value in outputs.items()},
            "reference": "def run():\n    pass\n"}  # fmt: skip


def plain(*arguments):
    return arguments, {}


def planned(*arguments):
    """As FlashInfer dumps what plan() takes."""
    return arguments, {"optional": True}


def decode_definition(page_size):
    return definition(
        f"gqa_paged_decode_h4_kv2_d64_ps{page_size}", "gqa_paged",
        {"batch_size": None, "num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": SIZE,
         "num_pages": None, "page_size": page_size, "len_indptr": None, "num_kv_indices": None},
        {"q": plain(["batch_size", "num_qo_heads", "head_dim"]),
         "k_cache": plain(["num_pages", "page_size", "num_kv_heads", "head_dim"]),
         "v_cache": plain(["num_pages", "page_size", "num_kv_heads", "head_dim"]),
         "kv_indptr": planned(["len_indptr"], "unknown"),
         "kv_indices": planned(["num_kv_indices"], "unknown"),
         "sm_scale": planned(None), "return_lse": planned(None, "int32")},
        {"output": ["batch_size", "num_qo_heads", "head_dim"], "lse": ["batch_size", "num_qo_heads"]},
    )  # fmt: skip


def ragged_definition(kind="gqa_ragged", size=SIZE, value_size=SIZE):
    heads = "num_kv_heads" if kind == "gqa_ragged" else "num_qo_heads"
    return definition(
        f"{kind}_prefill_causal_h4_d{size}", kind,
        {"num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim_qk": size, "head_dim_vo": value_size,
         "len_indptr": None, "total_q": None, "total_kv": None},
        {"q": plain(["total_q", "num_qo_heads", "head_dim_qk"]),
         "k": plain(["total_kv", heads, "head_dim_qk"]), "v": plain(["total_kv", heads, "head_dim_vo"]),
         "qo_indptr": plain(["len_indptr"], "int32"), "kv_indptr": plain(["len_indptr"], "int32"),
         "sm_scale": plain(None)},
        {"output": ["total_q", "num_qo_heads", "head_dim_vo"], "lse": ["total_q", "num_qo_heads"]},
    )  # fmt: skip


def mla_definition(page_size=16, rank=64, rope=16):
    return definition(
        f"mla_paged_decode_h4_ckv{rank}_kpe{rope}_ps{page_size}", "mla_paged",
        {"batch_size": None, "num_qo_heads": HEADS, "head_dim_ckv": rank, "head_dim_kpe": rope,
         "num_pages": None, "page_size": page_size, "len_indptr": None, "num_kv_indices": None},
        {"q_nope": plain(["batch_size", "num_qo_heads", "head_dim_ckv"]),
         "q_pe": plain(["batch_size", "num_qo_heads", "head_dim_kpe"]),
         "ckv_cache": plain(["num_pages", "page_size", "head_dim_ckv"]),
         "kpe_cache": plain(["num_pages", "page_size", "head_dim_kpe"]),
         "kv_indptr": planned(["len_indptr"], "unknown"),
         "kv_indices": planned(["num_kv_indices"], "unknown"),
         "sm_scale": planned(None), "ckv_scale": planned(None), "return_lse": planned(None, "int32")},
        {"output": ["batch_size", "num_qo_heads", "head_dim_ckv"], "lse": ["batch_size", "num_qo_heads"]},
        "float16",
    )  # fmt: skip


def prefill(of):
    """A definition of decodes as that of prompts: rows are tokens of requests that qo_indptr divides."""
    of = json.loads(json.dumps(of).replace("_decode_", "_prefill_causal_").replace('"batch_size"', '"total_q"'))
    inputs = of["inputs"]
    names = [name for name in inputs if name not in ("kv_indptr", "kv_indices", "ckv_scale", "return_lse", "sm_scale")]
    last = ["kv_indptr", "kv_indices", "sm_scale"]
    of["inputs"] = {name: inputs[name] for name in names} | {
        "qo_indptr": dict(inputs["kv_indptr"])} | {name: inputs[name] for name in last}  # fmt: skip
    return of


def sparse_definition(topk=128, page_size=64, rank=512, rope=64):
    return definition(
        f"dsa_sparse_attention_h4_ckv{rank}_kpe{rope}_topk{topk}_ps{page_size}", "dsa_paged",
        {"num_tokens": None, "num_qo_heads": HEADS, "head_dim_ckv": rank, "head_dim_kpe": rope,
         "page_size": page_size, "topk": topk, "num_pages": None},
        {"q_nope": plain(["num_tokens", "num_qo_heads", "head_dim_ckv"]),
         "q_pe": plain(["num_tokens", "num_qo_heads", "head_dim_kpe"]),
         "ckv_cache": plain(["num_pages", "page_size", "head_dim_ckv"]),
         "kpe_cache": plain(["num_pages", "page_size", "head_dim_kpe"]),
         "sparse_indices": plain(["num_tokens", "topk"], "int32"), "sm_scale": plain(None)},
        {"output": ["num_tokens", "num_qo_heads", "head_dim_ckv"], "lse": ["num_tokens", "num_qo_heads"]},
        "float16",
    )  # fmt: skip


def solution(name, of, main, **spec):
    return {"name": name, "definition": of["name"], "author": "tests",
            "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run", **spec},
            "sources": [{"path": "main.py", "content": main},
                        {"path": "attend.py", "content": ATTEND}]}  # fmt: skip


def workload(of, uuid, axes, scale=None, path=None, keys=()):
    """All inputs random but the scale and those that `path` has under `keys`."""
    inputs = {name: {"type": "random"} for name, tensor in of["inputs"].items() if tensor["shape"]}
    if scale is not None:
        inputs["sm_scale"] = {"type": "scalar", "value": scale}
    for key in keys:
        inputs[key] = {"type": "safetensors", "path": str(path), "tensor_key": key}
    return {"definition": of["name"], "solution": None, "evaluation": None,
            "workload": {"uuid": uuid, "axes": axes, "inputs": inputs}}  # fmt: skip


class TraceFolder:
    """The folder of a set, as flashinfer-bench lays it out."""

    def __init__(self, root):
        self.root = Path(root)

    def write(self, path, data):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data if isinstance(data, bytes) else data.encode())
        return file

    def add(self, of, workloads=(), solutions=()):
        """Paths of the definition and its workloads."""
        place = f"{of['op_type']}/{of['name']}"
        for one in solutions:
            self.write(f"solutions/tests/{place}/{one['name']}.json", json.dumps(one))
        lines = "".join(json.dumps(line) + "\n" for line in workloads)
        return (self.write(f"definitions/{place}.json", json.dumps(of)),
                self.write(f"workloads/{place}.jsonl", lines))  # fmt: skip


def flashinfer_bench(module):
    """A module of flashinfer-bench without what its __init__ imports (torch, tvm_ffi); skips without
    the package, which scripts/test installs, and fails in a CI."""
    if not (DEPS / "flashinfer_bench").is_dir():
        skip_without("flashinfer-bench in build/deps/python")
    if str(DEPS) not in sys.path:
        sys.path.append(str(DEPS))
    for name in ("flashinfer_bench", "flashinfer_bench.data"):
        package = types.ModuleType(name)
        package.__path__ = [str(DEPS / name.replace(".", "/"))]
        sys.modules.setdefault(name, package)
    return importlib.import_module(f"flashinfer_bench.data.{module}")
