"""Quantisation of outputs (semantics §9), of queries, keys and values (§11.2), and in encoders."""

import numpy as np

from . import number_formats as formats
from .errors import Disagreement
from .op_case import FP8_MAX, require_bytes

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def check_static(case, x, scale):
    inverse = np.float32(1) / np.float32(scale)
    scaled = x * inverse
    require_bytes("output", case.raw("output"), formats.encode_e4m3(scaled))
    saturated = np.count_nonzero(np.abs(scaled) > 464)
    if int(case.raw("num_saturated")[0]) != saturated:
        raise Disagreement(f"num_saturated is {case.raw('num_saturated')[0]}, expected {saturated}")


def group_scales(x, group, ue8m0):
    groups = x.reshape(len(x), -1, group)
    scales = np.maximum(np.float32(1e-10), np.abs(groups).max(axis=-1)) / FP8_MAX
    if ue8m0:
        mantissa, exponent = np.frexp(np.maximum(scales, np.float32(1e-10)).astype(np.float64))
        scales = np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent)).astype(np.float32)
    return groups, scales.astype(np.float32)


def check_group_output(case, x):
    group = 128 if case.quant["type"] == "fp8_group128" else 64
    groups, scales = group_scales(x, group, case.quant["ue8m0"])
    codes = formats.encode_e4m3(groups / scales[..., None])
    require_bytes("output", case.raw("output"), codes.reshape(case.raw("output").shape))
    stored = case.raw("output_scales")
    if case.quant["column_major"] or case.quant["tma_aligned"]:
        width = -(-len(x) // 4) * 4 if case.quant["tma_aligned"] else len(x)
        if stored.shape[1] != width:
            raise Disagreement(f"output_scales: columns of {stored.shape[1]}, expected {width}")
        if not (np.ascontiguousarray(stored[:, len(x) :]).view(np.uint8) == 0xFF).all():
            raise Disagreement("output_scales: rows of padding were written")
        stored = stored[:, : len(x)].T
    require_bytes("output_scales", np.ascontiguousarray(stored), scales)


def swizzled(scales):
    """Tiles of 128 rows by 4 blocks; a row's place in its tile is (row mod 32, row / 32)."""
    rows, blocks = (-(-scales.shape[0] // 128) * 128, -(-scales.shape[1] // 4) * 4)
    padded = np.zeros((rows, blocks), dtype=np.uint8)
    padded[: scales.shape[0], : scales.shape[1]] = scales
    tiles = padded.reshape(rows // 128, 4, 32, blocks // 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(tiles).reshape(rows, blocks)


def encode_e2m1(x):
    magnitude = np.minimum(np.abs(x), 6.0)
    codes = np.searchsorted(formats.bounds_of(E2M1), magnitude.astype(np.float64))
    return np.where(np.signbit(x), codes + 8, codes).astype(np.uint8)


def check_nvfp4_output(case, x):
    g = np.float32(case.quant["scale"])
    blocks = x.reshape(len(x), -1, 16)
    codes = formats.encode_e4m3(g * (np.abs(blocks).max(axis=-1) / np.float32(6)))
    scale = formats.decode("F8_E4M3", codes)
    with np.errstate(divide="ignore"):
        factor = np.where(scale == 0, np.float32(0), np.float32(1) / (scale / g))
    nibbles = encode_e2m1(blocks * factor[..., None]).reshape(len(x), -1)
    actual = case.raw("output")
    found = np.stack([actual & 0xF, actual >> 4], axis=-1).reshape(len(x), -1)
    steps = [np.where(c & 8, -(c & 7).astype(int), (c & 7).astype(int)) for c in (found, nibbles)]
    distance = np.abs(steps[0] - steps[1])
    if distance.max(initial=0) > 1 or np.count_nonzero(distance) > 1e-3 * distance.size:
        raise Disagreement(f"output: {np.count_nonzero(distance)} e2m1 codes differ")
    require_bytes(
        "output_scales", case.raw("output_scales"), swizzled(codes) if case.quant["swizzle"] else codes
    )


def check_output_quant(case):
    x = case.values("input")[: case.num_tokens]
    kind = case.quant["type"]
    if kind == "fp8_static":
        check_static(case, x, case.quant["scale"])
    elif kind == "nvfp4":
        check_nvfp4_output(case, x.reshape(case.num_tokens, -1))
    else:
        check_group_output(case, x.reshape(case.num_tokens, -1))
    return 0.0


def int8_by_token(x):
    largest = np.abs(x).max(axis=-1)
    with np.errstate(divide="ignore"):
        factor = np.where(largest == 0, np.float32(0), np.float32(127) / largest)
    codes = np.clip(np.rint(x * factor[..., None]), -128, 127).astype(np.int8)
    return codes, (largest / np.float32(127)).astype(np.float32)


def check_int8(case, query, key, value):
    codes, scales = int8_by_token(query)
    require_bytes("output", case.raw("output"), codes)
    require_bytes("output_scales", case.raw("output_scales"), np.ascontiguousarray(scales.T))
    codes, scales = int8_by_token(key)
    require_bytes("key_output", case.raw("key_output"), codes)
    require_bytes("key_scales", case.raw("key_scales"), scales)
    if case.cache["int8_level"] != 1:
        return
    scales = case.raw("value_scales")
    if case.cache["value_scale_file"] is None:
        scales = (np.abs(value).max(axis=0) / np.float32(127)).astype(np.float32)
        require_bytes("value_scales", case.raw("value_scales"), scales)
    quotient = np.where(scales == 0, np.float32(0), value / np.where(scales == 0, 1, scales))
    codes = np.clip(np.rint(quotient), -128, 127).astype(np.int8)
    require_bytes("value_output", case.raw("value_output"), codes)


def projected(case):
    rows = case.values("projection")
    ends = np.cumsum([case.heads, case.kv_heads])
    return rows[:, : ends[0]], rows[:, ends[0] : ends[1]], rows[:, ends[1] :]


def check_quantize(case):
    if case.op["mla"]:
        both = np.concatenate([case.values("ql_nope"), case.values("q_pe")], axis=-1)
        check_static(case, both[: case.num_tokens], case.cache["q_scale"])
        return 0.0
    query, key, value = projected(case)
    if case.cache["int8_level"] > 0:
        check_int8(case, query, key, value)
    else:
        check_static(case, query, case.cache["q_scale"])
    return 0.0


def check_mm_quant(case):
    from . import mm

    settings = case.problem["mm_encoder"]
    for index, (name, values) in enumerate(zip(("query", "key", "value"), projected(case))):
        used = np.float32(case.raw("fp8_scales")[index])
        if settings["fp8_scale_path"] is None:
            expected = mm.dynamic_scale(values, settings["amax"])
            if used != expected:
                raise Disagreement(f"fp8_scales: that of {name} is {used!r}, expected {expected!r}")
        skip = settings["fp8_scale_path"] is not None and used == 1
        require_bytes(f"{name}_codes", case.raw(f"{name}_codes"), mm.quantise(values, used, skip))
    return 0.0
