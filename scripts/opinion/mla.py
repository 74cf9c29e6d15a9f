"""Judges saved tensors of multi-head latent attention (semantics §8) from nothing but the definitions.

Everything is computed in the latent form: a score is (q_nope W_UK) . kv_c + q_pe . k_pe, an output
is (P kv_c) W_UV. Prefill rows read their own new tokens before the cache quantised them.
"""

import functools
import json
import math
from typing import NamedTuple

import numpy as np

from . import compare, kv_scales, mla_dcp, output_quant, packed_cache, row_rule
from . import number_formats as formats
from .errors import Disagreement, FormatError


class MlaRules(NamedTuple):
    """What the backends decide in their own way (semantics §1.5, §8)."""

    longest_decode: int = 1  # query of a request that runs as a decode
    uniform: bool = True  # decodes are of one length
    keeps_threshold_of_ranks: bool = False  # in a context-parallel group, too
    fp8_query: bool = False  # over an e4m3 cache
    stores_ds_mla: bool = False  # fp8 is another word for fp8_ds_mla
    emulates_fp8_prefill: bool = True


RULES = {
    "REFERENCE": MlaRules(emulates_fp8_prefill=False),
    "MLA": MlaRules(),
    "FLASHMLA": MlaRules(longest_decode=128, fp8_query=True),
    "FLASH_ATTN_MLA": MlaRules(512, uniform=False, keeps_threshold_of_ranks=True),
    "FLASHMLA_SPARSE": MlaRules(stores_ds_mla=True),
    "CUTLASS_MLA": MlaRules(fp8_query=True),
    "FLASHINFER_MLA_SPARSE": MlaRules(fp8_query=True),
}
FORMATS = {"bfloat16": "BF16", "float16": "F16"}
FLT_MIN = np.float32(1.17549435e-38)
# Roundings of 16 bits one after the other: query, latents or keys and values, P, output. Those of the
# query move scores, so that their cost is only about as large as a rounding.
ROUNDINGS = 4
LSE_ATOL = 2e-2
SCORES_AT_ONCE = 1 << 18


