"""Attention as torch defines it: a causal mask begins at the first key, wherever the queries stand."""

import numpy


def scaled_dot_product_attention(query, key, value, is_causal=False, scale=None, enable_gqa=False):
    from torch import Tensor

    if query.shape[1] != key.shape[1]:
        assert enable_gqa, "more heads of queries than of keys"
        group = query.shape[1] // key.shape[1]
        key, value = numpy.repeat(key, group, 1), numpy.repeat(value, group, 1)
    query, key, exact = (numpy.asarray(each, numpy.float64) for each in (query, key, value))
    scores = query @ key.swapaxes(2, 3) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = numpy.where(numpy.tri(*scores.shape[2:], dtype=bool), scores, -numpy.inf)
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return (weights @ exact).astype(value.dtype).view(Tensor)
