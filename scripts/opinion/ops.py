"""Single operations (semantics §5 to §12): every saved result recomputed from its operands."""

import json

import numpy as np

from . import compare
from . import number_formats as formats
from . import packed_cache
from .errors import Disagreement, FormatError

NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
ATOL = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 2e-5}  # rtol is the same (§14.2)
ROPE = {"bfloat16": (1e-3, 1.6e-2), "float16": (1e-3, 1e-3), "float32": (1e-5, 1.3e-6)}
FP8_MAX = np.float32(448.0)
FLT_MIN = np.float32(1.17549435e-38)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


class OpCase:
    """Tensors of a file and what its problem says."""

    def __init__(self, tensors, metadata):
        self.tensors = tensors
        self.problem = json.loads(metadata["problem"])
        self.op, self.cache = self.problem["op"], self.problem["kv_cache"]
        self.attention, self.mla = self.problem["attention"], self.problem["mla"]
        self.quant, self.dcp = self.problem["output_quant"], self.problem["dcp"]
        self.dtype = self.attention["dtype"]
        self.heads = self.attention["num_heads"]
        self.kv_heads = self.attention["num_kv_heads"]
        self.batch = [
            (row["query_len"], row["seq_len"])
            for row in self.problem["batch"]
            for _ in range(row["count"])
        ]
        self.num_tokens = sum(query_len for query_len, _ in self.batch)

    def raw(self, name):
        if name not in self.tensors:
            raise FormatError(f"tensor {name!r} is missing")
        return self.tensors[name].raw

    def values(self, name):
        self.raw(name)
        return formats.decode(self.tensors[name].dtype, self.tensors[name].raw)

    def store(self, values):
        """Bits of float32 values in the model's type."""
        return encode(NAMES[self.dtype], values)


def encode(dtype, values):
    if dtype == "BF16":
        return formats.encode_bf16(values)
    if dtype == "F16":
        return formats.encode_f16(values)
    return np.asarray(values, dtype=np.float32)


def require_bytes(name, actual, expected):
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise Disagreement(f"{name}: {actual.shape} {actual.dtype}, expected {expected.shape}")
    size = actual.dtype.itemsize
    a = np.ascontiguousarray(actual).view(np.uint8).reshape(-1, size)
    e = np.ascontiguousarray(expected).view(np.uint8).reshape(-1, size)
    wrong = (a != e).any(axis=1)
    if wrong.any():
        where = np.unravel_index(int(np.argmax(wrong)), actual.shape)
        raise Disagreement(
            f"{name}{[int(i) for i in where]} is {actual[where]}, expected {expected[where]} "
            f"({np.count_nonzero(wrong)} of {wrong.size} differ)"
        )


# ---- Partial results ---------------------------------------------------------------------------


def weighted_sum(parts, weights):
    """Sum of weight * part; a part of weight 0 contributes exactly 0."""
    total = np.zeros(parts[0].shape)
    for part, weight in zip(parts, weights):
        product = weight[..., None] * np.where(weight[..., None] == 0, 0.0, part)
        total = total + product
    return total


def combine(parts, lses, base=np.e):
    """Output [T, H, D] and LSE [T, H] of parts with LSEs [T, H], -inf where they saw no key."""
    stacked = np.stack(lses) * np.log(base)
    peak = np.max(stacked, axis=0)
    shift = np.where(np.isneginf(peak), 0.0, peak)
    powers = np.exp(stacked - shift)
    total = powers.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.where(total > 0, powers / total, 0.0)
        lse = (shift + np.log(total)) / np.log(base)
    return weighted_sum(parts, weights), lse, weights


def check_close(case, output, lse):
    atol = ATOL[case.dtype]
    if case.quant["type"] == "fp8_static":
        check_codes(case, output)
        error = 0.0
    else:
        actual = case.values("output").astype(np.float64)
        error = compare.require_close("output", actual, output, atol, atol)
    if "lse" in case.tensors:  # kernels of users may write none
        compare.require_close("lse", case.values("lse").astype(np.float64), lse.T, 1e-5, 1e-5)
    return error


def check_codes(case, output):
    """One e4m3 step at most, in at most one element of a hundred."""
    inverse = np.float32(1) / np.float32(case.quant["scale"])
    wanted = formats.encode_e4m3(output.astype(np.float32) * inverse).astype(np.int64)
    actual = case.raw("output").astype(np.int64)
    steps = [np.where(c & 0x80, -(c & 0x7F), c & 0x7F) for c in (actual, wanted)]
    distance = np.abs(steps[0] - steps[1])
    if distance.max(initial=0) > 1 or np.count_nonzero(distance) > 0.01 * distance.size:
        raise Disagreement(f"output: e4m3 codes up to {distance.max()} steps apart")