class MlaCase:
    """Tensors of a file and what its problem says."""

    def __init__(self, tensors, metadata):
        self.tensors = tensors
        problem = json.loads(metadata["problem"])
        self.attention, self.mla = problem["attention"], problem["mla"]
        self.cache = problem["kv_cache"]
        backend = metadata.get("backend", "")
        self.is_plugin = "plugin" in metadata  # a user's backend, whatever its name
        if backend not in RULES and not self.is_plugin:
            raise FormatError(f"backend {backend!r} is not covered")
        self.rules = RULES.get(backend, MlaRules(emulates_fp8_prefill=False))
        self.world_size = problem["dcp"]["world_size"]
        self.interleave = problem["dcp"]["interleave_size"]
        self.output_quant = problem["output_quant"]
        self.sparse = self.mla["sparse_topk"] is not None
        self.format = FORMATS[self.attention["dtype"]]
        self.cache_dtype = self.cache["dtype"]
        # A plugin that knows only fp8_ds_mla takes fp8 for it as well.
        bytes_of_plugin = self.is_plugin and tensors["kv_cache"].dtype == "U8"
        is_ds_mla = self.rules.stores_ds_mla or bytes_of_plugin
        if is_ds_mla and self.cache_dtype == "fp8":
            self.cache_dtype = "fp8_ds_mla"
        self.starts = self.need("query_start_loc").raw.astype(np.int64)
        self.seq_lens = self.need("seq_lens").raw.astype(np.int64)
        self.key_starts = np.concatenate([[0], np.cumsum(self.seq_lens)])
        self.num_tokens = int(self.starts[-1])
        self.scale = self.attention.get("scale") or 1 / math.sqrt(self.attention["head_size"])
        if kv_scales.are_calculated(self.cache):
            rows = kv_scales.new_rows(np.diff(self.starts), self.seq_lens)
            latents = self.values("kv_c")[rows]
            q_scale, k_scale, _ = kv_scales.check(
                self.values("kv_scales"), self.values("query"), latents, latents, self.cache)
            self.cache = dict(self.cache, q_scale=q_scale, k_scale=k_scale)
        self.rows = np.arange(self.num_tokens)
        if "checked_rows" in tensors:
            self.rows = np.sort(tensors["checked_rows"].raw.astype(np.int64))

    def need(self, name):
        if name not in self.tensors:
            raise FormatError(f"tensor {name!r} is missing")
        return self.tensors[name]

    def values(self, name):
        tensor = self.need(name)
        return formats.decode(tensor.dtype, tensor.raw)

    @property
    def quantised(self):
        return self.cache_dtype in ("fp8", "fp8_e4m3", "fp8_ds_mla", packed_cache.MODEL1)

    @property
    def fp8_cache(self):
        return self.cache_dtype in ("fp8", "fp8_e4m3")

    @property
    def fp8_prefill(self):
        is_native = (self.mla.get("use_prefill_query_quantization", False)
                     and self.mla["prefill_backend"] in ("FLASHINFER", "TRTLLM_RAGGED"))
        is_asked = (self.mla["emulate_fp8_prefill"] or is_native) and self.fp8_cache
        return is_asked and not self.sparse and self.rules.emulates_fp8_prefill

    @property
    def fp8_query(self):
        if self.is_plugin:
            return "latent_query_dequantized" in self.tensors
        return self.rules.fp8_query and self.fp8_cache

    @functools.cached_property
    def num_decodes(self):
        """Leading requests that run as decodes (§1.3)."""
        lens = np.diff(self.starts)
        if self.sparse or self.is_plugin:
            return len(lens)
        threshold, uniform = self.rules.longest_decode, self.rules.uniform
        speculative = self.attention.get("num_speculative_tokens", 0)
        if threshold > 1:
            threshold = max(threshold, 1 + speculative)
        if self.world_size > 1 and (not self.rules.keeps_threshold_of_ranks or self.interleave > 1):
            threshold = 1
        longest = lens.max(initial=0)
        if longest <= threshold and (not uniform or threshold <= 1):
            return len(lens)
        if not len(lens) or lens[0] > threshold:
            return 0
        if uniform:
            if np.isin(lens, (lens[0], 0)).all():
                return len(lens)
            prefill = lens != lens[0]
        else:
            prefill = lens > threshold
        return int(np.argmax(prefill)) if prefill.any() else len(lens)


def _stored(case):
    """Bytes [S, n] of correct entries, and the values read back, float32 [S, Lkv + R]."""
    kv_c, k_pe = case.need("kv_c"), case.need("k_pe")
    values = np.concatenate([case.values("kv_c"), case.values("k_pe")], axis=1)
    if not case.quantised:
        raw = np.concatenate([kv_c.raw, k_pe.raw], axis=1)
        return np.ascontiguousarray(raw).view("u1"), values
    if case.cache_dtype == packed_cache.MODEL1:
        entries, latents = packed_cache.model1_entries(case.values("kv_c"), k_pe.raw)
        return entries, np.concatenate([latents, case.values("k_pe")], axis=1)
    if case.cache_dtype != "fp8_ds_mla":
        scale = np.float32(np.ravel(case.cache["k_scale"])[0])
        codes = formats.encode_e4m3(values / scale)
        return codes, formats.decode("F8_E4M3", codes) * scale
    tiles = case.values("kv_c").reshape(len(values), 4, 128)
    scales = np.maximum(np.abs(tiles).max(axis=2) / np.float32(448), FLT_MIN).astype("<f4")
    codes = formats.encode_e4m3(tiles / scales[:, :, None])
    latents = formats.round_to(
        "bfloat16", formats.decode("F8_E4M3", codes) * scales[:, :, None]
    ).reshape(len(values), 512)
    parts = [codes.reshape(len(values), 512), scales.view("u1"),
             np.ascontiguousarray(k_pe.raw).view("u1")]
    return np.concatenate(parts, axis=1), np.concatenate([latents, case.values("k_pe")], axis=1)


