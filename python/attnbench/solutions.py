"""Solutions of a FlashInfer-Trace data set as backends: python:attnbench.solutions:NAME.

NAME is the solution's name, with '_' for what no Python name has. The variable ATTNBENCH_TRACE_SET
names the folder of the set; `attnbench run --trace-set DIR` sets it.

A solution is a function of the inputs of its definition, in their order, and of the outputs behind
them where its spec says destination_passing_style, which is the default. What attnbench has in another
form is brought into that of the definition in prepare(), where it is not timed: indptrs, page lists
(pages of fewer tokens than a block are parts of it), scales. The log-sum-exp is that of the definition:
base 2, a token's heads side by side.

Latents and queries of MLA are one tensor in attnbench and two in a definition. Functions are given
copies, which are made in run() and so are in the time, since kernels of this form take their tensors to
be contiguous; with ATTNBENCH_TRACE_VIEWS=1 they are given views with the strides of the whole tensor,
as engines hand them to FlashInfer, and nothing is copied.
"""

import functools
import hashlib
import importlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path

from attnbench.adapter import Adapter

FOLDER = "ATTNBENCH_TRACE_SET"
VIEWS = "ATTNBENCH_TRACE_VIEWS"
# Packages that a solution needs, by the language of its spec; C++ and CUDA by their binding.
LANGUAGES = {
    "python": ("torch",),
    "triton": ("torch", "triton"),
    "tilelang": ("torch", "tilelang"),
}
BINDINGS = {"tvm-ffi": ("torch", "tvm_ffi"), "torch": ("torch",)}


class DoesNotBuild(Exception):
    pass


def read(file):
    return json.loads(Path(file).read_text(encoding="utf-8"))


def class_name(name):
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return "_" + plain if plain[0].isdigit() else plain


@functools.lru_cache(maxsize=None)
def files_by_class(root):
    """Solution files by the names of their classes."""
    return {class_name(read(file)["name"]): file for file in sorted(Path(root, "solutions").rglob("*.json"))}


@functools.lru_cache(maxsize=None)
def definition_file(root, name):
    for file in sorted(Path(root, "definitions").rglob("*.json")):
        if read(file)["name"] == name:
            return file
    raise LookupError(f"{root}: no definition {name}")


# ---- building: what flashinfer_bench/compile/builders does.


def write_sources(solution, folder):
    for source in solution["sources"]:
        path = Path(source["path"])
        if path.is_absolute() or ".." in path.parts:
            raise DoesNotBuild(f"source path {source['path']} leaves the folder")
        target = Path(folder, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_text(encoding="utf-8") != source["content"]:
            target.write_text(source["content"], encoding="utf-8")


def source_folder(solution):
    """A folder of this content, so that compiled libraries are found again."""
    digest = hashlib.sha256(json.dumps(solution, sort_keys=True).encode()).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(cache, "attnbench", "solutions", digest[:16])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="attnbench-solution-"))
    return folder


def import_python(folder, file, function, package):
    """The function of a module, as part of a package so that its files may import each other."""
    module_path = Path(folder, package)
    parts = ".".join(Path(file).with_suffix("").parts)
    sys.path.insert(0, str(module_path.parent))
    sys.path.insert(0, str(module_path))
    module = importlib.import_module(f"{package}.{parts}")
    return getattr(module, function)


def compiled(folder, solution, function):
    files = [str(Path(folder, source["path"])) for source in solution["sources"]]
    cuda = [file for file in files if file.endswith(".cu")]
    cpp = [file for file in files if file.endswith((".cpp", ".cc", ".cxx", ".c"))]
    if binding_of(solution) == "torch":
        from torch.utils import cpp_extension

        library = cpp_extension.load(class_name(solution["name"]), cpp + cuda,
                                     extra_include_paths=[str(folder)],
                                     build_directory=str(folder))  # fmt: skip
        return getattr(library, function)
    import tvm_ffi

    path = tvm_ffi.cpp.build(name=class_name(solution["name"]), cpp_files=cpp, cuda_files=cuda,
                             extra_include_paths=[str(folder)],
                             extra_ldflags=["-lcuda", "-lcublas"] if cuda else [],
                             build_directory=str(folder))  # fmt: skip
    return getattr(tvm_ffi.load_module(path), function)


