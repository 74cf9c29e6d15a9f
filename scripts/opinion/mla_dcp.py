"""MLA over ranks (semantics §7.7): the caches of the ranks, and what each computes by itself."""

import numpy as np

from . import compare, packed_cache, row_rule
from .dcp import ranks_of
from .errors import Disagreement


def place(case, request):
    """Rank and slot of every position of a request; one rank holds everything without DCP."""
    p = np.arange(case.seq_lens[request])
    size, world, interleave = case.cache["block_size"], case.world_size, case.interleave
    virtual = size * world
    table = case.need("block_table").raw[request]
    inside = p % virtual
    offset = inside // (world * interleave) * interleave + inside % interleave
    slots = table[p // virtual].astype(np.int64) * size + offset
    return ranks_of(p, world, interleave), slots


def check_cache(case, expected):
    """Every live entry is where it belongs, and slot_mapping names the new ones."""
    cache = np.ascontiguousarray(case.need("kv_cache").raw)
    if case.cache_dtype == packed_cache.MODEL1:
        cache = packed_cache.model1_from_blocks(cache)
    cache = cache.reshape(case.world_size, -1, cache.shape[-1]).view("u1")
    if cache.shape[2] != expected.shape[1]:
        raise Disagreement(f"kv_cache has {cache.shape[2]} bytes an entry, not {expected.shape[1]}")
    mapping = case.need("slot_mapping").raw.reshape(case.world_size, -1)
    for b, seq_len in enumerate(case.seq_lens):
        ranks, slots = place(case, b)
        wanted = expected[case.key_starts[b] : case.key_starts[b + 1]]
        wrong = np.argwhere(cache[ranks, slots] != wanted)
        if len(wrong):
            p, byte = wrong[0]
            raise Disagreement(f"kv_cache: request {b}, position {p}, byte {byte} differs")
        begin, end = case.starts[b], case.starts[b + 1]
        new = slice(seq_len - (end - begin), seq_len)
        for rank in range(case.world_size):
            own = np.where(ranks[new] == rank, slots[new], -1)
            if not np.array_equal(mapping[rank, begin:end], own):
                raise Disagreement(f"slot_mapping of rank {rank}, request {b} differs")
    if (mapping[:, case.num_tokens :] >= 0).any():
        raise Disagreement("slot_mapping names slots for padding tokens")


def check_partials(case, queries, read, attend, half_units, lse_atol):
    """What every rank holds of the checked decode rows before the exchange. `attend`: the latent
    output, LSE and sizes of rows over the entries of a rank."""
    if "rank_output" not in case.tensors:
        return 0.0
    partial = case.values("rank_output").astype(np.float64)
    partial_lse = case.values("rank_lse").astype(np.float64)
    worst = 0.0
    decodes = case.rows[case.rows < case.starts[case.num_decodes]]
    requests = np.searchsorted(case.starts, decodes, side="right") - 1
    for b in np.unique(requests):
        tokens = decodes[requests == b]
        visible = case.seq_lens[b] - (case.starts[b + 1] - 1 - tokens)
        holders = ranks_of(np.arange(visible.max(initial=0)), case.world_size, case.interleave)
        entries = read[case.key_starts[b] : case.key_starts[b] + len(holders)]
        for rank in range(case.world_size):
            mine = np.flatnonzero(holders == rank)
            output, lse, spread = attend(
                case, queries[tokens], entries[mine], np.searchsorted(mine, visible))  # fmt: skip
            scales = row_rule.RowScales(*spread.shape)
            scales.sizes = np.maximum(spread, np.linalg.norm(output, axis=-1))
            name = f"rank {rank}, request {b}"
            worst = max(worst, row_rule.require_rows(
                f"rank_output of {name}", partial[rank, tokens], output, scales, half_units))  # fmt: skip
            compare.require_close(
                f"rank_lse of {name}", partial_lse[rank][:, tokens], lse.T, lse_atol, 1e-5)  # fmt: skip
    return worst
