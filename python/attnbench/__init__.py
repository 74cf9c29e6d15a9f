"""attnbench from Python: scenarios are run and functions judged by the program, results are values.

    import attnbench
    from torch.nn.functional import scaled_dot_product_attention as sdpa
    attnbench.judge(lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True))

docs/interop.md shows it at work; docs/plugins.md goes from nothing to a judged kernel. This file imports
nothing else until it is used: it is also loaded by the program, in the process that runs adapters.
"""

from importlib import import_module

_PLACES = {
    "Adapter": "adapter",
    "AttnbenchError": "program",
    "ErrorMetrics": "results",
    "Result": "results",
    "Results": "results",
    "Throughput": "results",
    "Timing": "results",
    "find_program": "program",
    "judge": "judging",
    "load": "results",
    "run": "program",
}

__all__ = sorted(_PLACES)


def __getattr__(name):
    if name not in _PLACES:
        raise AttributeError(f"module 'attnbench' has no attribute {name!r}")
    return getattr(import_module("attnbench." + _PLACES[name]), name)


def __dir__():
    return sorted([*globals(), *__all__])
