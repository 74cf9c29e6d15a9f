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
    rows = [w[w != 0] @ values[w != 0] for w in weights]
    return np.array(rows).reshape(len(weights), values.shape[-1])


def softmax_rows(scores, values, sink=None):
    """Output [rows, Dv] and natural-log LSE [rows] of masked scores [rows, Sk] (§3.1, §3.5)."""
    rows = scores.shape[0]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        top = scores.max(axis=1) if scores.shape[1] else np.full(rows, -np.inf)
        if sink is not None:
            top = np.maximum(top, sink)
        # Why: a row with no key has top = -inf, and (-inf) - (-inf) is NaN.
        base = np.where(np.isneginf(top), 0.0, top)
        weights = np.exp(scores - base[:, None])
        total = weights.sum(axis=1)
        if sink is not None:
            total = total + np.exp(sink - base)
        lse = base + np.log(total)
        output = _weighted_sum(weights, values) / total[:, None]
    empty = np.isneginf(top)
    output[empty] = 0.0
    lse[empty] = -np.inf
    if sink is not None and np.isposinf(sink):
        output[:] = 0.0
        lse[:] = np.inf
    return output, lse


def norm_products(query, keys, scale):
    """||q|| ||k|| |scale| [rows, Sk] of query [rows, D] and keys [Sk, D], over what is finite."""
    norms = [np.sqrt((np.where(np.isfinite(x), x, 0.0) ** 2).sum(axis=1)) for x in (query, keys)]
    return abs(scale) * norms[0][:, None] * norms[1][None, :]


def attend(rules, rows, query, keys, values, query_len, mm_prefix_ranges, slopes, sinks):
    """One request.

    rows [R] are indices of query rows in the request, query [R, H, D] those rows, keys [Sk, Hk, D],
    values [Sk, Hk, Dv], slopes and sinks [H] or None. Returns output [R, H, Dv], lse [H, R] and the
    RowScales of both.
    """
    seq_len = keys.shape[0]
    num_heads, group = query.shape[1], query.shape[1] // keys.shape[1]
    p = positions(query_len, seq_len)[rows]
    allowed = allowed_keys(rules, p, seq_len, mm_prefix_ranges)
    bias = alibi_bias(rules, p, seq_len, query_len) if slopes is not None else None
    output = np.empty((len(rows), num_heads, values.shape[-1]))
    lse = np.empty((num_heads, len(rows)))
    scales = row_rule.RowScales(len(rows), num_heads)
    for head in range(num_heads):
        scores = rules.scale * (query[:, head] @ keys[:, head // group].T)
        if rules.logits_soft_cap > 0:
            scores = rules.logits_soft_cap * np.tanh(scores / rules.logits_soft_cap)
        if bias is not None:
            scores = scores + slopes[head] * bias
        scores = np.where(allowed, scores, -np.inf)
        sink = None if sinks is None else sinks[head]
        output[:, head], lse[head] = softmax_rows(scores, values[:, head // group], sink)
        products = norm_products(query[:, head], keys[:, head // group], rules.scale)
        scales.measure((slice(None), head), scores, values[:, head // group], output[:, head],
                       lse[head], products)  # fmt: skip
    return output, lse, scales


def geometric_slopes(num_heads):
    """The usual ALiBi slopes: those of the next lower power of two n, then every second of 2n."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    slopes += [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(num_heads - power)]
    return np.array(slopes)
