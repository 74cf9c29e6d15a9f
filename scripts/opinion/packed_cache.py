"""Caches with codes of a few bits (semantics §5.6 to §5.8), and latents with scales behind their block
(§8.4.6): what they must hold, and what it means."""

import functools
import math

import numpy as np

from . import number_formats as formats

_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
_E2M1_BOUNDS = formats.bounds_of(_E2M1.astype(np.float64))


def _signs(size):
    """+1 where a draw of torch's generator with upstream's seed is below 1/2, else -1."""
    draws = np.random.RandomState(0x9E3779B9).randint(0, 1 << 32, size=size, dtype=np.uint32)
    return np.where((draws & 0xFFFFFF) < 1 << 23, 1, -1).astype(np.float32)


def _hadamard(x):
    """Sums and differences of columns 1, 2, 4, ... apart, in the type of x."""
    size, apart = x.shape[-1], 1
    while apart < size:
        pairs = x.reshape(x.shape[:-1] + (size // (2 * apart), 2, apart))
        lower, upper = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([lower + upper, lower - upper], axis=-2).reshape(x.shape)
        apart *= 2
    return x


def _pack(codes):
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def _unpack(packed):
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[:-1] + (-1,))


def _code_of_16(x):
    return np.clip(np.trunc(np.where(x >= 0, x + np.float32(0.5), x - np.float32(0.5))), 0, 15)


def quantise_int4(x, dtype):
    """x [n, Hk, D] float32 of elements `dtype`: bytes [n, Hk, D / 2] and float32 scales [n, Hk] whose
    low four bits are the zero point."""
    rotated = formats.round_to(dtype, _hadamard(x * _signs(x.shape[-1])))
    least, most = rotated.min(axis=-1), rotated.max(axis=-1)
    scale = np.maximum((most - least) * (np.float32(1) / np.float32(15)), np.float32(1e-6))
    zero = _code_of_16(-least / scale).astype(np.float32)
    scaled = rotated * (np.float32(1) / scale)[..., None]
    codes = _code_of_16(scaled + zero[..., None]).astype(np.uint8)
    bits = scale.astype(np.float32).view(np.uint32) & ~np.uint32(15) | zero.astype(np.uint32)
    return _pack(codes), bits.view(np.float32)


def dequantise_int4(packed, scales):
    """The values in the model's own columns: rotated back, in float64 until the end."""
    bits = np.ascontiguousarray(scales).view(np.uint32)
    scale = (bits & ~np.uint32(15)).view(np.float32).astype(np.float64)
    values = scale[..., None] * (_unpack(packed).astype(np.float64) - (bits & 15)[..., None])
    size = values.shape[-1]
    return (_hadamard(values) * _signs(size) / size).astype(np.float32)


def read_query(x, dtype):
    """What a query [T, H, D] of elements `dtype` means that is rotated for such a cache: rounded in
    between."""
    size = x.shape[-1]
    rotated = formats.round_to(dtype, _hadamard(x * _signs(size))).astype(np.float64)
    return (_hadamard(rotated) * _signs(size) / size).astype(np.float32)


def quantise_nvfp4(x, scale):
    """x [n, Hk, D] float32, scale broadcast over [n, Hk, 1]: bytes [n, Hk, D / 2] and the e4m3 bytes
    of the scales [n, Hk, D / 16]."""
    factor = np.float32(1) / np.broadcast_to(np.float32(scale), x.shape[:-1] + (1,))
    blocks = x.reshape(x.shape[:-1] + (-1, 16))
    largest = np.abs(blocks).max(axis=-1)
    scale_codes = formats.encode_e4m3(factor * (largest / np.float32(6)))
    scales = formats.decode("F8_E4M3", scale_codes)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(scales == 0, np.float32(0), np.float32(1) / (scales / factor))
        scaled = np.where(blocks == 0, blocks, blocks * inverse[..., None])
    codes = np.searchsorted(_E2M1_BOUNDS, np.abs(scaled)).astype(np.uint8)
    codes |= np.signbit(scaled).astype(np.uint8) << 3
    return _pack(codes.reshape(x.shape)), scale_codes


def dequantise_nvfp4(packed, scale_codes, scale):
    codes = _unpack(packed)
    values = np.where(codes & 8, -_E2M1[codes & 7], _E2M1[codes & 7])
    blocks = values.reshape(values.shape[:-1] + (-1, 16))
    values = (blocks * formats.decode("F8_E4M3", scale_codes)[..., None]).reshape(values.shape)
    return values * np.broadcast_to(np.float32(scale), values.shape[:-1] + (1,))


def split_nvfp4_planes(raw, heads_first, block_size, num_kv_heads, head_size):
    """From [NB, 2, bs, Hk, D / 2 + D / 16], whose planes are codes and behind them scales: views
    [2, NB, bs, Hk, D / 2] and [2, NB, bs, Hk, D / 16], those of the values out of their swizzle (a
    copy)."""
    num_blocks, groups = raw.shape[0], head_size // 16
    flat = raw.reshape(num_blocks, 2, -1)
    middle = (num_kv_heads, block_size) if heads_first else (block_size, num_kv_heads)
    split = block_size * num_kv_heads * head_size // 2

    def view(part, width):
        part = part.reshape((num_blocks, 2) + middle + (width,)).transpose(1, 0, 2, 3, 4)
        return part.swapaxes(2, 3) if heads_first else part

    codes, scales = view(flat[..., :split], head_size // 2), view(flat[..., split:], groups)
    return codes, scales


def swizzle(scales):
    """Of the values [NB, bs, Hk, S]: [bs / 4, 4, 4, S / 4] of each head as [bs / 4, 4, S / 4, 4]."""
    blocks, size, heads, groups = scales.shape
    parts = scales.transpose(0, 2, 1, 3).reshape(blocks, heads, size // 4, 4, 4, groups // 4)
    swizzled = parts.transpose(0, 1, 2, 4, 5, 3).reshape(blocks, heads, size, groups)
    return swizzled.transpose(0, 2, 1, 3)


def unswizzle(scales):
    blocks, size, heads, groups = scales.shape
    parts = scales.transpose(0, 2, 1, 3).reshape(blocks, heads, size // 4, 4, groups // 4, 4)
    plain = parts.transpose(0, 1, 2, 5, 3, 4).reshape(blocks, heads, size, groups)
    return plain.transpose(0, 2, 1, 3)


MODEL1 = "fp8_model1_mla"


def model1_entries(latents, k_pe):
    """latents [S, 448] float32, k_pe [S, 64] raw bf16: bytes [S, 584], scales last, and the latents
    that are read back."""
    tiles = latents.reshape(len(latents), 7, 64)
    least = np.maximum(np.abs(tiles).max(axis=2), np.float32(1e-4)) / np.float32(448)
    fraction, exponent = np.frexp(least)  # fraction in [0.5, 1)
    exponent = np.where(fraction == 0.5, exponent - 1, exponent)
    scales = np.ldexp(np.float32(1), exponent)[:, :, None].astype(np.float32)
    codes = formats.encode_e4m3(tiles / scales)
    read = formats.round_to("bfloat16", formats.decode("F8_E4M3", codes) * scales)
    tail = np.concatenate([exponent + 127, np.zeros((len(latents), 1))], axis=1).astype(np.uint8)
    parts = [codes.reshape(len(latents), 448), np.ascontiguousarray(k_pe).view(np.uint8), tail]
    return np.concatenate(parts, axis=1), read.reshape(len(latents), 448)


def model1_from_blocks(cache):
    """A cache [NB, bs, 584] as it lies in memory, data of all slots and then scales of all slots, as
    whole entries [NB, bs, 584] (a copy)."""
    blocks, size, _ = cache.shape
    flat = cache.reshape(blocks, -1)
    data = flat[:, : size * 576].reshape(blocks, size, 576)
    return np.concatenate([data, flat[:, size * 576 :].reshape(blocks, size, 8)], axis=2)


def model1_to_blocks(entries):
    blocks, size, _ = entries.shape
    parts = [entries[..., :576].reshape(blocks, -1), entries[..., 576:].reshape(blocks, -1)]
    return np.concatenate(parts, axis=1).reshape(entries.shape)


# ---- Slots that a key and its value share (§5.8): bits of the codes of a key and of a value -----

SLOTS = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}


def slot_bytes(kind, size):
    """Bytes of the key, of the value, and of the whole slot, which is even."""
    key_bits, value_bits = SLOTS[kind]
    key = size if key_bits == 8 else size * key_bits // 8 + 2
    value = size * value_bits // 8 + 4
    return key, value, key + value + (key + value) % 2


@functools.lru_cache(maxsize=None)
def _centroids(size, bits):
    """Where the iteration of Lloyd and Max for N(0, 1 / size) ends, in Python floats."""
    variance, count = 1.0 / size, 2**bits

    def density(x):
        return (1.0 / math.sqrt(2 * math.pi * variance)) * math.exp(-x * x / (2 * variance))

    def integral(f, a, b):
        h = (b - a) / 200
        total = 0.5 * (f(a) + f(b))
        for i in range(1, 200):
            total += f(a + i * h)
        return total * h

    most = 3.5 * math.sqrt(variance)
    points = [-most + (most + most) * (i + 0.5) / count for i in range(count)]
    for _ in range(200):
        edges = [-3 * most, *((a + b) / 2.0 for a, b in zip(points, points[1:])), 3 * most]
        cells = list(zip(edges, edges[1:]))
        masses = [integral(density, *cell) for cell in cells]
        moments = [integral(lambda x: x * density(x), *cell) for cell in cells]
        moved = [m / n if n > 1e-15 else p for m, n, p in zip(moments, masses, points)]
        if max(abs(a - b) for a, b in zip(moved, points)) < 1e-10:
            break
        points = moved
    return np.array(points, dtype=np.float32)


def _pack_bits(codes, bits):
    """Codes one behind the other, from the lowest bit of the first byte on."""
    each = codes.astype(np.uint8)[..., None] >> np.arange(bits, dtype=np.uint8) & 1
    return np.packbits(each.reshape(codes.shape[:-1] + (-1,)), axis=-1, bitorder="little")


def _unpack_bits(packed, bits):
    each = np.unpackbits(np.ascontiguousarray(packed), axis=-1, bitorder="little")
    each = each.reshape(packed.shape[:-1] + (-1, bits))
    codes = each[..., 0].copy()
    for bit in range(1, bits):
        codes |= each[..., bit] << bit
    return codes.astype(np.int64)


def _f16_bytes(x):
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(x.astype("<f2")[..., None]).view(np.uint8)


def _f16_at(packed, at):
    return np.ascontiguousarray(packed[..., at : at + 2]).view("<f2")[..., 0].astype(np.float64)


def _norms(x):
    sums = x * x
    while sums.shape[-1] > 1:
        sums = sums[..., 0::2] + sums[..., 1::2]
    return np.sqrt(sums[..., 0])


def quantise_slot_key(x, kind):
    """x [n, Hk, D] float32: the bytes of the key's part of the slots."""
    bits = SLOTS[kind][0]
    if bits == 8:
        return formats.encode_e4m3(x)
    size = x.shape[-1]
    norms = _norms(x)
    rotated = _hadamard(x / (norms + np.float32(1e-8))[..., None])
    unit = np.float32(1) / np.sqrt(np.float32(size))
    points = _centroids(size, bits)
    midways = (points[:-1] + points[1:]) / np.float32(2)
    codes = np.searchsorted(midways, rotated * unit, side="right")
    return np.concatenate([_pack_bits(codes, bits), _f16_bytes(norms)], axis=-1)


def quantise_slot_value(x, kind):
    """The same of the value's part."""
    bits = SLOTS[kind][1]
    last = np.float32(2**bits - 1)
    least, most = x.min(axis=-1), x.max(axis=-1)
    # Of zeros of both signs the negative one is the least.
    negative_zero = ((x == 0) & np.signbit(x)).any(axis=-1)
    least = np.where((least == 0) & negative_zero, np.float32(-0.0), least)
    step = np.maximum((most - least) * (np.float32(1) / last), np.float32(1e-8))
    steps = (x - least[..., None]) / step[..., None] + np.float32(0.5)
    codes = np.clip(np.floor(steps), 0, last).astype(np.int64)
    return np.concatenate([_pack_bits(codes, bits), _f16_bytes(step), _f16_bytes(least)], axis=-1)


def dequantise_slot_key(packed, kind, size):
    bits = SLOTS[kind][0]
    if bits == 8:
        return formats.decode("F8_E4M3", packed)
    codes = size * bits // 8
    points = _centroids(size, bits).astype(np.float64)[_unpack_bits(packed[..., :codes], bits)]
    # Sums in the order of the columns, as the definition has them.
    lengths = np.sqrt(np.cumsum(points * points, axis=-1)[..., -1] + 1e-16)
    factors = _f16_at(packed, codes) / lengths / math.sqrt(size)
    return (_hadamard(points) * factors[..., None]).astype(np.float32)


def dequantise_slot_value(packed, kind, size):
    bits = SLOTS[kind][1]
    codes = size * bits // 8
    steps, least = _f16_at(packed, codes), _f16_at(packed, codes + 2)
    values = _unpack_bits(packed[..., :codes], bits) * steps[..., None] + least[..., None]
    return values.astype(np.float32)
