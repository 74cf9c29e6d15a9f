"""What the stub packages beside this compute with: attention in float32, one request after the other,
with the conventions of LSEs left to them."""

import torch


def of_request(query, key, value, scale, left, right, soft_cap=0.0, slopes=None, sinks=None):
    """[Q, H, D] over [K, Hk, D] -> output [Q, H, Dv], natural LSE [Q, H], -inf where no key is seen.
    The last query stands at the last key."""
    groups = query.shape[1] // key.shape[1]
    key, value = (rows.float().repeat_interleave(groups, 1) for rows in (key, value))
    scores = scale * torch.einsum("qhd,khd->hqk", query.float(), key)
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    at = torch.arange(len(key))[None, :]
    position = torch.arange(len(key) - len(query), len(key))[:, None]
    if slopes is not None:
        scores = scores - slopes[:, None, None] * (position - at).abs()
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
    return torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype), lse.T


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
        requests.append(tuple(cache[used].flatten(0, 1)[:length] for cache in (key_cache, value_cache)))
    return requests


def plus_inf(lse):
    """Rows without keys as +inf."""
    return lse.masked_fill(lse == float("-inf"), float("inf"))


def check(condition, words):
    if not condition:
        raise RuntimeError(words)


def check_varlen(query, starts, max_query_len, max_seq_len):
    """What the kernels of FlashAttention check of their arguments."""
    check(query.dtype in (torch.bfloat16, torch.float16), "only fp16 and bf16")
    check(starts.dtype == torch.int32, "cu_seqlens_q must have dtype int32")
    check(int(starts.diff().max()) <= max_query_len, "max_seqlen_q is too small")
    check(isinstance(max_seq_len, int), "max_seqlen_k must be an int")