def check_merge(case):
    suffix = case.values("suffix_output").astype(np.float64)
    prefix = case.values("prefix_output").astype(np.float64)[..., : suffix.shape[-1]]
    lses = [case.values(f"{name}_lse").astype(np.float64).T for name in ("prefix", "suffix")]
    clean = [np.where(np.isinf(lse), -np.inf, lse) for lse in lses]
    merged = case.op["tokens_with_context"]
    rows = np.arange(len(suffix)) < (len(suffix) if merged is None else merged)
    clean[0] = np.where(rows[:, None], clean[0], -np.inf)
    output, lse, _ = combine([prefix, suffix], clean)
    output = np.where(rows[:, None, None], output, suffix)
    return check_close(case, output, np.where(rows[:, None], lse, lses[1]))


def check_dcp_correct(case):
    partial = case.values("partial_output").astype(np.float64)
    lses = case.values("partial_lse").astype(np.float64).transpose(0, 2, 1)
    ranks, tokens, heads, width = partial.shape
    if ranks == 1:
        require_bytes("output", case.raw("output"), case.raw("partial_output")[0])
        require_bytes("lse", case.raw("lse"), case.raw("partial_lse")[0])
        return 0.0
    clean = np.where(np.isnan(lses) | np.isposinf(lses), -np.inf, lses)
    base = np.e if case.op["lse_base"] == "e" else 2.0
    output, lse, weights = combine(list(partial), list(clean), base)
    if case.dcp["comm"] != "a2a":
        shares = [weighted_sum([p], [w]) for p, w in zip(partial, weights)]
        own = heads // ranks
        expected = np.stack(shares).reshape(ranks, tokens, ranks, own, width).transpose(0, 2, 1, 3, 4)
        actual = case.values("rank_output").astype(np.float64)
        compare.require_close("rank_output", actual, expected.reshape(actual.shape), 2e-5, 2e-5)
    return check_close(case, output, lse)


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
    key, value = (cache[:, 0], cache[:, 1]) if layout == "TR" else (cache[0], cache[1])
    if layout == "IX" or order == "HND":
        key, value = key.swapaxes(1, 2), value.swapaxes(1, 2)
    return key, value


def cell_codes(case, raw, scale):
    """Rows [T, Hk, D] as they are stored, and their per-token-head scales."""
    kind = case.cache["dtype"]
    values = formats.decode(NAMES[case.dtype], raw)
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
            codes, scales = cell_codes(case, raw[live], case.cache[f"{name}_scale"])
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


# ---- Quantisation ------------------------------------------------------------------------------


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


# ---- The indexer -------------------------------------------------------------------------------


def index_parts(case, cache):
    """Views of an index cache u8 [NB, bs * 132]: codes [NB, bs, 128] and scales [NB, bs]."""
    block_size = case.cache["block_size"]
    codes = cache[:, : block_size * 128].reshape(len(cache), block_size, 128)
    scales = np.ascontiguousarray(cache[:, block_size * 128 :]).view("<f4")
    return codes, scales


