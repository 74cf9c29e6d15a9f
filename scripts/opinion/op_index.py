"""The indexer of sparse MLA (semantics §8.10): its cache, logits and choice of keys."""

import numpy as np

from . import compare
from . import number_formats as formats
from .errors import Disagreement
from .op_case import FP8_MAX, require_bytes


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
