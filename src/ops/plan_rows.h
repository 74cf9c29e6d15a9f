// Where the partial results of a planned decode lie (semantics §8.8).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/params_mla.h"

namespace attnbench {

/// [B+1] for PlanParams::partial_start_loc: query_len_b rows for each split of the requests that
/// have more than one. num_splits [B+1] is cumulative as in DecodePlan, query_start_loc [B+1]; the
/// last entry is R, the rows of the partial buffers.
std::vector<attn::i64> plan_partial_start_loc(std::span<const std::int32_t> num_splits,
                                              std::span<const std::int32_t> query_start_loc);

}  // namespace attnbench
