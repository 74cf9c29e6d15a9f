"""Number formats from their definitions (semantics §0.3, §0.4).

Codes of one sign of a binary float format are ordered like their values, so a format is fully given
by the table of its values; rounding is a search between them with ties going to the even code.
"""

import numpy as np

from .errors import FormatError


def _values(exponent_bits, mantissa_bits, bias, ieee_specials):
    """Values of all codes with sign bit 0, in code order, as float64 [2**(bits-1)]."""
    codes = np.arange(1 << (exponent_bits + mantissa_bits))
    exponent = codes >> mantissa_bits
    mantissa = codes & ((1 << mantissa_bits) - 1)
    fraction = mantissa / float(1 << mantissa_bits)
    normal = np.ldexp(1.0 + fraction, exponent - bias)
    subnormal = np.ldexp(fraction, 1 - bias)
    values = np.where(exponent == 0, subnormal, normal)
    if ieee_specials:
        top = exponent == (1 << exponent_bits) - 1
        values = np.where(top, np.where(mantissa == 0, np.inf, np.nan), values)
    else:
        values[-1] = np.nan
    return values


_E4M3 = _values(4, 3, 7, ieee_specials=False)
_E5M2 = _values(5, 2, 15, ieee_specials=True)
_F16 = _values(5, 10, 15, ieee_specials=True)


def _both_signs(positive):
    return np.concatenate([positive, -positive])


_DECODE = {
    "F8_E4M3": _both_signs(_E4M3).astype(np.float32),
    "F8_E5M2": _both_signs(_E5M2).astype(np.float32),
    "F16": _both_signs(_F16).astype(np.float32),
}


def decode(dtype, raw):
    """Values of raw bits as float32; float64 stays float64. Exact in every case."""
    if dtype in _DECODE:
        return _DECODE[dtype][raw]
    if dtype == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if dtype in ("F32", "F64"):
        return raw
    if dtype in ("I8", "U8", "I32"):
        return raw.astype(np.float32)
    raise FormatError(f"no floating value for dtype {dtype}")


def bounds_of(positive):
    """The largest float64 that is rounded to each finite value but the last, which takes the rest:
    halfway to the next one, or just below where the tie goes to an even code above."""
    finite = positive[np.isfinite(positive)]
    halfway = (finite[:-1] + finite[1:]) / 2  # exact
    is_odd = np.arange(len(halfway)) % 2 == 1
    return np.where(is_odd, np.nextafter(halfway, 0), halfway)


_BOUNDS = {"F8_E4M3": bounds_of(_E4M3), "F8_E5M2": bounds_of(_E5M2)}


def _search_fp8(x, bounds):
    """Codes of float64 values."""
    codes = np.searchsorted(bounds, np.abs(x)).astype(np.uint8)
    codes = codes | np.signbit(x).astype(np.uint8) << 7
    return np.where(np.isnan(x), 0x7F, codes).astype(np.uint8)


# Bits of a float32 below those that a bound of an 8-bit float can have set: four of the significand
# tell on which side of every bound a value lies, and whether there is more tells a tie.
_LOW_BITS = 19


def _table(bounds):
    """Codes by the bits of |x| above the low ones, times 2, plus 1 if one of these is set."""
    keys = np.arange(1 << (32 - _LOW_BITS), dtype=np.uint32)
    values = ((keys >> 1 << _LOW_BITS) | (keys & 1)).view(np.float32)
    return _search_fp8(values.astype(np.float64), bounds)


_TABLES = {name: _table(bounds) for name, bounds in _BOUNDS.items()}


def _encode_fp8(x, name):
    x = np.asarray(x)
    if x.dtype != np.float32:
        return _search_fp8(x.astype(np.float64), _BOUNDS[name])
    bits = np.ascontiguousarray(x).view(np.uint32)
    keys = bits >> (_LOW_BITS - 1) & ((1 << (32 - _LOW_BITS)) - 2)
    keys |= bits & ((1 << _LOW_BITS) - 1) != 0
    codes = _TABLES[name][keys] | (bits >> 24 & 0x80).astype(np.uint8)
    codes[np.isnan(x)] = 0x7F
    return codes


def encode_e4m3(x):
    """rn_e4m3: nearest even, saturating to +-448, NaN -> 0x7F."""
    return _encode_fp8(x, "F8_E4M3")


def encode_e5m2(x):
    """rn_e5m2: nearest even, saturating to +-57344, NaN -> 0x7F."""
    return _encode_fp8(x, "F8_E5M2")


def encode_bf16(x):
    """Nearest even; overflow goes to infinity."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, 0x7FC0, rounded).astype(np.uint16)


def encode_f16(x):
    """Nearest even; overflow goes to infinity."""
    with np.errstate(over="ignore"):
        return np.asarray(x, dtype=np.float32).astype(np.float16).view(np.uint16)


def half_away_i8(x):
    """ha_i8: half away from zero in float32, clamped to [-128, 127]."""
    x = np.asarray(x, dtype=np.float32)
    shifted = np.where(np.signbit(x), x - np.float32(0.5), x + np.float32(0.5))
    return np.trunc(np.clip(shifted, -128, 127)).astype(np.int8)


def truncate_i8(x):
    """tr_i8: toward zero, clamped to [-128, 127]."""
    return np.trunc(np.clip(np.asarray(x, dtype=np.float32), -128, 127)).astype(np.int8)


def round_to(dtype, x):
    """Float32 values as they read back after being stored as a scenario dtype."""
    if dtype == "bfloat16":
        return decode("BF16", encode_bf16(x))
    if dtype == "float16":
        return decode("F16", encode_f16(x))
    if dtype == "float32":
        return np.asarray(x, dtype=np.float32)
    raise FormatError(f"unknown dtype {dtype!r}")


def quantise_per_token_head(x, to_int8, int8_round="half_away"):
    """Semantics §5.5 on x [n, Hk, D]: codes (int8, or e4m3 bytes) and scales float32 [n, Hk]."""
    x = np.asarray(x, dtype=np.float32)
    q_max = np.float32(127.0 if to_int8 else 448.0)
    scale = np.maximum(np.abs(x).max(axis=-1) * (np.float32(1.0) / q_max), np.float32(1e-6))
    y = x * (np.float32(1.0) / scale)[..., None]
    if to_int8:
        codes = half_away_i8(y) if int8_round == "half_away" else truncate_i8(y)
    else:
        codes = encode_e4m3(np.clip(y, -448, 448))
    return codes, scale
