"""Judges one file of saved tensors: cache, dequantised keys, reference and output."""

import numpy as np

from . import attention, dcp, int8, kv_cache, mla, mm, ops, packed_cache, row_rule, safetensors_file
from . import number_formats as formats
from .case import Case
from .compare import require_close
from .errors import Disagreement, FormatError, require_equal

FORMATS = ("F32", "F16", "BF16")  # of outputs
STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
REFERENCE_TOLERANCE = {"F64": 1e-9, "F32": 1e-6}


def _check_slot_mapping(case, slots):
    """Slots of this step's new keys; cross attention and padded mappings may differ in length."""
    if "slot_mapping" not in case.tensors or case.rules.attention_type != "decoder":
        return
    actual = case.tensors["slot_mapping"].raw
    lens = np.diff(case.query_start_loc)
    parts = [s[len(s) - n :] for s, n in zip(slots, lens)]
    expected = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    if case.rules.kv_sharing:  # another layer has written the keys
        expected = expected[:0]
    require_equal("slot_mapping", actual[: len(expected)], expected)
    if (actual[len(expected) :] >= 0).any():
        raise Disagreement("slot_mapping names slots for padding tokens")


def _check_cache(case, name, plane, slots, codes, scales):
    """The cache must hold exactly what the write rule gives for the saved keys or values."""
    cache = case.need("kv_cache")
    stored = kv_cache.PagedCache(case.rules, cache, case.num_kv_heads, case.head_size)
    actual_codes, actual_scales = stored.gather(plane, slots)
    require_equal(f"kv_cache[{name}]", actual_codes, codes)
    if scales is not None:
        require_equal(f"kv_cache[{name} scale]", actual_scales, scales)