def binding_of(solution):
    return solution["spec"].get("binding") or "tvm-ffi"


def language_of(solution):
    return solution["spec"]["language"].lower()


def build(solution):
    """The function of a solution. Raises DoesNotBuild."""
    file, _, function = solution["spec"]["entry_point"].partition("::")
    folder = source_folder(solution)
    try:
        if language_of(solution) in LANGUAGES:
            package = "attnbench_solution_" + folder.name.replace("-", "_")
            write_sources(solution, folder / package)
            return import_python(folder, file, function, package)
        write_sources(solution, folder)
        return compiled(folder, solution, function)
    except Exception as error:
        raise DoesNotBuild(f"solution does not build: {type(error).__name__}: {error}") from error


# ---- what attnbench hands over, as the inputs of a definition.


def offsets(lengths):
    total, found = 0, [0]
    for length in lengths:
        total += length
        found.append(total)
    return found


def int_tensor(values, device, dtype):
    import torch

    words = {"int64": torch.int64}
    return torch.tensor(values, dtype=words.get(dtype, torch.int32), device=device)


class Inputs:
    """The arguments of a call by their names. `refresh` holds what has to be done in each run."""

    def __init__(self, definition, problem, tensors):
        self.definition, self.problem, self.tensors = definition, problem, tensors
        self.refresh = []
        self.page_size = page_size_of(definition)
        self.device = tensors.query.device if hasattr(tensors.query, "device") else "cpu"

    def value(self, name, spec):
        """Raises LookupError for an input that has to be there and that nobody knows."""
        make = getattr(self, "make_" + name.replace("paged_kv_", "kv_"), None)
        if make:
            return make(spec)
        if spec.get("optional"):
            return None
        raise LookupError(f"input {name} of {self.definition['name']}: not known to attnbench")

    # Lengths and pages.
    def make_qo_indptr(self, spec):
        return int_tensor(offsets(self.problem.query_lens), self.device, spec["dtype"])

    def make_kv_indptr(self, spec):
        if self.page_size is None:
            return int_tensor(offsets(self.problem.seq_lens), self.device, spec["dtype"])
        pages = [-(-length // self.page_size) for length in self.problem.seq_lens]
        return int_tensor(offsets(pages), self.device, spec["dtype"])

    def make_kv_indices(self, spec):
        parts = self.problem.block_size // self.page_size
        indices = []
        for length, blocks in zip(self.problem.seq_lens, self.tensors.block_table.tolist()):
            for page in range(-(-length // self.page_size)):
                indices.append(blocks[page // parts] * parts + page % parts)
        return int_tensor(indices, self.device, spec["dtype"])

    def make_kv_last_page_len(self, spec):
        size = self.page_size
        lengths = [(n - 1) % size + 1 if n else 0 for n in self.problem.seq_lens]
        return int_tensor(lengths, self.device, spec["dtype"])

    def make_kv_len_arr(self, spec):
        return int_tensor(list(self.problem.seq_lens), self.device, spec["dtype"])

    make_seq_lens = make_kv_len_arr

    def make_sparse_indices(self, spec):
        return self.tensors.topk_slots[: self.problem.num_tokens]

    # Numbers.
    def make_sm_scale(self, spec):
        return self.problem.scale

    def make_causal(self, spec):
        return self.problem.causal

    def make_return_lse(self, spec):
        return "lse" in self.definition["outputs"]

    def scale(self, tensor):
        return None if tensor is None else float(tensor.reshape(-1)[0])

    def make_q_scale(self, spec):
        return self.scale(self.tensors.q_scale)

    def make_k_scale(self, spec):
        return self.scale(self.tensors.k_scale)

    def make_v_scale(self, spec):
        return self.scale(self.tensors.v_scale)

    def make_ckv_scale(self, spec):
        return self.scale(self.tensors.k_scale)

    make_kpe_scale = make_ckv_scale

    # Tensors.
    def rows(self, tensor):
        return tensor[: self.problem.num_tokens]

    def paged(self, cache):
        """[blocks, block, ...] as [pages, page, ...]."""
        return cache.reshape((-1, self.page_size) + tuple(cache.shape[2:]))

    def make_q(self, spec):
        return self.rows(self.tensors.query)

    def make_k(self, spec):
        return self.tensors.key

    def make_v(self, spec):
        return self.tensors.value

    def make_k_cache(self, spec):
        return self.paged(self.tensors.key_cache)

    def make_v_cache(self, spec):
        return self.paged(self.tensors.value_cache)

    def part(self, tensor, wanted):
        """A part of the last axis: a copy that each run makes anew, or a view."""
        view = tensor[..., wanted]
        if os.environ.get(VIEWS, "") not in ("", "0"):
            return view
        import torch

        copy = torch.empty(tuple(view.shape), dtype=view.dtype, device=self.device)
        self.refresh.append(lambda: copy.copy_(view))
        return copy

    def rank(self):
        return self.problem.v_head_size

    def make_q_nope(self, spec):
        return self.part(self.rows(self.tensors.query), slice(0, self.rank()))

    def make_q_pe(self, spec):
        return self.part(self.rows(self.tensors.query), slice(self.rank(), None))

    def make_ckv_cache(self, spec):
        return self.part(self.paged(self.tensors.kv_cache), slice(0, self.rank()))

    def make_kpe_cache(self, spec):
        return self.part(self.paged(self.tensors.kv_cache), slice(self.rank(), None))


# ---- what a definition says of the problems that it takes.


def size_of(definition, name, axis):
    """A fixed extent, or None."""
    shape = definition["inputs"].get(name, {}).get("shape") or []
    if axis >= len(shape):
        return None
    return definition["axes"].get(shape[axis], {}).get("value")


def page_size_of(definition):
    return size_of(definition, "k_cache", 1) or size_of(definition, "ckv_cache", 1)


def is_mla(definition):
    return "ckv_cache" in definition["inputs"]


def is_decode(definition):
    return "qo_indptr" not in definition["inputs"] and "sparse_indices" not in definition["inputs"]


def features_of(definition):
    noncausal = any(word in definition["name"] for word in ("noncausal", "non_causal"))
    features = ["non_causal" if noncausal else "causal", "gqa", "v_head_size"]
    if "sparse_indices" in definition["inputs"]:
        features.append("mla_topk")
    stored = [definition["inputs"].get(name, {}).get("dtype") for name in ("k_cache", "ckv_cache")]
    if "float8_e4m3fn" in stored:
        features.append("fp8_kv")
    if "float8_e5m2" in stored:
        features.append("fp8_e5m2_kv")
    query = definition["inputs"].get("q") or definition["inputs"].get("q_nope") or {}
    if query.get("dtype") == "float8_e4m3fn":
        features.append("fp8_query")
    return tuple(features)


def dtypes_of(definition):
    known = ("float32", "bfloat16", "float16")
    dtype = next(iter(definition["outputs"].values()))["dtype"]
    return (dtype,) if dtype in known else known


class Solution(Adapter):
    """A solution of a FlashInfer-Trace data set"""

    lse_axes = "TH"
    solution = definition = None

    def supports(self, problem):
        definition, reasons = self.definition, []
        name = definition["name"]
        if is_decode(definition) and any(length != 1 for length in problem.query_lens):
            reasons.append(f"{name}: decodes of one token")
        query = "q_nope" if is_mla(definition) else "q"
        checks = [("num_heads", size_of(definition, query, 1), problem.num_heads)]
        if is_mla(definition):
            checks.append(("kv_lora_rank", size_of(definition, "ckv_cache", 2), problem.v_head_size))
        else:
            checks.append(("head_size", size_of(definition, "q", 2), problem.head_size))
            heads = size_of(definition, "k_cache", 2) or size_of(definition, "k", 1)
            checks.append(("num_kv_heads", heads, problem.num_kv_heads))
        for what, expected, found in checks:
            if expected is not None and expected != found:
                reasons.append(f"{name}: {what} {expected}, not {found}")
        size = page_size_of(definition)
        if size is not None:
            reasons += self.page_reasons(problem, size)
        return reasons or None

    def page_reasons(self, problem, size):
        name = self.definition["name"]
        if problem.block_size % size:
            return [f"{name}: pages of {size} tokens, blocks have {problem.block_size}"]
        if problem.kv_cache_layout != "NHD":
            return [f"{name}: NHD caches, not {problem.kv_cache_layout}"]
        inputs = self.definition["inputs"]
        tells = any(known in inputs for known in
                    ("kv_last_page_len", "paged_kv_last_page_len", "kv_len_arr", "sparse_indices"))  # fmt: skip
        if not tells and any(length % size for length in problem.seq_lens):
            return [f"{name}: keys that fill their pages of {size} tokens"]
        return []

    def prepare(self, problem, tensors):
        self.function = build(self.solution)
        inputs = Inputs(self.definition, problem, tensors)
        self.arguments = [inputs.value(name, spec) for name, spec in self.definition["inputs"].items()]
        self.refresh = inputs.refresh
        self.names = list(self.definition["outputs"])
        self.writes = self.solution["spec"].get("destination_passing_style", True)
        outputs = {"output": tensors.output[: problem.num_tokens]}
        if tensors.lse is not None and self.lse:
            outputs["lse"] = tensors.lse.T[: problem.num_tokens]
        if self.writes:
            self.arguments += [outputs[name] for name in self.names]

    def run(self):
        for bring in self.refresh:
            bring()
        returned = self.function(*self.arguments)
        if self.writes:
            return None
        if isinstance(returned, dict):
            returned = [returned.get(name) for name in self.names]
        elif not isinstance(returned, (tuple, list)):
            returned = [returned]
        return tuple(returned) if len(returned) > 1 else returned[0]


def make_class(root, name):
    file = files_by_class(root).get(name)
    if file is None:
        raise AttributeError(f"{root}: no solution of the class {name}")
    solution = read(file)
    described = definition_file(root, solution["definition"])
    definition = read(described)
    language, binding = language_of(solution), binding_of(solution)
    on_cpu = language in ("python", "cpp")
    return type(name, (Solution,), {
        "__doc__": f"{solution['name']} of FlashInfer-Trace: {language}, for {definition['name']}",
        "__module__": __name__,
        "solution": solution,
        "definition": definition,
        "source_files": [str(file), str(described), __file__],
        "version": solution.get("author", ""),
        "packages": LANGUAGES.get(language) or BINDINGS.get(binding, ("torch",)),
        "devices": ("cpu", "cuda") if on_cpu else ("cuda",),
        "attention_types": ("mla",) if is_mla(definition) else ("decoder",),
        "dtypes": dtypes_of(definition),
        "features": features_of(definition),
        "kv": "paged" if page_size_of(definition) and not is_mla(definition) else "ragged",
        "lse": "base_2" if "lse" in definition["outputs"] else None,
    })  # fmt: skip


@functools.lru_cache(maxsize=None)
def class_of(root, name):
    return make_class(root, name)


def __getattr__(name):
    root = os.environ.get(FOLDER)
    if name.startswith("__") or not root:
        words = f"; {FOLDER} names no data set" if not root else ""
        raise AttributeError(f"module {__name__} has no attribute {name}{words}")
    return class_of(root, name)
