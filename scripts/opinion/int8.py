"""int8 attention of layout IX (semantics §2.2, §11): quantises by itself, reads the planes back."""

import numpy as np

from . import number_formats as formats
from .errors import FormatError, require_equal


def nearest_even_i8(x):
    """rn_i8: nearest even, saturating to [-128, 127], NaN -> 0."""
    return np.clip(np.rint(np.nan_to_num(x, nan=0.0)), -128, 127).astype(np.int8)


def quantise_by_token(x):
    """Mode 2 of §11.2 on x [n, h, D]: int8 codes and float32 scales [n, h]."""
    x = np.asarray(x, dtype=np.float32)
    largest = np.fmax.reduce(np.abs(x), axis=-1, initial=np.float32(0))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        codes = nearest_even_i8(x * (np.float32(127) / largest)[..., None])
    codes[largest == 0] = 0
    return codes, largest / np.float32(127)


def value_scales(values):
    """Scale of every channel [Hk, D] over all values [n, Hk, D]; 1 for a channel of zeros (§11.3)."""
    largest = np.fmax.reduce(np.abs(values), axis=0, initial=np.float32(0))
    scales = largest / np.float32(127)
    return np.where(scales > 0, scales, np.float32(1))


def query(case):
    """The dequantised query that the reference reads, after checking codes and scales."""
    source = case.need("query_unquantized")
    codes, scales = quantise_by_token(formats.decode(source.dtype, source.raw))
    stored = case.need("query")
    if stored.dtype != "I8":
        raise FormatError(f"query is {stored.dtype}, expected I8")
    require_equal("query", stored.raw.astype(np.int8), codes)
    require_equal("query_scales", case.values("query_scales", scales.shape), scales)
    read = codes.astype(np.float32) * scales[..., None]
    require_equal("query_dequantized", case.values("query_dequantized"), read)
    return read


def _planes(case):
    """K [NB, Hk, bs, D] as int8 and V as int8 (level 1) or 16-bit patterns (level 2)."""
    level, stored = case.rules.int8_level, case.need("kv_cache")
    raw = stored.raw
    inner = (case.num_kv_heads, case.rules.block_size, case.head_size)
    if stored.dtype != "I8" or raw.ndim != 5 or raw.shape[0] != level + 1 or raw.shape[2:] != inner:
        raise FormatError(
            f"kv_cache is {stored.dtype} {list(raw.shape)}, expected I8 [{level + 1}, NB, "
            f"{', '.join(map(str, inner))}]"
        )
    num_blocks = raw.shape[1]
    keys = raw[0].view(np.int8)
    if level == 1:
        return keys, raw[1].view(np.int8)
    flat = np.ascontiguousarray(raw[1:]).view(np.uint8).reshape(-1).view("<u2")
    return keys, flat.reshape((num_blocks, *inner))


def _at_slots(paged, slots, block_size):
    """Rows [n, Hk, ...] of an array [NB, Hk, bs, ...]."""
    return paged[slots // block_size, :, slots % block_size]


def keys_and_values(case, slots):
    """What the reference reads, float32 [n, Hk, D]; `slots` [n] is null without a saved cache."""
    key, value = case.need("key"), case.need("value")
    key_codes, key_scales = quantise_by_token(formats.decode(key.dtype, key.raw))
    keys = key_codes.astype(np.float32) * key_scales[..., None]
    values = formats.decode(value.dtype, value.raw)
    value_codes = value.raw
    if case.rules.int8_level == 1:
        scales = case.values("value_scale_cache", values.shape[1:])
        if case.rules.value_scale_file is None:
            require_equal("value_scale_cache", scales, value_scales(values))
        value_codes = nearest_even_i8(values / scales)
        values = value_codes.astype(np.float32) * scales
    require_equal("key_dequantized", case.values("key_dequantized"), keys)
    require_equal("value_dequantized", case.values("value_dequantized"), values)
    if slots is not None:
        stored_keys, stored_values = _planes(case)
        block_size = case.rules.block_size
        require_equal("kv_cache[key]", _at_slots(stored_keys, slots, block_size), key_codes)
        require_equal("kv_cache[value]", _at_slots(stored_values, slots, block_size), value_codes)
        shape = (stored_keys.shape[0], case.num_kv_heads, block_size)
        stored_scales = case.values("key_scale_cache", shape)
        require_equal("key_scale_cache", _at_slots(stored_scales, slots, block_size), key_scales)
    return [keys, values]
