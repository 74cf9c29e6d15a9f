// Puts the parts of a request's keys together again: splits by their LSE, Triton's segments by
// maximum and sum (semantics §4.3). One warp does one (token, head) row.
//
// Config: kOutput (Element) · kVHeadSize · kWarps (rows of a CTA)
#pragma once

#include "kernels/attention/rows.cuh"
#include "kernels/common/key_runs.cuh"

namespace attn {

/// Sum over parts of weight(part) * values(part), with everything that is known of the parts:
/// log_of(p) in log2 units (-inf: no part), sum_of(p) (1 for normalised parts), values_of(p) [Dv].
/// Every lane owns a run of columns, four or, for odd sizes, one, of every 32 runs.
template <class Config, class LogOf, class SumOf, class ValuesOf>
__device__ __forceinline__ void combine_row(const AttendParams& params, i64 token, int head,
                                            int num_parts, LogOf log_of, SumOf sum_of,
                                            ValuesOf values_of) {
  constexpr u32 kAll = 0xFFFFFFFFu;
  constexpr int kGrain = Config::kVHeadSize % 4 == 0 ? 4 : 1;
  constexpr int kRuns = (Config::kVHeadSize + 32 * kGrain - 1) / (32 * kGrain);
  const int lane = static_cast<int>(threadIdx.x % 32);
  float maximum = kNegInf;
  for (int p = lane; p < num_parts; p += 32) {
    const float log = log_of(p);
    // The negated test lets a NaN through, so that it is seen in the result.
    if (!(log <= maximum)) maximum = log;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAll, maximum, step);
    if (!(other <= maximum)) maximum = other;
  }
  float total = 0.0f;
  float sums[kRuns][kGrain] = {};
  for (int first = 0; first < num_parts; first += 32) {
    float mine = 0.0f;
    if (first + lane < num_parts) {
      const float log = log_of(first + lane);
      // Equal infinities differ by NaN; an empty part has no weight whatever the maximum.
      if (log != kNegInf) mine = log == maximum ? 1.0f : exp2_fast(log - maximum);
      if (mine != 0.0f) total += sum_of(first + lane) * mine;
    }
    const int count = smaller(32, num_parts - first);
#pragma unroll 4
    for (int p = 0; p < count; ++p) {
      const float weight = __shfl_sync(kAll, mine, p);
      if (weight == 0.0f) continue;
      const float* values = values_of(first + p);
#pragma unroll
      for (int k = 0; k < kRuns; ++k) {
        const int column = (k * 32 + lane) * kGrain;
        if (Config::kVHeadSize % (32 * kGrain) != 0 && column >= Config::kVHeadSize) continue;
        if constexpr (kGrain == 4) {
          const float4 v = *reinterpret_cast<const float4*>(values + column);
          sums[k][0] += weight * v.x;
          sums[k][1] += weight * v.y;
          sums[k][2] += weight * v.z;
          sums[k][3] += weight * v.w;
        } else {
          sums[k][0] += weight * values[column];
        }
      }
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(kAll, total, step);
  const float factor = total == 0.0f ? 0.0f : 1.0f / total * output_factor(params);
  const bool pairs = pairs_aligned(params);
  const i64 at = token * params.output_token_stride + head * params.output_head_stride;
#pragma unroll
  for (int k = 0; k < kRuns; ++k) {
    const int column = (k * 32 + lane) * kGrain;
    if (Config::kVHeadSize % (32 * kGrain) != 0 && column >= Config::kVHeadSize) continue;
    if constexpr (kGrain == 4) {
      store_pair<Config::kOutput>(params.output, at + column, sums[k][0] * factor,
                                  sums[k][1] * factor, pairs);
      store_pair<Config::kOutput>(params.output, at + column + 2, sums[k][2] * factor,
                                  sums[k][3] * factor, pairs);
    } else {
      store_one<Config::kOutput>(params.output, at + column, sums[k][0] * factor);
    }
  }
  if (lane == 0 && params.lse != nullptr) {
    params.lse[head * params.lse_stride + token] =
        total == 0.0f ? kNegInf : (maximum + log2_fast(total)) * kLn2;
  }
}

/// Grid: x = rows of the whole batch over kWarps; rows outside the requests of `params` are idle.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32)
    combine_splits(const __grid_constant__ AttendParams params,
                   const __grid_constant__ SplitParams split) {
  const i64 row = static_cast<i64>(blockIdx.x) * Config::kWarps + threadIdx.x / 32;
  const i64 token = row / params.num_heads;
  const int head = static_cast<int>(row % params.num_heads);
  const int* starts = params.query_start_loc + params.first_request;
  if (token < starts[0] || token >= starts[params.num_requests]) return;
  const float* lse = split.partial_lse + head * split.num_tokens + token;
  const i64 lse_stride = params.num_heads * split.num_tokens;
  const float* values = split.partial_output + row * Config::kVHeadSize;
  const i64 stride = split.num_tokens * params.num_heads * Config::kVHeadSize;
  combine_row<Config>(
      params, token, head, split.num_splits, [&](int p) { return lse[p * lse_stride] * kLog2E; },
      [](int) { return 1.0f; }, [&](int p) { return values + p * stride; });
}

/// Grid: x = (token, head) rows of one request over kWarps, y = request.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32)
    reduce_segments(const __grid_constant__ AttendParams params,
                    const __grid_constant__ SegmentParams segments) {
  const int request = params.first_request + static_cast<int>(blockIdx.y);
  const int first = params.query_start_loc[request];
  const i64 row = static_cast<i64>(blockIdx.x) * Config::kWarps + threadIdx.x / 32;
  const i64 token = first + row / params.num_heads;
  const int head = static_cast<int>(row % params.num_heads);
  if (token >= params.query_start_loc[request + 1]) return;
  const int active =
      num_active_segments(params.seq_lens[request], segments.num_segments, segments.tile);
  const i64 at = (token * params.num_heads + head) * segments.num_segments;
  combine_row<Config>(
      params, token, head, active, [&](int g) { return segments.segment_max[at + g] * kLog2E; },
      [&](int g) { return segments.segment_expsum[at + g]; },
      [&](int g) { return segments.segment_output + (at + g) * Config::kVHeadSize; });
}

}  // namespace attn
