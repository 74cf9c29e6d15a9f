"""What the stub packages beside this compute with: attention in float32, one request after the other,
with the conventions of LSEs left to them."""

import torch


LARGEST_P = 256  # of e4m3 probabilities


def of_request(query, key, value, scale, left, right, soft_cap=0.0, slopes=None, sinks=None,
               by_key_index=False, dtype=None, rounds_p=False):
    """[Q, H, D] over [K, Hk, D] -> output [Q, H, Dv], natural LSE [Q, H], -inf where no key is seen.
    The last query is aligned with the last key. `dtype` of the output, if not that of the query;
    `rounds_p`: probabilities are e4m3."""
    groups = query.shape[1] // key.shape[1]
    key, value = (rows.float().repeat_interleave(groups, 1) for rows in (key, value))
    scores = scale * torch.einsum("qhd,khd->hqk", query.float(), key)
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    at = torch.arange(len(key))[None, :]
    position = torch.arange(len(key) - len(query), len(key))[:, None]
    if slopes is not None:
        bias = at.expand(len(query), -1) if by_key_index else -(position - at).abs()
        scores = scores + slopes[:, None, None] * bias
    unseen = torch.zeros(len(query), len(key), dtype=torch.bool)
    if left >= 0:
        unseen |= at < position - left
    if right >= 0:
        unseen |= at > position + right
    scores = scores.masked_fill(unseen, float("-inf"))
    lse = scores.logsumexp(-1) if len(key) else scores.new_full(scores.shape[:2], float("-inf"))
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.float()[:, None])
    weights = (scores - lse[..., None]).exp().nan_to_num(0.0)
    if rounds_p:
        highest = weights.amax(-1, keepdim=True).clamp(min=1e-30) / LARGEST_P
        weights = (weights / highest).to(torch.float8_e4m3fn).float() * highest
    return torch.einsum("hqk,khd->qhd", weights, value).to(dtype or query.dtype), lse.T


def of_batch(query, starts, keys, scale, left, right, **options):
    """[T, H, D] with starts [B+1], and (key, value) of each request -> [T, H, Dv], LSE [T, H]."""
    parts = [of_request(query[first:last], key, value, scale, left, right, **options)
             for first, last, (key, value) in zip(starts.tolist(), starts.tolist()[1:], keys)]  # fmt: skip
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def ragged(key, value, starts):
    return [(key[first:last], value[first:last])
            for first, last in zip(starts.tolist(), starts.tolist()[1:])]  # fmt: skip


