"""Rotations (semantics §12), and what is written into caches and gathered from them (§5, §8.4)."""

import numpy as np

from . import compare
from . import number_formats as formats
from . import packed_cache
from .op_case import FP8_MAX, NAMES, require_bytes

ROPE = {"bfloat16": (1e-3, 1.6e-2), "float16": (1e-3, 1e-3), "float32": (1e-5, 1.3e-6)}
FLT_MIN = np.float32(1.17549435e-38)

# ---- Rotation ----------------------------------------------------------------------------------


def check_table(case):
    """cos_sin_cache is the definition, rounded to its type."""
    table = case.values("cos_sin_cache").astype(np.float64)
    rotated = case.op["rotary_dim"]
    frequencies = case.op["rope_base"] ** (-2.0 * np.arange(rotated // 2) / rotated)
    angles = np.arange(len(table))[:, None] * frequencies
    expected = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    step = {"F32": 1e-7, "F16": 5e-4, "BF16": 4e-3}[case.tensors["cos_sin_cache"].dtype]
    compare.require_close("cos_sin_cache", table, expected, step, 0)
    return table


def rotate(case, x):
    """x [T, heads, D] with its first rotary_dim columns rotated, float64."""
    rotated = case.op["rotary_dim"]
    half = rotated // 2
    rows = check_table(case)[case.raw("positions")]
    cosine, sine = rows[:, None, :half], rows[:, None, half:]
    neox = case.op["rope_style"] == "neox"
    first = slice(0, half) if neox else slice(0, rotated, 2)
    second = slice(half, rotated) if neox else slice(1, rotated, 2)
    result = x.astype(np.float64)
    a, b = result[..., first].copy(), result[..., second].copy()
    result[..., first] = a * cosine - b * sine
    result[..., second] = b * cosine + a * sine
    return result


def check_rotated(case, name, expected):
    atol, rtol = ROPE[case.dtype]
    return compare.require_close(name, case.values(name).astype(np.float64), expected, atol, rtol)


def check_rope(case, writes):
    if case.op["mla"]:
        nope = case.mla["qk_nope_head_dim"]
        query = case.values("query").astype(np.float64)
        query[..., nope:] = rotate(case, query[..., nope:])
        error = check_rotated(case, "output", query)
        check_rotated(case, "key_output", rotate(case, case.values("k_pe")))
        if writes:
            check_entries(case, case.raw("new_kv_c"), case.raw("key_output")[:, 0])
        return error
    rows = case.values("projection").astype(np.float64)
    turning = case.heads + case.kv_heads
    rows[:, :turning] = rotate(case, rows[:, :turning])
    error = check_rotated(case, "output", rows)
    if writes:
        raw = case.raw("output")
        check_cells(case, raw[:, case.heads : turning], raw[:, turning:])
    return error


# ---- Caches ------------------------------------------------------------------------------------


def planes(case, cache):
    """Views [NB, bs, Hk, D] of K and V of one rank's cache."""
    layout, order = case.op["cache_layout"], case.cache["layout"]
    if case.cache["dtype"] in packed_cache.SLOTS:
        size = case.problem["attention"]["head_size"]
        key_bytes, value_bytes, _ = packed_cache.slot_bytes(case.cache["dtype"], size)
        slots = cache[:, 0].swapaxes(1, 2) if order == "HND" else cache[:, 0]
        return slots[..., :key_bytes], slots[..., key_bytes : key_bytes + value_bytes]
    key, value = (cache[:, 0], cache[:, 1]) if layout == "TR" else (cache[0], cache[1])
    if layout == "IX" or order == "HND":
        key, value = key.swapaxes(1, 2), value.swapaxes(1, 2)
    return key, value


def cell_codes(case, raw, scale, name):
    """Rows [T, Hk, D] as they are stored, and their per-token-head scales."""
    kind = case.cache["dtype"]
    values = formats.decode(NAMES[case.dtype], raw)
    if kind in packed_cache.SLOTS:
        is_key = name == "k"
        store = packed_cache.quantise_slot_key if is_key else packed_cache.quantise_slot_value
        return store(values, kind), None
    if kind == "int4_per_token_head":
        return packed_cache.quantise_int4(values, case.dtype)
    if kind == "nvfp4":
        scales = np.broadcast_to(np.asarray(scale, dtype=np.float32), (case.kv_heads,))
        return packed_cache.quantise_nvfp4(values, scales[:, None])
    if kind.endswith("per_token_head"):
        rounding = case.cache["pth_int8_round"]
        return formats.quantise_per_token_head(values, kind.startswith("int8"), rounding)
    if not kind.startswith("fp8"):
        return raw, None
    scales = np.broadcast_to(np.asarray(scale, dtype=np.float32), (case.kv_heads,))
    quotient = values / scales[:, None]
    as_e4m3 = kind != "fp8_e5m2" or (case.cache["e5m2_as_e4m3"] and case.op["cache_layout"] == "TR")
    return (formats.encode_e4m3 if as_e4m3 else formats.encode_e5m2)(quotient), None


def write_nvfp4(case, cache, name, at, codes, scales):
    """Codes and swizzled scales of new rows into the cache [NB, 2, ...] of a rank, in place."""
    heads, size = codes.shape[1], codes.shape[2] * 2
    planes = packed_cache.split_nvfp4_planes(
        cache, case.cache["layout"] == "HND", case.cache["block_size"], heads, size
    )
    plane = 0 if name == "k" else 1
    planes[0][plane][at] = codes
    of_plane = planes[1][plane]
    plain = of_plane.copy() if plane == 0 else packed_cache.unswizzle(of_plane)
    plain[at] = scales
    of_plane[...] = plain if plane == 0 else packed_cache.swizzle(plain)


def check_cells(case, new_key, new_value):
    """The cache is what it was, with the new rows at their slots."""
    expected = case.raw("kv_cache_before").copy()
    slots = case.raw("slot_mapping").reshape(case.dcp["world_size"], -1)
    by_rank = expected if case.dcp["world_size"] > 1 else expected[None]
    block_size = case.cache["block_size"]
    for rank_slots, cache in zip(slots, by_rank):
        for view, raw, name in zip(planes(case, cache), (new_key, new_value), ("k", "v")):
            live = rank_slots >= 0
            at = (rank_slots[live] // block_size, rank_slots[live] % block_size)
            codes, scales = cell_codes(case, raw[live], case.cache[f"{name}_scale"], name)
            if case.cache["dtype"] == "nvfp4":
                write_nvfp4(case, cache, name, at, codes, scales)
                continue
            width = codes.shape[-1]
            cells = view[at]
            cells[..., :width] = codes.view(view.dtype)
            if scales is not None:
                cells[..., width:] = scales[..., None].astype("<f4").view(view.dtype)
            view[at] = cells
    require_bytes("kv_cache", case.raw("kv_cache"), expected)


def check_int8_cells(case):
    expected = case.raw("kv_cache_before").copy()
    slots = case.raw("slot_mapping")
    live = slots >= 0
    block_size = case.cache["block_size"]
    at = (slots[live] // block_size, slots[live] % block_size)
    expected[0].swapaxes(1, 2)[at] = case.raw("new_key_codes")[live]
    if case.cache["int8_level"] == 1:
        expected[1].swapaxes(1, 2)[at] = case.raw("new_value_codes")[live]
    else:  # planes 1 and 2 together are one 16-bit cache
        wide = expected[1:].reshape(-1).view(np.uint16).reshape(expected.shape[1:])
        wide.swapaxes(1, 2)[at] = case.raw("new_value_codes")[live]
    require_bytes("kv_cache", case.raw("kv_cache"), expected)
    scales = case.raw("key_scale_cache").swapaxes(1, 2)[at]
    require_bytes("key_scale_cache", scales, case.raw("new_key_scales")[live])


def entries_of(case, kv_c, k_pe):
    """Rows of a latent cache as they are stored, from raw bits."""
    both = np.concatenate([kv_c, k_pe], axis=1)
    kind = case.cache["dtype"]
    if not kind.startswith("fp8"):
        return both
    if kind == packed_cache.MODEL1:
        return packed_cache.model1_entries(formats.decode("BF16", kv_c), k_pe)[0]
    scale = np.float32(np.ravel(case.cache["k_scale"])[0])
    if kind != "fp8_ds_mla":
        return formats.encode_e4m3(formats.decode(NAMES[case.dtype], both) / scale)
    tiles = formats.decode(NAMES[case.dtype], kv_c).reshape(len(kv_c), 4, 128)
    scales = np.maximum(np.abs(tiles).max(axis=-1) / FP8_MAX, FLT_MIN).astype(np.float32)
    codes = formats.encode_e4m3(tiles / scales[..., None]).reshape(len(kv_c), 512)
    tail = np.ascontiguousarray(k_pe).view(np.uint8)
    return np.concatenate([codes, scales.astype("<f4").view(np.uint8), tail], axis=1)


def check_entries(case, new_kv_c, new_k_pe):
    expected = case.raw("kv_cache_before").copy()
    slots = case.raw("slot_mapping")
    live = slots >= 0
    is_model1 = case.cache["dtype"] == packed_cache.MODEL1
    if is_model1:
        expected = packed_cache.model1_from_blocks(expected)
    flat = expected.reshape(-1, expected.shape[-1])
    flat[slots[live]] = entries_of(case, new_kv_c[live], new_k_pe[live]).view(flat.dtype)
    if is_model1:
        expected = packed_cache.model1_to_blocks(expected)
    require_bytes("kv_cache", case.raw("kv_cache"), expected)


def check_cache_write(case):
    if case.op["mla"]:
        check_entries(case, case.raw("new_kv_c"), case.raw("new_k_pe"))
    elif case.cache["int8_level"] > 0:
        check_int8_cells(case)
    else:
        check_cells(case, case.raw("new_key"), case.raw("new_value"))
    return 0.0


def check_gather(case):
    """Through the block table from the saved cache, and against the latents that it holds."""
    cache, table = case.raw("kv_cache"), case.raw("block_table")
    if case.cache["dtype"] == packed_cache.MODEL1:
        cache = packed_cache.model1_from_blocks(cache)
    block_size = case.cache["block_size"]
    rows, sources, first = [], [], 0
    for index, (query_len, seq_len) in enumerate(case.batch):
        positions = np.arange(seq_len - query_len, seq_len)
        rows.append(cache[table[index, positions // block_size], positions % block_size])
        sources.append(first + positions)
        first += seq_len
    rows, sources = np.concatenate(rows), np.concatenate(sources)
    entries = entries_of(case, case.raw("kv_c")[sources], case.raw("k_pe")[sources])
    require_bytes("gathered entries", rows, entries.view(rows.dtype))
    kind, output = case.cache["dtype"], case.raw("output")[: len(rows)]
    if case.op["raw"] or not kind.startswith("fp8"):
        expected = entries.view(output.dtype)
    elif kind == "fp8_ds_mla":
        codes = formats.decode("F8_E4M3", rows[:, :512]).reshape(-1, 4, 128)
        scales = np.ascontiguousarray(rows[:, 512:528]).view("<f4")
        nope = formats.encode_bf16(codes * scales[..., None]).reshape(-1, 512)
        expected = np.concatenate([nope, np.ascontiguousarray(rows[:, 528:]).view("<u2")], axis=1)
    elif kind == packed_cache.MODEL1:
        codes = formats.decode("F8_E4M3", rows[:, :448]).reshape(-1, 7, 64)
        exponents = rows[:, 576:583].astype(np.int32) - 127
        nope = formats.encode_bf16(np.ldexp(codes, exponents[..., None])).reshape(-1, 448)
        tail = np.ascontiguousarray(rows[:, 448:576]).view("<u2")
        expected = np.concatenate([nope, tail], axis=1)
    else:
        scale = np.float32(np.ravel(case.cache["k_scale"])[0])
        expected = case.store(formats.decode("F8_E4M3", rows) * scale)
    require_bytes("output", output, expected)
    return 0.0
