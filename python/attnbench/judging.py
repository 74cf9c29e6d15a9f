"""A function judged by the program: it becomes the adapter of a module that the program loads, in a
process of its own, like any other Python class."""

import keyword
import os
import re
import sys
import tempfile

from attnbench import program, source_text
from attnbench.adapter import FEATURES

MODULE = "attnbench_judged"
# What a function is judged on unless it is said otherwise: a prompt of two requests, with grouped heads.
SCENARIO = {
    "schema": 1,
    "attention": {"type": "decoder", "num_heads": 8, "num_kv_heads": 2, "head_size": 64,
                  "dtype": "bfloat16"},
    "batch": "2q128",
}  # fmt: skip


def judge(function, scenario=None, *, layout="BHSD", lse=None, features=None, deterministic=True,
          backend=(), keep=None, **options):  # fmt: skip
    """Runs a function of torch tensors as a backend of attnbench and returns the Results.

    function: takes query, key and value, and returns the output or (output, lse). Those of the keyword
    arguments scale, causal, window_left, window_right and problem that it has by name are given to it.
    scenario: as for run(); what a dict leaves out is that of a small prompt, bfloat16, 8 heads over 2.
    layout: of the tensors,
        "BHSD"    query [B, H, Q, D], key and value [B, Hk, S, D], as torch's SDPA has them; a call for
                  requests of equal lengths that follow each other
        "BSHD"    [B, Q, H, D] and [B, S, Hk, D], as flash_attn_func has them
        "ragged"  [T, H, D] and [S, Hk, D] for the whole batch, with the keyword arguments cu_seqlens_q,
                  cu_seqlens_k (int32, [B + 1]), max_seqlen_q and max_seqlen_k
        "paged"   query [T, H, D], caches [NB, block_size, Hk, D] for key and value, with the keyword
                  arguments block_table, seq_lens and cu_seqlens_q
    lse: None, "natural" or "base_2": what the second value that it returns is.
    features: of problems that it can do, words of attnbench.adapter.FEATURES; without it causal or not,
    grouped heads, and values of another size than keys. A problem that needs another is `unsupported`.
    deterministic: False for one whose last bits differ from run to run.
    backend: other backends that run beside it.
    keep: a folder for the module that it becomes, and the scenario; `Result.repro` repeats a case from
    there. Without it they are gone afterwards.
    options: those of run().

    The function is imported from its module; one of a notebook, of __main__ or of another function is
    copied as source text, with the functions and the constants that it uses. It runs in another process.
    """
    if layout not in ("BHSD", "BSHD", "ragged", "paged"):
        raise ValueError(f"layout: expected BHSD, BSHD, ragged or paged, found {layout!r}")
    features = ("causal", "non_causal", "gqa", "v_head_size") if features is None else tuple(features)
    unknown = [word for word in features if word not in FEATURES]
    if unknown:
        raise ValueError(f"features: unknown {unknown[0]!r} (known: {', '.join(FEATURES)})")
    if scenario is None or isinstance(scenario, dict):
        scenario = _merged(SCENARIO, scenario or {})
        scenario.setdefault("name", _scenario_name(function))
    name = _class_name(function)
    declared = {"layout": layout, "lse": lse, "features": features, "deterministic": deterministic,
                "kv": "paged" if layout == "paged" else "ragged"}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="attnbench-") as temporary:
        folder = os.path.abspath(keep or temporary)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, MODULE + ".py"), "w", encoding="utf-8") as file:
            file.write(_module_text(function, name, declared))
        path = [folder, *(os.path.abspath(entry) for entry in sys.path)]
        env = {**(options.pop("env", None) or {}), "PYTHONPATH": os.pathsep.join(path),
               "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
        backends = [f"python:{MODULE}:{name}", *program._as_list(backend)]
        return program.run(scenario, backend=backends, env=env, keep=keep, **options)


def _merged(base, over):
    """`over` laid over `base`, dicts deeply."""
    result = dict(base)
    for key, value in over.items():
        deep = isinstance(value, dict) and isinstance(base.get(key), dict)
        result[key] = _merged(base[key], value) if deep else value
    return result


def _name_of(function):
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() and not keyword.iskeyword(name) else "function"  # <lambda>


def _class_name(function):
    """`my_kernel` is MyKernel."""
    words = _name_of(function).strip("_").split("_")
    return "".join(word[:1].upper() + word[1:] for word in words) or "Function"


def _scenario_name(function):
    return re.sub(r"[^a-z0-9._-]+", "-", _name_of(function).lower()).strip("-") or "function"


def _module_text(function, name, declared):
    imports, word = source_text.collect(function)
    title = " ".join((getattr(function, "__doc__", None) or "").split("\n")[0].split())
    lines = [
        imports,
        "from attnbench.function import FunctionAdapter as _FunctionAdapter",
        "",
        "",
        # Why: the class may have the name of the function.
        f"_judged = {word}",
        "",
        "",
        f"class {name}(_FunctionAdapter):",
        f"    {title or 'a function of Python'!r}",
        "",
        "    function = staticmethod(_judged)",
        *(f"    {key} = {value!r}" for key, value in declared.items()),
        "",
    ]
    return "\n".join(lines)
