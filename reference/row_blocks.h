// Which keys a row sees, and how the rows of a case are cut into blocks that are worked on at once.
// The plan decides speed only: every row attends to exactly its visible keys, whatever block it is
// in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "metadata/mask/attention_math.h"

namespace attnbench {

/// Appends the keys that the row at `position` sees as disjoint ascending ranges with a gap between
/// them: the causal window and the mm_prefix ranges that hold the position (semantics §3.6).
void append_visible_ranges(const AttentionMath& math, std::int64_t request, std::int64_t position,
                           std::int64_t seq_len, std::vector<KeyRange>& ranges);

/// Number of keys that the row sees.
std::int64_t count_visible(const AttentionMath& math, std::int64_t request, std::int64_t position,
                           std::int64_t seq_len);

/// Rows of one request times query heads of one KV head.
struct RowBlock {
  std::int64_t request = 0;
  std::int64_t row_begin = 0;  // indices into the list of rows
  std::int64_t row_end = 0;
  int first_head = 0;
  int num_heads = 0;
  KeyRange keys;  // hull of what its rows see

  std::int64_t num_tokens() const { return row_end - row_begin; }
  std::int64_t num_matrix_rows() const { return num_tokens() * num_heads; }
};

/// Lengths and head counts that the plan needs.
struct BatchShape {
  std::span<const std::int32_t> query_start_loc;  // [B+1]
  std::span<const std::int32_t> seq_lens;         // [B]
  int num_heads = 0;
  int num_kv_heads = 0;
};

/// Every (row, head) in exactly one block, costliest block first. `rows` are ascending token
/// indices below query_start_loc[B]. The plan does not depend on the number of threads.
std::vector<RowBlock> plan_row_blocks(const AttentionMath& math, const BatchShape& shape,
                                      std::span<const std::int32_t> rows);

}  // namespace attnbench
