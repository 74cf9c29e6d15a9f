"""Single operations (semantics §5 to §12): every saved result recomputed from its operands."""

import json

import numpy as np

from . import compare
from . import number_formats as formats
from .errors import Disagreement
from .op_caches import check_cache_write, check_gather, check_rope
from .op_case import OpCase, require_bytes
from .op_index import check_index_key_cache, check_index_logits, check_index_topk
from .op_quant import check_mm_quant, check_output_quant, check_quantize

ATOL = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 2e-5}  # rtol is the same (§14.2)

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