def paged(key_cache, value_cache, block_table, seq_lens):
    """Caches [NB, bs, Hk, D] through the table."""
    requests = []
    for blocks, length in zip(block_table, seq_lens.tolist()):
        used = blocks[: -(-length // key_cache.shape[1])].long()
        requests.append(
            tuple(cache[used].flatten(0, 1)[:length] for cache in (key_cache, value_cache))
        )
    return requests


def plus_inf(lse):
    """Rows without keys as +inf."""
    return lse.masked_fill(lse == float("-inf"), float("inf"))


def check(condition, words):
    if not condition:
        raise RuntimeError(words)


def is_fp8(tensor):
    return tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2)


def scaled(keys, k_scale, v_scale):
    """Pairs (key, value) with the scales of their codes, numbers or tensors [Hk]."""
    by_head = lambda scale: scale[:, None] if isinstance(scale, torch.Tensor) else scale
    return [(key.float() * by_head(k_scale), value.float() * by_head(v_scale))
            for key, value in keys]  # fmt: skip


def with_descales(query, keys, q_descale, k_descale, v_descale):
    """Query and keys of FlashAttention-3 with the scales of their codes, [B, Hk] and 1 where there are
    none, and options for of_batch()."""
    key = keys[0][0]
    check(all(part.dtype == query.dtype for pair in keys for part in pair),
          "query and key must have the same dtype")  # fmt: skip
    if not is_fp8(query):
        check(q_descale is k_descale is v_descale is None, "descale of 16-bit tensors")
        return query, keys, {}
    check(query.dtype == torch.float8_e4m3fn, "only e4m3")
    ones = torch.ones(len(keys), key.shape[1])
    scales = [ones if scale is None else scale for scale in (q_descale, k_descale, v_descale)]
    for scale in scales:
        check(scale.shape == ones.shape and scale.dtype == torch.float32, "descale")
        check(bool((scale == scale[0]).all()), "descales of requests that differ")
    by_query_head = scales[0][0].repeat_interleave(query.shape[1] // key.shape[1])
    return (query.float() * by_query_head[:, None], scaled(keys, scales[1][0], scales[2][0]),
            {"dtype": torch.bfloat16, "rounds_p": True})  # fmt: skip


def check_varlen(query, starts, max_query_len, max_seq_len, allows_fp8=False):
    """What the kernels of FlashAttention check of their arguments."""
    check(query.dtype in (torch.bfloat16, torch.float16) or (allows_fp8 and is_fp8(query)),
          "only fp16 and bf16")  # fmt: skip
    check(starts.dtype == torch.int32, "cu_seqlens_q must have dtype int32")
    check(int(starts.diff().max()) <= max_query_len, "max_seqlen_q is too small")
    check(isinstance(max_seq_len, int), "max_seqlen_k must be an int")


def merge(prefix, prefix_lse, suffix, suffix_lse):
    """Outputs [T, H, D] with natural LSEs [T, H] -> those of both; a weight of 0 does not hide NaN."""
    most = torch.maximum(prefix_lse, suffix_lse)
    empty = most == float("-inf")
    weights = [(lse - most).exp().masked_fill(empty, 0.0) for lse in (prefix_lse, suffix_lse)]
    total = weights[0] + weights[1]
    scales = [(weight / total).masked_fill(empty, 0.0)[..., None] for weight in weights]
    return prefix * scales[0] + suffix * scales[1], (most + total.log()).masked_fill(empty, -torch.inf)


def write_cache(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale):
    """vLLM's reshape_and_cache_flash, with the strides of the keys for the values as well."""
    check(key_cache.stride() == value_cache.stride(), "one set of strides")
    check(slot_mapping.dtype == torch.int64, "slot_mapping")
    check(k_scale.dtype == v_scale.dtype == torch.float32, "scales")
    check(len(key) >= len(slot_mapping), "more slots than rows")
    check(kv_cache_dtype in ("auto", "fp8", "fp8_e4m3"), kv_cache_dtype)
    block_size = key_cache.shape[1]
    for row, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        for rows, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
            cell = rows[row]
            if kv_cache_dtype != "auto":
                cell = (cell.float() / scale[0]).clamp(-448, 448).to(torch.float8_e4m3fn)
                cell = cell.view(cache.dtype)
            check(cell.dtype == cache.dtype, "another type")
            cache[slot // block_size, slot % block_size] = cell


def merge_attn_states(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse=None,
                      prefill_tokens_with_context=None, output_scale=None):  # fmt: skip
    """vLLM's: LSEs [H, T], natural; +inf counts as -inf where it is merged."""
    check(prefix_output.stride(1) == suffix_output.stride(1), "matching head strides")
    check((output.dtype == torch.float8_e4m3fn) == (output_scale is not None), "output_scale")
    count = len(output) if prefill_tokens_with_context is None else prefill_tokens_with_context
    lses = [lse[:, :count].T for lse in (prefix_lse, suffix_lse)]
    lses = [lse.masked_fill(lse == torch.inf, -torch.inf) for lse in lses]
    result = suffix_output.float().clone()
    output_lse.copy_(suffix_lse)
    result[:count], merged = merge(prefix_output[:count].float(), lses[0], result[:count], lses[1])
    output_lse[:, :count] = merged.T
    if output_scale is not None:
        result = (result * (1.0 / output_scale)).clamp(-448, 448)
    output.copy_(result.to(output.dtype))