def _check_scale_tensor(case, name, slots, scales):
    if scales is None or name not in case.tensors or scales.ndim != 2:
        return
    per_slot = case.tensors[name].raw  # [NB, bs, Hk]
    if per_slot.ndim != 3 or per_slot.shape[1:] != (case.rules.block_size, case.num_kv_heads):
        raise FormatError(f"{name} has shape {list(per_slot.shape)}, expected [NB, bs, Hk]")
    actual = per_slot[slots // case.rules.block_size, slots % case.rules.block_size]
    require_equal(name, actual, scales)


def _keys_and_values(case):
    """What attention reads, float32 [sum of seq_lens, Hk, D], after checking every saved form."""
    rules = case.rules
    paged = rules.paged and case.has_cache and rules.dcp_world_size == 1
    slots, rank_caches = None, None
    if rules.paged and case.has_cache and rules.dcp_world_size > 1:
        rank_caches = dcp.RankCaches(case)
        rank_caches.check_slot_mapping()
    if paged:
        table = case.need("block_table").raw
        columns = -(-int(case.seq_lens.max(initial=0)) // rules.block_size)
        if table.ndim != 2 or table.shape[0] != len(case.seq_lens) or table.shape[1] < columns:
            raise FormatError(
                f"block_table has shape {list(table.shape)}, "
                f"expected [{len(case.seq_lens)}, {columns} or more]"
            )
        per_request = [
            kv_cache.slots_of_request(table[b], n, rules.block_size)
            for b, n in enumerate(case.seq_lens)
        ]
        slots = np.concatenate(per_request) if per_request else np.zeros(0, dtype=np.int64)
        _check_slot_mapping(case, per_request)
    if rules.paged and rules.int8_level:
        return int8.keys_and_values(case, slots)
    result = []
    for plane, name in ((kv_cache.KEY, "key"), (kv_cache.VALUE, "value")):
        tensor, scales = case.need(name), None
        read = formats.decode(tensor.dtype, tensor.raw)
        codes = tensor.raw
        if rules.paged and rules.quantised_cache:
            codes, scales = kv_cache.quantise(rules, read, plane)
            read = kv_cache.dequantise(rules, codes, scales, plane)
            if f"{name}_dequantized" in case.tensors:
                require_equal(f"{name}_dequantized", case.values(f"{name}_dequantized"), read)
            elif paged:
                raise FormatError(f"tensor '{name}_dequantized' is missing")
        if paged:
            _check_cache(case, name, plane, slots, codes, scales)
            _check_scale_tensor(case, f"{name}_scale_cache", slots, scales)
        if rank_caches is not None:
            rank_caches.check(name, plane, codes)
        result.append(read)
    return result


def _query(case):
    """Query values that attention reads; a quantised query has `query_dequantized` beside it."""
    rules, stored = case.rules, case.need("query")
    if rules.paged and rules.int8_level:
        return int8.query(case)
    quantised = stored.dtype == "F8_E4M3"
    fp8_cache = rules.paged and rules.cache_dtype in ("fp8", "fp8_e4m3")
    expected = rules.query_dtype == "fp8_e4m3" or (rules.kernel.quantises_query and fp8_cache)
    if expected and not quantised:
        raise Disagreement(f"query is {stored.dtype}, expected F8_E4M3")
    values = formats.decode(stored.dtype, stored.raw)
    if quantised:
        values = values * np.float32(rules.q_scale)
        require_equal("query_dequantized", case.values("query_dequantized"), values)
    elif rules.paged and rules.cache_dtype == "int4_per_token_head":
        values = packed_cache.read_query(values, rules.dtype)
        require_equal("query_dequantized", case.values("query_dequantized"), values)
    return values


def _slopes_and_sinks(case):
    rules, slopes, sinks = case.rules, None, None
    if rules.alibi != "none":
        slopes = case.values("alibi_slopes", (case.num_heads,)).astype(np.float64)
        given = rules.alibi_slopes
        expected = attention.geometric_slopes(case.num_heads) if given is None else np.array(given)
        # Why: slopes of an input file are its own; only given or computed ones can be checked.
        from_file = rules.section("inputs").get("file") is not None
        if not from_file and not np.allclose(slopes, expected, rtol=1e-6, atol=0):
            raise Disagreement(f"alibi_slopes {slopes} are not {expected}")
    if rules.sinks:
        sinks = case.values("sinks", (case.num_heads,)).astype(np.float64)
        given = rules.sinks
        # float() reads the words that JSON has for infinity, "inf" and "-inf", too.
        if isinstance(given, list):
            given = [float(sink) for sink in given]
            if not np.allclose(sinks, given, rtol=2**-8, atol=0):
                raise Disagreement(f"sinks {sinks} are not {rules.sinks}")
    return slopes, sinks


def recompute(case):
    """Output [rows, H, Dv], lse [H, rows] and RowScales of the checked rows, float64."""
    if case.rules.attention_type == "mm_encoder":
        query, keys, values = mm.values_read(case)
    else:
        query = _query(case)
        keys, values = _keys_and_values(case)
    slopes, sinks = _slopes_and_sinks(case)
    outputs = np.empty((len(case.checked_rows), case.num_heads, values.shape[-1]))
    lses = np.empty((case.num_heads, len(case.checked_rows)))
    scales = row_rule.RowScales(len(case.checked_rows), case.num_heads)
    for b in range(len(case.seq_lens)):
        begin, end = case.query_start_loc[b], case.query_start_loc[b + 1]
        mine = np.flatnonzero((case.checked_rows >= begin) & (case.checked_rows < end))
        if not mine.size:
            continue
        tokens = case.checked_rows[mine]
        span = slice(case.key_starts[b], case.key_starts[b + 1])
        outputs[mine], lses[:, mine], own = attention.attend(
            case.rules,
            tokens - begin,
            query[tokens].astype(np.float64),
            keys[span].astype(np.float64),
            values[span].astype(np.float64),
            end - begin,
            case.rules.ranges_of(b),
            slopes,
            sinks,
        )
        scales.put(mine, own)
    return outputs, lses, scales


def _check_reference(case, output, lse):
    """The program's own float64 reference, to float64 noise (float32 where it was stored so)."""
    stored = case.need("reference_output")
    tolerance = REFERENCE_TOLERANCE.get(stored.dtype)
    if tolerance is None:
        raise FormatError(f"reference_output is {stored.dtype}, expected F64")
    reference = case.values("reference_output", (case.num_tokens, *output.shape[1:]))
    unchecked = np.setdiff1d(np.arange(case.num_tokens), case.checked_rows)
    if not np.isnan(reference[unchecked]).all():
        raise Disagreement("reference_output holds numbers in rows that were not checked")
    magnitude = max(1.0, float(np.abs(output[np.isfinite(output)]).max(initial=0.0)))
    worst = require_close(
        "reference_output", reference[case.checked_rows], output, tolerance * magnitude, tolerance
    )
    if "reference_lse" in case.tensors:
        shape = (case.num_heads, case.num_tokens)
        reference_lse = case.values("reference_lse", shape)[:, case.checked_rows]
        require_close("reference_lse", reference_lse, lse, tolerance, tolerance)
    return worst


def _half_units(case):
    """What rounding of output and P can change a row by at most, of its size."""
    output_dtype = case.need("output").dtype
    if output_dtype not in FORMATS:
        raise FormatError(f"output is {output_dtype}, expected {', '.join(FORMATS)}")
    fp8 = case.need("query").dtype == "F8_E4M3" or mm.is_fp8(case.rules)
    e4m3 = fp8 and case.rules.e4m3_probability
    probability = "F8_E4M3" if e4m3 else STORED[case.rules.dtype]
    return row_rule.HALF_UNIT[output_dtype] + row_rule.HALF_UNIT[probability]


def _check_static_fp8_output(case, expected):
    """Quantised output: one e4m3 step at most, in at most one element of a hundred."""
    scale = np.float32(case.rules.output_quant.get("scale", 1.0))
    inverse = np.float32(1.0) / scale
    wanted = formats.encode_e4m3(expected.astype(np.float32) * inverse).astype(np.int64)
    actual = case.need("output").raw[case.checked_rows].astype(np.int64)
    # Why: codes of one sign are ordered like their values, so signed codes count steps.
    signed = [np.where(c & 0x80, -(c & 0x7F), c & 0x7F) for c in (actual, wanted)]
    distance = np.abs(signed[0] - signed[1])
    if distance.max(initial=0) > 1 or np.count_nonzero(distance) > 0.01 * distance.size:
        raise Disagreement(
            f"output: e4m3 codes differ by up to {distance.max()} steps, "
            f"{np.count_nonzero(distance)} of {distance.size} elements"
        )
    return float(np.abs(formats.decode("F8_E4M3", actual) * scale - expected).max(initial=0.0))


def _check_stated_error(case, actual, expected):
    """Files recorded from a foreign kernel state its error; ours must be the same number."""
    stated_rms = case.rules.problem["triton_rms_rel"]
    stated_max = case.rules.problem["triton_max_abs"]
    rms = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    worst = np.abs(actual - expected).max()
    if abs(rms - stated_rms) > 1e-3 * stated_rms or abs(worst - stated_max) > 1e-3 * stated_max:
        raise Disagreement(
            f"output: rms_rel {rms:.7g} and max_abs {worst:.7g}, "
            f"the file states {stated_rms:.7g} and {stated_max:.7g}"
        )


def _check_output(case, output, lse, scales):
    if case.rules.output_quant.get("type", "none") == "fp8_static":
        return _check_static_fp8_output(case, output)
    shape = (case.num_tokens, *output.shape[1:])
    actual = case.values("output", shape)[case.checked_rows].astype(np.float64)
    worst = row_rule.require_rows("output", actual, output, scales, _half_units(case))
    if "triton_rms_rel" in case.rules.problem:
        _check_stated_error(case, actual, output)
    if "lse" in case.tensors:
        actual_lse = case.values("lse", (case.num_heads, case.num_tokens))[:, case.checked_rows]
        fp8 = case.need("query").dtype == "F8_E4M3" or mm.is_fp8(case.rules)
        row_rule.require_lse("lse", actual_lse, lse, scales, case.rules.dtype, fp8)
    return worst


def _check_ranks(case):
    """What the ranks of a context-parallel group hold before they exchange it."""
    read = (_query(case), *_keys_and_values(case))
    return dcp.check_partials(case, read, _half_units(case))


def check_file(path):
    """Returns figures of a file that agrees; raises Disagreement or FormatError otherwise."""
    tensors, metadata = safetensors_file.read(path)
    if "problem" in metadata and ops.is_op(metadata):
        return ops.check(tensors, metadata)
    if "kv_c" in tensors:
        return mla.check(tensors, metadata)
    case = Case(tensors, metadata)
    output, lse, scales = recompute(case)
    figures = {"rows": len(case.checked_rows)}
    figures["reference_max_abs"] = _check_reference(case, output, lse)
    figures["output_max_abs"] = _check_output(case, output, lse, scales)
    if case.rules.dcp_world_size > 1 and case.has_cache:
        figures["rank_max_abs"] = _check_ranks(case)
    return figures
