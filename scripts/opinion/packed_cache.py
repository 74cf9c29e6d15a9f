"""Caches with two codes a byte (semantics §5.6, §5.7), and latents with scales behind their block
(§8.4.6): what they must hold, and what it means."""

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
