"""Scales that calculate_kv_scales makes of what a step brings (semantics §5.4)."""

import numpy as np

from .errors import require_equal

FP8_CACHES = ("fp8", "fp8_e4m3", "fp8_e5m2")
DEFAULTS = {"q_scale_constant": 200, "k_scale_constant": 200, "v_scale_constant": 100}


def are_calculated(cache):
    asked = cache.get("calculate_kv_scales", False) and not cache.get("int8_level", 0)
    return asked and cache.get("dtype", "auto") in FP8_CACHES


def _scale(values, largest):
    amax = np.abs(values.astype(np.float32)).max(initial=np.float32(0))
    scale = np.float32(amax) / np.float32(largest)
    return scale if scale != 0 else np.float32(1)


def new_rows(query_lens, seq_lens, cross=False):
    """Rows of the concatenated keys that the step writes: those of the new tokens; a prefill of
    cross attention writes all of its request, a decode none."""
    rows, first = [], 0
    for query_len, seq_len in zip(query_lens, seq_lens):
        count = (seq_len if query_len > 1 else 0) if cross else query_len
        rows.append(np.arange(first + seq_len - count, first + seq_len))
        first += seq_len
    return np.concatenate(rows).astype(np.int64) if rows else np.zeros(0, dtype=np.int64)


def check(saved, query, keys, values, cache=None):
    """The scales of query, key and value; the file's must be the same."""
    constants = [(cache or {}).get(name, default) for name, default in DEFAULTS.items()]
    own = [_scale(x, constant) for x, constant in zip((query, keys, values), constants)]
    require_equal("kv_scales", saved, np.array(own, dtype=np.float32))
    return own