def check_index_key_cache(case):
    before = case.raw("index_cache_before").copy()
    codes, scales = index_parts(case, before)
    slots = case.raw("slot_mapping")
    live = slots >= 0
    at = (slots[live] // case.cache["block_size"], slots[live] % case.cache["block_size"])
    keys = case.values("new_index_key")[live].astype(np.float32)
    largest = np.abs(keys).max(axis=1, initial=0).astype(np.float32)
    scale = np.maximum(largest, np.float32(1e-4)) / FP8_MAX
    if case.mla["index_ue8m0"]:
        scale = np.exp2(np.ceil(np.log2(scale.astype(np.float64)))).astype(np.float32)
    codes[at] = formats.encode_e4m3(keys / scale[:, None])
    scales[at] = scale
    expected = np.concatenate([codes.reshape(len(codes), -1), scales.view(np.uint8)], axis=1)
    require_bytes("index_cache", case.raw("index_cache"), expected)
    return 0.0


def index_tokens(case):
    """(token, request, keys that it sees)."""
    token = 0
    for request, (query_len, seq_len) in enumerate(case.batch):
        for i in range(query_len):
            yield token, request, seq_len - query_len + i + 1
            token += 1


def index_slots(case, request, seen):
    """Slots of the first `seen` positions of a request."""
    positions = np.arange(seen)
    block_size = case.cache["block_size"]
    blocks = case.raw("block_table")[request].astype(np.int64)[positions // block_size]
    return blocks * block_size + positions % block_size


def check_index_logits(case):
    codes, scales = index_parts(case, case.raw("index_cache"))
    keys = formats.decode("F8_E4M3", codes).reshape(-1, 128)
    scales = scales.reshape(-1)
    query = case.values("index_query").astype(np.float64)
    weights = case.values("index_weights").astype(np.float64)
    actual = case.values("logits").astype(np.float64)
    expected = np.full(actual.shape, -np.inf)
    for token, request, seen in index_tokens(case):
        slots = index_slots(case, request, seen)
        products = np.maximum(query[token] @ keys[slots].astype(np.float64).T, 0)
        expected[token, :seen] = (weights[token] @ products) * scales[slots]
    finite = np.isfinite(expected)
    if not (np.isfinite(actual) == finite).all() or not np.isneginf(actual[~finite]).all():
        raise Disagreement("logits: -inf is not where it has to be")
    limit = 1e-3 * np.abs(expected[finite]).max(initial=0)
    return compare.require_close("logits", actual[finite], expected[finite], limit, 1e-3)


def check_index_topk(case):
    logits = case.values("logits").astype(np.float64)
    chosen = case.raw("topk_slots")
    for token, request, seen in index_tokens(case):
        places = {int(slot): j for j, slot in enumerate(index_slots(case, request, seen))}
        slots = [int(slot) for slot in chosen[token] if slot >= 0]
        positions = [places.get(slot, -1) for slot in slots]
        wanted = min(seen, chosen.shape[1])
        if -1 in positions or len(set(positions)) != len(positions) or len(slots) != wanted:
            raise Disagreement(f"topk_slots[{token}]: not {wanted} keys that the token sees")
        left = np.delete(logits[token, :seen], positions)
        if len(left) and left.max() > logits[token, positions].min():
            raise Disagreement(f"topk_slots[{token}]: a key with a larger logit is left")
    return 0.0


# ---- Metadata ----------------------------------------------------------------------------------


def check_metadata(case):
    """The slices of decodes and prefills (§1.3, §1.6), and those of the table that came later."""
    starts, lens = case.raw("query_start_loc").tolist(), case.raw("seq_lens").tolist()
    queries = np.diff(starts).tolist()
    if list(zip(queries, lens)) != case.batch:
        raise Disagreement("query_start_loc and seq_lens are not those of the batch")
    flags = [
        row.get("prefilling") for row in case.problem["batch"] for _ in range(row["count"])
    ]
    longest = 1 + case.attention["num_speculative_tokens"]
    asked = not case.problem["batch_options"]["treat_short_extends_as_decodes"]

    def is_prefill(query_len, seq_len, flag):
        if query_len > longest:
            return True
        if not asked or (query_len == 0 and flag is None):
            return False
        return flag if flag is not None else query_len == seq_len

    kinds = [is_prefill(*row) for row in zip(queries, lens, flags)]
    first = kinds.index(True) if True in kinds else len(kinds)
    has_prefills = first < len(kinds)
    counts = [first, len(kinds) - first, starts[first], starts[-1] - starts[first]]
    counts += [max(queries[:first], default=0), max(lens[:first], default=0)]
    counts += [int(first > 0 and not has_prefills), max(queries) if has_prefills else 0]
    expected = {"batch_split": counts, "updated_slot_mapping": case.raw("new_slot_mapping")}
    tables = {"": case.raw("block_table"), "updated_": case.raw("new_block_table")}
    if first > 0:
        expected["decode_query_start_loc"] = starts[: first + 1]
        expected["decode_seq_lens"] = lens[:first]
    if has_prefills:
        expected["prefill_query_start_loc"] = [s - starts[first] for s in starts[first:]]
        expected["prefill_key_start_loc"] = np.cumsum([0, *lens[first:]])
    for prefix, table in tables.items():
        if first > 0:
            expected[f"{prefix}decode_block_table"] = table[:first].ravel()
        if has_prefills:
            expected[f"{prefix}prefill_block_table"] = table[first:].ravel()
    for name, values in expected.items():
        require_bytes(name, case.raw(name), np.asarray(values, dtype=case.raw(name).dtype))
    return 0.0


CHECKS = {
    "reshape_and_cache": check_cache_write,
    "merge": check_merge,
    "gather": check_gather,
    "rope": lambda case: check_rope(case, False),
    "rope_and_cache": lambda case: check_rope(case, True),
    "quantize": check_quantize,
    "dcp_correct": check_dcp_correct,
    "output_quant": check_output_quant,
    "mm_quant": check_mm_quant,
    "metadata": check_metadata,
    "index_key_cache": check_index_key_cache,
    "index_logits": check_index_logits,
    "index_topk": check_index_topk,
}


def is_op(metadata):
    return json.loads(metadata["problem"]).get("attention", {}).get("type") == "op"


def check(tensors, metadata):
    """Returns figures of a file that agrees; raises Disagreement or FormatError otherwise."""
    case = OpCase(tensors, metadata)
    return {"rows": case.num_tokens, "output_max_abs": CHECKS[case.op["name"]](case)}
