// A block of query rows that share one KV head: where they stand, what they see, their queries.
//
// The rows of a request and KV head are packed: the G query heads that share the KV head (GQA) lie
// next to each other for every token, so that keys and values are read once for all of them. A
// block is up to kRowTile such rows, the unit of work of a thread. What a row may see is a short
// list of intervals of keys: one by the causal rule and the window, and one for every bidirectional
// range that the row is in. No mask is ever stored.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"
#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

/// Rows [first_row, first_row + num_rows) of (request, kv_head); row r is query token r / G and
/// query head kv_head * G + r % G.
struct RowBlock {
  int request = 0;
  int kv_head = 0;
  std::int64_t first_row = 0;
  int num_rows = 0;
};

/// Every row of the requests of `params` once. Within a request the blocks with more keys to see
/// come first, so that the last of them to be taken by a thread are short.
std::vector<RowBlock> row_blocks(const attn::AttendParams& params);

/// Token (index into [T]) and query head of a block's row.
struct RowPlace {
  std::int64_t token = 0;
  int head = 0;
};
RowPlace place_of_row(const attn::AttendParams& params, const RowBlock& block, int row);

/// Half-open run of key positions within a request.
struct KeyRun {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Prepares everything in `scratch` that belongs to the rows: positions (bottom-right aligned,
/// semantics §3.2), visible intervals, slopes, scaled queries; running state m = -inf (or the
/// sink), l = 0 (or 1), output 0. scratch.shift holds the row constant of linear ALiBi, which
/// scores leave out. Memory must have been reserved.
void load_rows(const attn::AttendParams& params, const RowBlock& block, bool with_sink,
               Scratch& scratch);

/// From the first to past the last key that any row may see, cut to `run`.
KeyRun visible_run(const Scratch& scratch, KeyRun run);

}  // namespace attnbench::cpu
