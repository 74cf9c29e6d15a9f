"""Decode context parallelism (semantics §7): which rank holds which key, and what ranks compute.

A file of a group of W ranks holds `kv_cache` [W, ...], a cache for each rank, one `block_table`,
`slot_mapping` [W, N], and the partial results before the exchange: `rank_output` [W, T, H, Dv] and
`rank_lse` [W, H, T]. Query, output and LSE are of all H heads.
"""

import numpy as np

from . import attention, kv_cache, row_rule
from .errors import Disagreement, FormatError


def ranks_of(positions, world_size, interleave):
    """Keys are dealt to the ranks in runs of `interleave`."""
    return positions // interleave % world_size


def slots_of_positions(block_row, positions, rules):
    """Slot of every position on the rank that holds it (§7.1)."""
    world_size, interleave = rules.dcp_world_size, rules.dcp_interleave_size
    virtual = rules.block_size * world_size
    block, inside = positions // virtual, positions % virtual
    offset = inside // (world_size * interleave) * interleave + inside % interleave
    return block_row[block].astype(np.int64) * rules.block_size + offset


class RankCaches:
    """The stacked caches of a file."""

    def __init__(self, case):
        self.case, self.rules = case, case.rules
        cache = case.need("kv_cache")
        if cache.raw.ndim != 6 or cache.raw.shape[0] != self.rules.dcp_world_size:
            raise FormatError(f"kv_cache has shape {list(cache.raw.shape)}, expected [W, ...]")
        self.table = case.need("block_table").raw
        self.ranks = [
            kv_cache.PagedCache(
                self.rules, type(cache)(cache.dtype, plane), case.num_kv_heads, case.head_size
            )
            for plane in cache.raw
        ]

    def check(self, name, plane, codes):
        """Every key must be in its rank's cache, in its slot."""
        for b, length in enumerate(self.case.seq_lens):
            positions = np.arange(length)
            slots = slots_of_positions(self.table[b], positions, self.rules)
            holders = ranks_of(
                positions, self.rules.dcp_world_size, self.rules.dcp_interleave_size
            )
            rows = codes[self.case.key_starts[b] : self.case.key_starts[b + 1]]
            for rank, cache in enumerate(self.ranks):
                mine = holders == rank
                actual, _ = cache.gather(plane, slots[mine])
                if not np.array_equal(actual, rows[mine]):
                    raise Disagreement(f"kv_cache[rank {rank}, {name}] of request {b} differs")

    def check_slot_mapping(self):
        """A rank's slots of this step's keys: those it holds, and no others."""
        mapping = self.case.need("slot_mapping").raw
        world_size = self.rules.dcp_world_size
        if mapping.ndim != 2 or mapping.shape[0] != world_size:
            raise FormatError(f"slot_mapping has shape {list(mapping.shape)}, expected [W, N]")
        lens = np.diff(self.case.query_start_loc)
        for b, begin in enumerate(self.case.query_start_loc[:-1]):
            positions = np.arange(self.case.seq_lens[b] - lens[b], self.case.seq_lens[b])
            slots = slots_of_positions(self.table[b], positions, self.rules)
            holders = ranks_of(positions, world_size, self.rules.dcp_interleave_size)
            for rank in range(world_size):
                expected = np.where(holders == rank, slots, -1)
                if not np.array_equal(mapping[rank, begin : begin + lens[b]], expected):
                    raise Disagreement(f"slot_mapping of rank {rank}, request {b} differs")
        if (mapping[:, self.case.num_tokens :] >= 0).any():
            raise Disagreement("slot_mapping names slots for padding tokens")


def _partial(case, request, rank, query, keys, values):
    """Non-causal attention of a request's checked rows over the context keys of one rank, of which
    a window leaves some out for each row."""
    rules = case.rules
    begin, end = case.query_start_loc[request : request + 2]
    context = np.arange(case.seq_lens[request] - (end - begin))
    mine = context[ranks_of(context, rules.dcp_world_size, rules.dcp_interleave_size) == rank]
    tokens = case.checked_rows[(case.checked_rows >= begin) & (case.checked_rows < end)]
    left, _ = attention.window_pair(rules)
    # Rows that see the same keys are computed together.
    first = np.zeros(len(tokens), dtype=np.int64)
    if left >= 0:
        first = np.searchsorted(mine, tokens - end + case.seq_lens[request] - left)
    output = np.empty((len(tokens), case.num_heads, values.shape[-1]))
    lse = np.empty((case.num_heads, len(tokens)))
    scales = row_rule.RowScales(len(tokens), case.num_heads)
    for begin in np.unique(first):
        some, seen = first == begin, case.key_starts[request] + mine[begin:]
        output[some], lse[:, some], own = attention.attend_keys(
            rules, query[tokens[some]].astype(np.float64), keys[seen].astype(np.float64),
            values[seen].astype(np.float64))  # fmt: skip
        scales.put(some, own)
    return tokens, output, lse, scales


def check_partials(case, read, half_units):
    """What every rank says it computed before the exchange; returns the largest error. `read`:
    query, keys and values as attention reads them."""
    if "rank_output" not in case.tensors:
        return 0.0
    query, keys, values = read
    fp8 = case.need("query").dtype == "F8_E4M3"
    stacked = (case.rules.dcp_world_size, case.num_tokens, case.num_heads, values.shape[-1])
    actual = case.values("rank_output", stacked).astype(np.float64)
    actual_lse = case.values("rank_lse", (stacked[0], stacked[2], stacked[1]))
    worst = 0.0
    for rank in range(stacked[0]):
        for request in range(len(case.seq_lens)):
            tokens, output, lse, scales = _partial(case, request, rank, query, keys, values)
            if not len(tokens):
                continue
            name = f"rank_output[{rank}] of request {request}"
            error = row_rule.require_rows(name, actual[rank, tokens], output, scales, half_units)
            row_rule.require_lse(f"rank_lse[{rank}] of request {request}",
                                 actual_lse[rank][:, tokens], lse, scales, case.rules.dtype, fp8)  # fmt: skip
            worst = max(worst, error)
    return worst
