"""Reads paged caches back by block table (semantics §2, §5), and quantises by itself."""

import numpy as np

from . import number_formats as formats
from . import packed_cache
from .errors import Disagreement, FormatError

KEY, VALUE = 0, 1


def _scale_column(scale):
    """A scalar or per-head scale as float32 that broadcasts over [n, Hk, D]."""
    scale = np.asarray(scale, dtype=np.float32)
    return scale[:, None] if scale.ndim else scale


def quantise(rules, x, plane):
    """What the cache must hold for x [n, Hk, D]: codes and its own scales, or None without."""
    if rules.shares_slots:
        store = packed_cache.quantise_slot_key if plane == KEY else packed_cache.quantise_slot_value
        return store(x, rules.cache_dtype), None
    if rules.cache_dtype == "int4_per_token_head":
        return packed_cache.quantise_int4(x, rules.dtype)
    if rules.cache_dtype == "nvfp4":
        scale = _scale_column(rules.k_scale if plane == KEY else rules.v_scale)
        return packed_cache.quantise_nvfp4(x, scale)
    if rules.per_token_head:
        to_int8 = rules.cache_dtype == "int8_per_token_head"
        return formats.quantise_per_token_head(x, to_int8, rules.int8_round)
    divided = x / _scale_column(rules.k_scale if plane == KEY else rules.v_scale)
    encode = formats.encode_e5m2 if rules.cache_format == "F8_E5M2" else formats.encode_e4m3
    return encode(divided), None


def dequantise(rules, codes, scales, plane):
    """The values that attention reads, float32 [n, Hk, D] (§15.1)."""
    if rules.shares_slots:
        is_key = plane == KEY
        read = packed_cache.dequantise_slot_key if is_key else packed_cache.dequantise_slot_value
        return read(codes, rules.cache_dtype, rules.section("attention")["head_size"])
    if rules.cache_dtype == "int4_per_token_head":
        return packed_cache.dequantise_int4(codes, scales)
    if rules.cache_dtype == "nvfp4":
        scale = _scale_column(rules.k_scale if plane == KEY else rules.v_scale)
        return packed_cache.dequantise_nvfp4(codes, scales, scale)
    values = formats.decode(rules.cache_format, codes)
    if rules.per_token_head:
        return values * scales[..., None]
    values = values * _scale_column(rules.k_scale if plane == KEY else rules.v_scale)
    if rules.kernel.rounds_dequantised:
        return formats.round_to(rules.dtype, values)
    return values


def slots_of_request(block_row, seq_len, block_size):
    p = np.arange(seq_len)
    return block_row[p // block_size].astype(np.int64) * block_size + p % block_size


class PagedCache:
    """The saved `kv_cache`, addressed as [plane][slot, head, byte or element]."""

    def __init__(self, rules, stored, num_kv_heads, head_size):
        self.rules = rules
        self.block_size = rules.block_size
        raw = stored.raw
        expected_bits = "u1" if rules.quantised_cache else raw.dtype.str
        if rules.quantised_cache and raw.dtype.itemsize != 1:
            raise FormatError(f"kv_cache is {stored.dtype}, expected one byte an element")
        if not rules.quantised_cache and stored.dtype != rules.cache_format:
            raise FormatError(f"kv_cache is {stored.dtype}, expected {rules.cache_format}")
        self.width = head_size + (4 if rules.per_token_head else 0)
        if rules.cache_dtype == "int4_per_token_head":
            self.width = head_size // 2 + 4
        self.head_size = head_size
        raw = raw.view(expected_bits)
        if rules.cache_dtype == "nvfp4":
            self._read_nvfp4(raw, num_kv_heads)
        elif rules.shares_slots:
            self._read_slots(raw, num_kv_heads)
        else:
            self.planes = self._as_planes(raw, num_kv_heads)

    def _read_nvfp4(self, raw, num_kv_heads):
        heads_first = self.rules.cache_layout == "HND"
        sizes = [num_kv_heads, self.block_size] if heads_first else [self.block_size, num_kv_heads]
        expected = (2, *sizes, self.head_size // 2 + self.head_size // 16)
        if raw.shape[1:] != expected:
            raise FormatError(f"kv_cache has shape {raw.shape}, expected [NB, *{expected}]")
        self.planes, scales = packed_cache.split_nvfp4_planes(
            raw, heads_first, self.block_size, num_kv_heads, self.head_size
        )
        self.scales = [scales[KEY], packed_cache.unswizzle(scales[VALUE])]

    def _read_slots(self, raw, num_kv_heads):
        """[NB, 1, ...] of slots: the parts of keys and of values as planes [NB, bs, Hk, bytes]."""
        key, value, slot = packed_cache.slot_bytes(self.rules.cache_dtype, self.head_size)
        heads_first = self.rules.cache_layout == "HND"
        sizes = [num_kv_heads, self.block_size] if heads_first else [self.block_size, num_kv_heads]
        expected = (1, *sizes, slot)
        if raw.shape[1:] != expected:
            raise FormatError(f"kv_cache has shape {raw.shape}, expected [NB, *{expected}]")
        slots = raw[:, 0].swapaxes(1, 2) if heads_first else raw[:, 0]
        self.planes = [slots[..., :key], slots[..., key : key + value]]

    def _as_planes(self, raw, num_kv_heads):
        """[2, NB, bs, Hk, width] as a view of the physical, row-major array."""
        if self.rules.layers is not None:
            # A cross-layer cache has the blocks outermost, then the layers (§2).
            if raw.ndim != 6 or raw.shape[1] != self.rules.layers:
                raise FormatError(f"kv_cache has shape {list(raw.shape)}, expected [NB, L, ...]")
            raw = raw[:, self.rules.layer]
            if self.rules.kernel.cache_layout != "TR":
                raw = raw.swapaxes(0, 1)
        if raw.ndim != 5:
            raise FormatError(f"kv_cache has shape {list(raw.shape)}, expected 5 dimensions")
        kind = self.rules.kernel.cache_layout
        heads_first = kind == "IX" or self.rules.cache_layout == "HND"
        # A plugin has K and V apart or side by side, and never just two blocks: some are spare.
        side_by_side = self.rules.is_plugin and raw.shape[0] != 2
        if kind == "TR" or side_by_side:
            raw = raw.transpose(1, 0, 2, 3, 4)
        if heads_first:
            raw = raw.transpose(0, 1, 3, 2, 4)
        expected = (2, raw.shape[1], self.block_size, num_kv_heads, self.width)
        if raw.shape != expected:
            raise FormatError(
                f"kv_cache as [2, NB, bs, Hk, D] has shape {raw.shape}, expected {expected}"
            )
        return raw

    def gather(self, plane, slots):
        """Codes [n, Hk, D] and float32 scales [n, Hk] or None of the given slots."""
        num_blocks = self.planes[plane].shape[0]
        blocks = slots // self.block_size
        if slots.size and (blocks.min() < 0 or blocks.max() >= num_blocks):
            raise Disagreement(f"block_table entry outside [0, {num_blocks})")
        cells = np.ascontiguousarray(self.planes[plane][blocks, slots % self.block_size])
        if self.rules.cache_dtype == "nvfp4":
            return cells, self.scales[plane][blocks, slots % self.block_size]
        is_int4 = self.rules.cache_dtype == "int4_per_token_head"
        if not self.rules.per_token_head and not is_int4:
            return cells, None
        scales = np.ascontiguousarray(cells[..., self.width - 4 :]).view("<f4")[..., 0]
        codes = np.ascontiguousarray(cells[..., : self.width - 4])
        return (codes.view("i1") if self.rules.cache_format == "I8" else codes), scales
