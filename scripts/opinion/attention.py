"""Attention in float64, straight from semantics §3: two-pass softmax over whole rows of scores."""

import numpy as np

from . import row_rule


def positions(query_len, seq_len):
    """Bottom-right alignment (§3.2): p_i = i + (Sk - Sq), [Sq]."""
    return np.arange(query_len) + (seq_len - query_len)


def window_pair(rules):
    """(left, right) of §3.3; -1 is unlimited."""
    window = rules.sliding_window
    if window is None:
        left, right = -1, -1
    elif rules.attention_type in ("decoder", "encoder_decoder"):
        left, right = window - 1, 0
    elif rules.attention_type == "encoder_only":
        left, right = window - 1, window - 1
    elif rules.kernel.window == "one_sided" and rules.encoder_window == "source":
        left, right = window - 1, 0
    else:
        left, right = window - 1, window - 1
    return left, (0 if rules.causal else right)


def allowed_keys(rules, p, seq_len, mm_prefix_ranges=()):
    """Mask [rows, Sk] for rows at positions p [rows] (§3.2, §3.3, §3.6)."""
    i = np.asarray(p)[:, None]
    j = np.arange(seq_len)[None, :]
    left, right = window_pair(rules)
    allowed = np.ones((len(p), seq_len), dtype=bool)
    if rules.causal:
        allowed &= j <= i
    if left >= 0:
        allowed &= j >= i - left
    if right >= 0:
        allowed &= j <= i + right
    if rules.chunk_size:  # chunked local attention (§3.11)
        allowed &= j // rules.chunk_size == i // rules.chunk_size
    for start, end in mm_prefix_ranges:
        if start < end:
            allowed |= (start <= i) & (i <= end) & (start <= j) & (j <= end)
    return allowed


def alibi_bias(rules, p, seq_len, query_len):
    """Bias of slope 1, [rows, Sk] (§3.4); it is linear in the slope for every variant."""
    i = np.asarray(p, dtype=np.float64)[:, None]
    j = np.arange(seq_len, dtype=np.float64)[None, :]
    if rules.alibi == "sqrt":
        return np.where(j <= i, -np.sqrt(np.maximum(i - j, 0.0)), 0.0)
    if rules.kernel.alibi == "context_relative":
        return j - (seq_len - query_len) + 0.0 * i
    left, _ = window_pair(rules)
    if rules.causal and left < 0:
        return j + 0.0 * i
    return -np.abs(i - j)


def _weighted_sum(weights, values):
    """weights @ values where a weight of exactly 0 contributes exactly 0 (§0.6)."""
    if np.isfinite(values).all():
        return weights @ values
    values = np.broadcast_to(values, weights.shape[:-2] + values.shape[-2:])
    sums = np.empty(weights.shape[:-1] + values.shape[-1:])
    for index in np.ndindex(weights.shape[:-1]):
        used = weights[index] != 0
        sums[index] = weights[index][used] @ values[index[:-1]][used]
    return sums


def softmax_rows(scores, values, sink=None):
    """Output [..., rows, Dv] and natural-log LSE [..., rows] of masked scores [..., rows, Sk] (§3.1,
    §3.5); `values` [..., Sk, Dv] and `sink` [...] are broadcast."""
    sink = None if sink is None else np.asarray(sink, dtype=np.float64)[..., None]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        top = scores.max(axis=-1, initial=-np.inf)
        if sink is not None:
            top = np.maximum(top, sink)
        # Why: a row with no key has top = -inf, and (-inf) - (-inf) is NaN.
        base = np.where(np.isneginf(top), 0.0, top)
        weights = np.exp(scores - base[..., None])
        total = weights.sum(axis=-1)
        if sink is not None:
            total = total + np.exp(sink - base)
        lse = base + np.log(total)
        output = _weighted_sum(weights, values) / total[..., None]
    empty = np.isneginf(top)
    output[empty] = 0.0
    lse[empty] = -np.inf
    if sink is not None:
        full = np.broadcast_to(np.isposinf(sink), lse.shape)
        output[full] = 0.0
        lse[full] = np.inf
    return output, lse


def _norms(x):
    """Of vectors [..., D], over what is finite."""
    return np.sqrt((np.where(np.isfinite(x), x, 0.0) ** 2).sum(axis=-1))


# Scores of as many KV heads are computed at once as make so many: whole heads at a time are fast,
# and in a cache.
SCORES_AT_ONCE = 1 << 18


def attend_keys(rules, query, keys, values, allowed=None, bias=None, slopes=None, sinks=None):
    """Rows over keys: query [R, H, D], keys [Sk, Hk, D], values [Sk, Hk, Dv]; of `allowed` [R, Sk] a
    row sees those keys only, and no others count; bias [R, Sk] for slopes [H], sinks [H]. Returns
    output [R, H, Dv], lse [H, R] and the RowScales of both."""
    rows, num_heads, head_size = query.shape
    num_keys, num_kv_heads = keys.shape[:2]
    group = num_heads // num_kv_heads
    output = np.empty((rows, num_heads, values.shape[-1]))
    lse = np.empty((num_heads, rows))
    scales = row_rule.RowScales(rows, num_heads)

    def by_kv_head(x):
        return x.reshape(num_kv_heads, group, *x.shape[1:])

    query = by_kv_head(query.transpose(1, 0, 2))
    keys, values = keys.transpose(1, 0, 2)[:, None], values.transpose(1, 0, 2)[:, None]
    step = max(1, SCORES_AT_ONCE // max(1, group * rows * num_keys))
    for first in range(0, num_kv_heads, step):
        some = slice(first, min(num_kv_heads, first + step))
        heads = slice(first * group, some.stop * group)
        scores = rules.scale * (query[some] @ keys[some].swapaxes(-1, -2))
        if rules.logits_soft_cap > 0:
            scores = rules.logits_soft_cap * np.tanh(scores / rules.logits_soft_cap)
        if slopes is not None:
            scores = scores + by_kv_head(slopes)[some][..., None, None] * bias
        if allowed is not None:
            scores = np.where(allowed, scores, -np.inf)
        sink = None if sinks is None else by_kv_head(sinks)[some]
        out, sums = softmax_rows(scores, values[some], sink)
        products = abs(rules.scale) * _norms(query[some])[..., None] * _norms(keys[some])[..., None, :]
        measured = row_rule.measure(scores, values[some], out, sums, products)
        output[:, heads] = out.reshape(-1, *out.shape[2:]).transpose(1, 0, 2)
        lse[heads] = sums.reshape(-1, rows)
        for whole, part in zip((scales.sizes, scales.losses, scales.lse_losses), measured):
            whole[:, heads] = part.reshape(-1, rows).T
    return output, lse, scales


def attend(rules, rows, query, keys, values, query_len, mm_prefix_ranges, slopes, sinks):
    """One request.

    rows [R] are indices of query rows in the request, query [R, H, D] those rows, keys [Sk, Hk, D],
    values [Sk, Hk, Dv], slopes and sinks [H] or None. Returns output [R, H, Dv], lse [H, R] and the
    RowScales of both.
    """
    seq_len = keys.shape[0]
    p = positions(query_len, seq_len)[rows]
    allowed = allowed_keys(rules, p, seq_len, mm_prefix_ranges)
    bias = alibi_bias(rules, p, seq_len, query_len) if slopes is not None else None
    return attend_keys(rules, query, keys, values, allowed, bias, slopes, sinks)


def geometric_slopes(num_heads):
    """The usual ALiBi slopes: those of the next lower power of two n, then every second of 2n."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    slopes += [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(num_heads - power)]
    return np.array(slopes)