def _check_weights(case):
    """A quantised kv_b_proj times its scales, rounded and split, is what attention computes with."""
    if "kv_b_proj" not in case.tensors:
        return
    codes = case.values("kv_b_proj")
    block = case.mla["kv_b_proj"]["block_size"]
    scales = case.values("kv_b_proj_scale")
    if block is not None:
        grid = tuple(-(-extent // block) for extent in codes.shape)
        if scales.shape != grid:
            raise Disagreement(f"kv_b_proj_scale has shape {scales.shape}, not {grid}")
        scales = scales.repeat(block, axis=0).repeat(block, axis=1)
        scales = scales[: codes.shape[0], : codes.shape[1]]
    weights = formats.round_to(case.attention["dtype"], (codes * scales).astype(np.float32))
    nope, width = case.mla["qk_nope_head_dim"], case.mla["v_head_dim"]
    heads = weights.reshape(-1, nope + width, codes.shape[1])
    for name, own in (("w_uk", heads[:, :nope]), ("w_uv", heads[:, nope:].transpose(0, 2, 1))):
        if not np.array_equal(case.values(name), own):
            raise Disagreement(f"{name} is not what kv_b_proj reads back as")


def _check_dequantised(case, read):
    if not case.quantised:
        return
    latent = case.mla["kv_lora_rank"]
    for name, wanted in (("kv_c", read[:, :latent]), ("k_pe", read[:, latent:])):
        if not np.array_equal(case.values(f"{name}_dequantized"), wanted):
            raise Disagreement(f"{name}_dequantized is not what the cache reads back as")


def _latent_queries(case):
    """[T, N, Lkv + R] float64; decodes with an fp8 query read what it was rounded to."""
    nope = case.mla["qk_nope_head_dim"]
    query = case.values("query").astype(np.float64)
    w_uk = case.values("w_uk").astype(np.float64)
    latent = np.einsum("tnp,npl->tnl", query[:, :, :nope], w_uk)
    joined = np.concatenate([latent, query[:, :, nope:]], axis=2)
    if not case.fp8_query:
        return joined, False
    saved = case.values("latent_query_dequantized")
    tokens = int(case.starts[case.num_decodes])
    rounded = formats.round_to(case.attention["dtype"], joined[:tokens].astype(np.float32))
    scale = np.float32(case.cache["q_scale"])
    own = formats.decode("F8_E4M3", formats.encode_e4m3(rounded * (np.float32(1) / scale))) * scale
    # Why: sums of another order may move an element to the next 16-bit value, and so to the next
    # code.
    if saved.shape != own.shape or np.count_nonzero(saved != own) > 1e-3 * own.size:
        raise Disagreement("latent_query_dequantized is not the projected query in e4m3")
    joined[:tokens] = saved
    return joined, tokens > 0


def _attend(case, queries, entries, visible):
    """Latent output [r, N, Lkv], lse [r, N] and sizes sqrt(sum p^2 ||kv_c||^2) [r, N] of queries
    [r, N, Lkv + R], each of which sees the first `visible` [r] of entries [S, Lkv + R]."""
    latent = case.mla["kv_lora_rank"]
    rows, heads = queries.shape[:2]
    output = np.zeros((rows, heads, latent))
    lse, sizes = np.full((rows, heads), -np.inf), np.zeros((rows, heads))
    squares = np.einsum("sl,sl->s", entries[:, :latent], entries[:, :latent])
    for some, seen in _chunks(visible, heads, entries):
        flat = queries[some].reshape(-1, queries.shape[2])
        scores = case.scale * (flat @ entries[:seen].T).reshape(-1, heads, seen)
        p, lse[some] = _probabilities(scores, visible[some][:, None])
        sizes[some] = np.sqrt(p**2 @ squares[:seen])
        output[some] = (p.reshape(-1, seen) @ entries[:seen, :latent]).reshape(-1, heads, latent)
    return output, lse, sizes


def _chunks(visible, heads, entries):
    """(rows, how many entries the last of them sees): rows whose scores are computed at once, one
    at a time where what a row does not see could show in its sums."""
    step = max(1, SCORES_AT_ONCE // max(1, heads * len(entries)))
    if not np.isfinite(entries.sum()):
        step = 1
    for first in range(0, len(visible), step):
        some = slice(first, min(len(visible), first + step))
        if seen := int(visible[some].max()):
            yield some, seen


def _probabilities(scores, visible):
    """p [..., S], and the LSE [...], of scores [..., S] of which the first `visible` [...] count."""
    hidden = np.arange(scores.shape[-1]) >= visible[..., None]
    if hidden.any():
        scores = np.where(hidden, -np.inf, scores)
    largest = scores.max(axis=-1, keepdims=True)
    # Why: of a row without entries the largest is -inf, and (-inf) - (-inf) is NaN.
    largest = np.where(np.isneginf(largest), 0, largest)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (largest + np.log(total))[..., 0]
    return weights / np.where(total == 0, 1, total), lse


class Fp8Prefill:
    """Prefill rows in e4m3: query, keys and values cast from the activation type (§8.6)."""

    def __init__(self, case):
        self.case, self.requests = case, {}
        self.query = self._cast(case.values("query"))
        self.w_uk = case.values("w_uk").astype(np.float64)
        self.w_uv = case.values("w_uv").astype(np.float64)

    def _cast(self, x):
        rounded = formats.round_to(self.case.attention["dtype"], np.asarray(x, np.float32))
        return formats.decode("F8_E4M3", formats.encode_e4m3(rounded)).astype(np.float64)

    def _expanded(self, request, entries):
        """Keys [N, S, P], k_pe [S, R] and values [N, S, V] of a request, made once."""
        if request not in self.requests:
            latent = self.case.mla["kv_lora_rank"]
            kv_c = entries[:, :latent]
            self.requests[request] = (
                self._cast(kv_c @ self.w_uk.transpose(0, 2, 1)),
                self._cast(entries[:, latent:]),
                self._cast(kv_c @ self.w_uv),
            )
        return self.requests[request]

    def attend(self, tokens, request, entries, visible):
        """Output [r, N, V], lse [r, N] and sizes [r, N] of rows that see the first `visible` [r] of
        entries [S, Lkv + R]."""
        keys, k_pe, values = self._expanded(request, entries)
        nope, heads = self.w_uk.shape[1], len(keys)
        output = np.empty((len(tokens), heads, values.shape[2]))
        lse, sizes = np.empty((len(tokens), heads)), np.empty((len(tokens), heads))
        squares = (values**2).sum(axis=2)
        for some, seen in _chunks(visible, heads, entries):
            query = self.query[tokens[some]].transpose(1, 0, 2)
            scores = query[:, :, :nope] @ keys[:, :seen].transpose(0, 2, 1)
            scores = self.case.scale * (scores + query[:, :, nope:] @ k_pe[:seen].T)
            p, sums = _probabilities(scores, visible[some])
            sizes[some] = np.sqrt((p**2 @ squares[:, :seen, None])[..., 0]).T
            output[some], lse[some] = (p @ values[:, :seen]).transpose(1, 0, 2), sums.T
        return output, lse, sizes


def _second_cache(case):
    """Entries [B, keys, Lkv + R] of the second cache and its lists [T, topk]; None, None without one."""
    if not case.sparse or not case.mla["sparse"].get("extra_topk"):
        return None, None
    name = "{}_dequantized" if "extra_kv_c_dequantized" in case.tensors else "{}"
    parts = [case.values(name.format(part)) for part in ("extra_kv_c", "extra_k_pe")]
    entries = np.concatenate(parts, axis=1).astype(np.float64)
    return entries.reshape(len(case.seq_lens), -1, entries.shape[1]), case.need("extra_topk_indices").raw


def _sink_factors(sinks, lse):
    """What a sink behind the attention leaves of each head's output."""
    with np.errstate(over="ignore", invalid="ignore"):
        factors = 1 / (1 + np.exp(sinks - lse))
    return np.where(np.isneginf(lse), 0, factors)


def recompute(case, read, queries):
    """Output [rows, N, V], lse [N, rows] and sizes [rows, N]. In the latent form a size grows as the
    head's weights make vectors grow on average."""
    latent = case.mla["kv_lora_rank"]
    prefill = Fp8Prefill(case) if case.fp8_prefill else None
    w_uv = case.values("w_uv").astype(np.float64)
    plain = np.concatenate([case.values("kv_c"), case.values("k_pe")], axis=1).astype(np.float64)
    read = read.astype(np.float64)
    topk = case.need("topk_indices").raw if case.sparse else None
    second, second_lists = _second_cache(case)
    sinks = case.values("sinks").astype(np.float64) if case.sparse and "sinks" in case.tensors else None
    rows, heads = len(case.rows), queries.shape[1]
    latents = np.zeros((rows, heads, latent))
    lses, spreads = np.empty((rows, heads)), np.zeros((rows, heads))
    of_prefill = np.zeros(rows, dtype=bool)
    outputs = np.zeros((rows, heads, w_uv.shape[2]))
    growth = np.sqrt((w_uv**2).sum(axis=(1, 2)) / latent)
    requests = np.searchsorted(case.starts, case.rows, side="right") - 1
    for b in np.unique(requests):
        mine = np.flatnonzero(requests == b)
        tokens = case.rows[mine]
        seq_len = int(case.seq_lens[b])
        context = seq_len - int(case.starts[b + 1] - case.starts[b])
        visible = context + tokens - case.starts[b] + 1
        span = slice(case.key_starts[b], case.key_starts[b] + seq_len)
        entries = read[span]
        if b >= case.num_decodes:
            entries = np.concatenate([entries[:context], plain[span][context:]])
        if prefill and b >= case.num_decodes:
            of_prefill[mine] = True
            outputs[mine], lses[mine], spreads[mine] = prefill.attend(tokens, b, entries, visible)
        elif not case.sparse:
            latents[mine], lses[mine], spreads[mine] = _attend(case, queries[tokens], entries, visible)
        for i in mine if case.sparse else ():
            listed = topk[case.rows[i]]
            own = entries[listed[(listed >= 0) & (listed < seq_len)]]
            if second is not None:
                also = second_lists[case.rows[i]]
                own = np.concatenate([own, second[b][also[also >= 0]]])
            query = queries[case.rows[i] : case.rows[i] + 1]
            latents[i], lses[i], spreads[i] = (
                part[0] for part in _attend(case, query, own, np.array([len(own)])))  # fmt: skip
    if sinks is not None:
        factors = _sink_factors(sinks, lses)
        latents, spreads = latents * factors[..., None], spreads * factors
    grown = (latents.transpose(1, 0, 2) @ w_uv).transpose(1, 0, 2)
    outputs = np.where(of_prefill[:, None, None], outputs, grown)
    own_sizes = growth * np.maximum(spreads, np.linalg.norm(latents, axis=-1))
    sizes = np.where(of_prefill[:, None], spreads, own_sizes)
    return outputs, lses.T, np.maximum(sizes, np.linalg.norm(outputs, axis=-1))


def check(tensors, metadata):
    """Returns figures of a file that agrees; raises Disagreement or FormatError otherwise."""
    case = MlaCase(tensors, metadata)
    expected, read = _stored(case)
    if "kv_cache" in tensors:
        mla_dcp.check_cache(case, expected)
    _check_dequantised(case, read)
    _check_weights(case)
    queries, fp8 = _latent_queries(case)
    output, lse, sizes = recompute(case, read, queries)
    figures = {"rows": len(case.rows)}
    reference = case.values("reference_output")[case.rows]
    figures["reference_max_abs"] = compare.require_close("reference_output", reference, output, 1e-9, 1e-9)
    compare.require_close("reference_lse", case.values("reference_lse")[:, case.rows], lse, 1e-9, 1e-9)
    half_units = ROUNDINGS * row_rule.HALF_UNIT[case.format]
    if (fp8 or case.fp8_prefill) and case.attention.get("probability_dtype", "auto") == "fp8_e4m3":
        half_units += row_rule.HALF_UNIT["F8_E4M3"]
    name = "output"
    if case.output_quant["type"] != "none":
        name = "output_unquantized"
        output_quant.check(case.values, tensors, case.output_quant)
    actual = case.values(name)[case.rows].astype(np.float64)
    scales = row_rule.RowScales(*sizes.shape)
    scales.sizes = sizes
    figures["output_max_abs"] = row_rule.require_rows("output", actual, output, scales, half_units)
    if "lse" in case.tensors:
        actual = case.values("lse")[:, case.rows]
        compare.require_close("lse", actual, lse, LSE_ATOL, 1e-5)
    if case.world_size > 1:
        figures["rank_max_abs"] = mla_dcp.check_partials(
            case, queries, read.astype(np.float64), _attend, half_units, LSE_ATOL)  # fmt: skip
    return figures
