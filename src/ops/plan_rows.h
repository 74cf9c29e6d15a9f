// Where the partial results of a planned decode lie (semantics §8.8). The buffers of partials are
// shared by all requests: first the rows of the first request that is split, split by split and
// token by token within a split, then those of the next. Requests with one split write their output
// at once and take no rows, so the buffers are as small as the plan allows.
//
//   requests with 2, 1 and 3 splits of 1, 1 and 2 tokens:   starts 0, 2, 2, 8
//   rows 0 and 1:   request 0, split 0 and split 1
//   rows 2 to 7:    request 2, split 0 of both tokens, split 1 of both, split 2 of both
//
// Pipelines compute this with the plan, on the host, and pass it as PlanParams::partial_start_loc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/error.h"
#include "kernels/params_mla.h"

namespace attnbench {

/// [B+1]: query_len_b rows for each split of the requests that have more than one. num_splits [B+1]
/// is cumulative as in DecodePlan, query_start_loc [B+1]; the last entry is R, the rows of the
/// partial buffers. Errors: E-SHAPE where the two are of different batches.
inline std::vector<attn::i64> plan_partial_start_loc(
    std::span<const std::int32_t> num_splits, std::span<const std::int32_t> query_start_loc) {
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
