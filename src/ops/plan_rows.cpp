#include "ops/plan_rows.h"

#include "core/error.h"

namespace attnbench {

std::vector<attn::i64> plan_partial_start_loc(std::span<const std::int32_t> num_splits,
                                              std::span<const std::int32_t> query_start_loc) {
  if (num_splits.size() != query_start_loc.size() || num_splits.empty()) {
    fail(ErrorKind::kShape, "num_splits must be [{}] like query_start_loc, got [{}]",
         query_start_loc.size(), num_splits.size());
  }
  std::vector<attn::i64> start{0};
  for (std::size_t b = 0; b + 1 < num_splits.size(); ++b) {
    const attn::i64 splits = num_splits[b + 1] - num_splits[b];
    const attn::i64 query_len = query_start_loc[b + 1] - query_start_loc[b];
    start.push_back(start.back() + (splits > 1 ? splits * query_len : 0));
  }
  return start;
}

}  // namespace attnbench
