"""Quantised attention outputs (semantics §9): the bytes that a 16-bit output must become."""

import math

import numpy as np

from . import number_formats as formats
from .errors import Disagreement, FormatError

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
GROUPS = {"fp8_group128": 128, "fp8_group64": 64}


def _static(rows, spec):
    scale = np.float32(spec["scale"])
    return formats.encode_e4m3(rows * (np.float32(1) / scale)), np.array([scale], np.float32)


def _power_of_two_above(scale):
    mantissa, exponent = math.frexp(max(float(scale), float(np.float32(1e-10))))
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def _groups(rows, spec):
    size = GROUPS[spec["type"]]
    members = rows.reshape(len(rows), -1, size)
    largest = np.maximum(np.abs(members).max(axis=2, initial=0), np.float32(1e-10))
    scales = (largest / np.float32(448)).astype(np.float32)
    if spec["ue8m0"]:
        scales = np.vectorize(_power_of_two_above, otypes=[np.float32])(scales)
    codes = formats.encode_e4m3(members / scales[:, :, None]).reshape(rows.shape)
    return codes, scales


def _lay_out_groups(scales, spec):
    """Column-major scales as they are saved: [G, T], aligned ones with rows of poison behind."""
    if not spec["column_major"] and not spec["tma_aligned"]:
        return scales
    by_column = np.ascontiguousarray(scales.T)
    if not spec["tma_aligned"]:
        return by_column
    missing = -len(scales) % 4
    poison = np.full((len(by_column), missing), 0xFFFFFFFF, np.uint32).view(np.float32)
    return np.concatenate([by_column, poison], axis=1)


def _nvfp4(rows, spec):
    factor = np.float32(spec["scale"])
    blocks = rows.reshape(len(rows), -1, 16)
    largest = np.abs(blocks).max(axis=2, initial=0).astype(np.float32)
    scale_codes = formats.encode_e4m3(factor * (largest / np.float32(6)))
    scales = formats.decode("F8_E4M3", scale_codes)
    with np.errstate(divide="ignore"):
        multiplier = np.where(scales == 0, np.float32(0), np.float32(1) / (scales / factor))
    scaled = (blocks * multiplier[:, :, None]).reshape(rows.shape)
    magnitude = np.minimum(np.abs(scaled), 6)
    low = np.searchsorted(E2M1, magnitude, side="right") - 1
    high = np.minimum(low + 1, 7)
    below, above = magnitude - E2M1[low], E2M1[high] - magnitude
    code = np.where((above < below) | ((above == below) & (low % 2 == 1)), high, low)
    code = (code | np.where(np.signbit(scaled), 8, 0)).astype(np.uint8)
    return code[:, 0::2] | code[:, 1::2] << 4, scale_codes


def _swizzle(scales):
    """Bytes of 128 x 4 tiles; what belongs to no row or block is 0."""
    rows, blocks = scales.shape
    tiles = -(-blocks // 4)
    result = np.zeros((-(-rows // 128) * 128, tiles * 4), np.uint8)
    flat = result.reshape(-1)
    m, k = np.meshgrid(np.arange(rows), np.arange(blocks), indexing="ij")
    at = ((m // 128 * tiles + k // 4) * 512) + m % 32 * 16 + m // 32 % 4 * 4 + k % 4
    flat[at] = scales
    return result


def quantise(rows, spec):
    """Codes and scales of float32 [T, K] in the layouts that are saved."""
    if spec["type"] == "fp8_static":
        return _static(rows, spec)
    if spec["type"] in GROUPS:
        codes, scales = _groups(rows, spec)
        return codes, _lay_out_groups(scales, spec)
    if spec["type"] == "nvfp4":
        codes, scales = _nvfp4(rows, spec)
        return codes, _swizzle(scales) if spec["swizzle"] else scales
    raise FormatError(f"output quantisation {spec['type']!r} is not covered")


def check(case_values, tensors, spec):
    """`output` and `output_scales` are the bytes that `output_unquantized` gives."""
    rows = case_values("output_unquantized")
    codes, scales = quantise(rows.reshape(len(rows), -1).astype(np.float32), spec)
    for name, expected in (("output", codes), ("output_scales", scales)):
        actual = np.ascontiguousarray(tensors[name].raw)
        wanted = np.ascontiguousarray(expected)
        if actual.nbytes != wanted.nbytes:
            raise Disagreement(f"{name} has {actual.nbytes} bytes, expected {wanted.nbytes}")
        wrong = np.flatnonzero(actual.reshape(-1).view(np.uint8) != wanted.reshape(-1).view(np.uint8))
        if len(wrong):
            raise Disagreement(f"{name}: byte {wrong[0]} differs, {len(wrong)} of {actual.nbytes}")
