// Puts the splits of a planned decode together by their LSE (semantics §8.8). Config as
// combine.cuh's.
#pragma once

#include "kernels/attention/combine.cuh"
#include "kernels/params_mla.h"

namespace attn {

/// Grid: x = (token, head) rows of the longest query, y = request.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32)
    combine_plan(const __grid_constant__ AttendParams params,
                 const __grid_constant__ PlanParams plan) {
  const int request = static_cast<int>(blockIdx.y);
  const int splits = plan.num_splits[request + 1] - plan.num_splits[request];
  if (splits <= 1) return;
  const int* const starts = params.query_start_loc + params.first_request + request;
  const i64 query_len = starts[1] - starts[0];
  const i64 row = row_of_warp<Config>();
  const i64 index = row / params.num_heads;
  const int head = static_cast<int>(row % params.num_heads);
  if (index >= query_len) return;
  const i64 first = (plan.partial_start_loc[request] + index) * params.num_heads + head;
  const i64 stride = query_len * params.num_heads;
  combine_row<Config>(
      params, starts[0] + index, head, splits,
      [&](int p) { return plan.partial_lse[first + p * stride] * kLog2E; },
      [](int) { return 1.0f; },
      [&](int p) { return plan.partial_output + (first + p * stride) * Config::kVHeadSize; });
}

}  // namespace attn
