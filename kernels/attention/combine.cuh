// Puts the parts of a request's keys together again: splits by their LSE, planned splits likewise
// (semantics §8.8), Triton's segments by maximum and sum (§4.3). With l_p the log-weight of part p
// (its LSE, or its maximum), w_p = 2^(l_p - max l), and sum_p 1 for normalised parts:
//   total = sum w_p sum_p,  output = sum w_p values_p / total,  LSE = max l + log2(total).
// One warp does a row, or all warps of a CTA share out the parts of one where there are many.
//
// Config: kOutput (Element) · kVHeadSize · kWarps (of a CTA) · kRowWarps (of one (token, head) row:
// 1, or all of a CTA, which then share out the parts) · kFewParts (there are never more than lanes)
// · kTogether, where there is one: how many parts there are (combine_together())
#pragma once

#include "kernels/attention/rows.cuh"
#include "kernels/common/key_runs.cuh"
#include "kernels/params_mla.h"
#include "kernels/ptx/dependents.cuh"

namespace attn {

/// The columns of one lane: runs of four or, for sizes that four does not divide, of one; lane i
/// has run i of every 32, so that a warp reads a row contiguously.
template <int kColumns>
struct LaneColumns {
  static constexpr int kGrain = kColumns % 4 == 0 ? 4 : 1;
  static constexpr int kRuns = (kColumns + 32 * kGrain - 1) / (32 * kGrain);
  float of[kRuns][kGrain];

  static __device__ __forceinline__ int first(int run) {
    return (run * 32 + static_cast<int>(threadIdx.x % 32)) * kGrain;
  }
  static __device__ __forceinline__ bool holds(int run) {
    return kColumns % (32 * kGrain) == 0 || first(run) < kColumns;
  }
  __device__ __forceinline__ void load(const float* row) {
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
      if (!holds(k)) continue;
      if constexpr (kGrain == 4) {
        const float4 v = *reinterpret_cast<const float4*>(row + first(k));
        of[k][0] = v.x;
        of[k][1] = v.y;
        of[k][2] = v.z;
        of[k][3] = v.w;
      } else {
        of[k][0] = row[first(k)];
      }
    }
  }
  __device__ __forceinline__ void add(float weight, const LaneColumns& other) {
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
#pragma unroll
      for (int i = 0; i < kGrain; ++i) of[k][i] = fmaf(weight, other.of[k][i], of[k][i]);
    }
  }
};

/// Sums of the warps of a CTA, whole in its first warp: the others leave theirs in shared memory.
/// Added in the order of the warps, so that the result is the same in every run.
template <int kWarps, int kColumns>
__device__ __forceinline__ void add_warps(LaneColumns<kColumns>& sums) {
  using Columns = LaneColumns<kColumns>;
  __shared__ float4 others[kWarps - 1][(kColumns + 3) / 4];
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp > 0) {
    auto* row = reinterpret_cast<float*>(others[warp - 1]);
#pragma unroll
    for (int k = 0; k < Columns::kRuns; ++k) {
      if (!Columns::holds(k)) continue;
#pragma unroll
      for (int i = 0; i < Columns::kGrain; ++i) row[Columns::first(k) + i] = sums.of[k][i];
    }
  }
  __syncthreads();
  if (warp > 0) return;
#pragma unroll
  for (int w = 0; w < kWarps - 1; ++w) {
    Columns other{};
    other.load(reinterpret_cast<const float*>(others[w]));
    sums.add(1.0f, other);
  }
}

/// 2^(log - maximum). Equal infinities differ by NaN; an empty part has no weight whatever the
/// maximum.
__device__ __forceinline__ float weight_of_part(float log, float maximum) {
  if (log == kNegInf) return 0.0f;
  return log == maximum ? 1.0f : exp2_fast(log - maximum);
}

/// Output and LSE of a row whose weights sum up to `total`, relative to `maximum` (log2 units).
template <class Config>
__device__ __forceinline__ void store_row(const AttendParams& params, i64 token, int head,
                                          const LaneColumns<Config::kVHeadSize>& sums, float total,
                                          float maximum) {
  using Columns = LaneColumns<Config::kVHeadSize>;
  const float factor = total == 0.0f ? 0.0f : 1.0f / total * output_factor(params);
  const bool pairs = pairs_aligned(params);
  const i64 at = token * params.output_token_stride + head * params.output_head_stride;
#pragma unroll
  for (int k = 0; k < Columns::kRuns; ++k) {
    const int column = Columns::first(k);
    if (!Columns::holds(k)) continue;
    if constexpr (Columns::kGrain == 4) {
      store_pair<Config::kOutput>(params.output, at + column, sums.of[k][0] * factor,
                                  sums.of[k][1] * factor, pairs);
      store_pair<Config::kOutput>(params.output, at + column + 2, sums.of[k][2] * factor,
                                  sums.of[k][3] * factor, pairs);
    } else {
      store_one<Config::kOutput>(params.output, at + column, sums.of[k][0] * factor);
    }
  }
  if (threadIdx.x % 32 == 0 && params.lse != nullptr) {
    params.lse[head * params.lse_stride + token] =
        total == 0.0f ? kNegInf : (maximum + log2_fast(total)) * kLn2;
  }
}

/// Output and LSE of a row from what is known of its parts: log_of(p) in log2 units (-inf: no
/// part), sum_of(p) (1 for normalised parts), values_of(p) [Dv]. Lanes share out the parts for
/// maximum and total and the columns for the sum. The sum is a pipeline: while a batch of parts is
/// added, the loads of the next one are under way. A part of weight 0 is not added: its values may
/// be NaN.
template <class Config, class LogOf, class SumOf, class ValuesOf>
__device__ __forceinline__ void combine_row(const AttendParams& params, i64 token, int head,
                                            int num_parts, LogOf log_of, SumOf sum_of,
                                            ValuesOf values_of) {
  using Columns = LaneColumns<Config::kVHeadSize>;
  constexpr u32 kAll = 0xFFFFFFFFu;
  constexpr int kBatch = Columns::kRuns > 2 ? 3 : 4;  // parts under way at once
  constexpr int kStep = Config::kRowWarps;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first = static_cast<int>(threadIdx.x / 32) % kStep;
  // Why before the weights are known: values and log-weights then travel at the same time.
  Columns batch[kBatch] = {};
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    if (first + i * kStep < num_parts) batch[i].load(values_of(first + i * kStep));
  }
  float mine = kNegInf;  // of few parts the log-weight of this lane's, and then its weight
  float maximum = kNegInf;
  for (int p = lane; p < num_parts; p += 32) {
    mine = log_of(p);
    // The negated test lets a NaN through, so that it is seen in the result.
    if (!(mine <= maximum)) maximum = mine;
    if constexpr (Config::kFewParts) break;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAll, maximum, step);
    if (!(other <= maximum)) maximum = other;
  }
  float total = 0.0f;
  if constexpr (Config::kFewParts) {
    mine = weight_of_part(mine, maximum);
    if (mine != 0.0f) total = sum_of(lane) * mine;
  } else {
    for (int p = lane; p < num_parts; p += 32) {
      const float weight = weight_of_part(log_of(p), maximum);
      if (weight != 0.0f) total += sum_of(p) * weight;
    }
  }
  // Once more for every part, or from the lane that has it.
  const auto weight_of = [&](int p) {
    if constexpr (Config::kFewParts) {
      const float weight = __shfl_sync(kAll, mine, p % 32);
      return p < num_parts ? weight : 0.0f;
    } else {
      return p < num_parts ? weight_of_part(log_of(p), maximum) : 0.0f;
    }
  };
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(kAll, total, step);
  Columns sums{};
#pragma unroll 1
  for (int p = first; p < num_parts; p += kBatch * kStep) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = p + i * kStep;
      const float weight = weight_of(at);
      if (weight != 0.0f) sums.add(weight, batch[i]);
      const int next = at + kBatch * kStep;
      if (next < num_parts) batch[i].load(values_of(next));
    }
  }
  if constexpr (kStep > 1) {
    add_warps<kStep>(sums);
    if (first > 0) return;
  }
  store_row<Config>(params, token, head, sums, total, maximum);
}

/// A place that is worked out here and now, not where it is used.
__device__ __forceinline__ i64 kept(i64 place) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+l"(place));
#endif
  return place;
}

/// The (token, head) row of this warp, of a grid whose x runs over them.
template <class Config>
__device__ __forceinline__ i64 row_of_warp() {
  constexpr int kRows = Config::kWarps / Config::kRowWarps;
  static_assert(Config::kRowWarps == 1 || kRows == 1);
  return static_cast<i64>(blockIdx.x) * kRows + threadIdx.x / (32 * Config::kRowWarps);
}

/// combine_splits() of kTogether parts, a warp a row, with every load under way before the first is
/// waited for, and all places known before the parts are there. The compiler would ask for the
/// values behind the exchange of log-weights, and so wait for the L2 twice, and for parts behind
/// the fourth once more. Rows outside the requests are loaded as well, and not stored: there are
/// hardly any, and all others would wait for where requests start.
template <class Config>
__device__ __forceinline__ void combine_together(const AttendParams& params,
                                                 const SplitParams& split) {
  using Columns = LaneColumns<Config::kVHeadSize>;
  constexpr u32 kAll = 0xFFFFFFFFu;
  constexpr int kParts = Config::kTogether;
  constexpr int kLanes = kParts <= 2 ? 2 : (kParts <= 4 ? 4 : 8);  // that share out the log-weights
  static_assert(kParts <= kLanes && Config::kRowWarps == 1);
  // Tokens times heads of parts in memory are below 2^31 by far.
  const auto row = static_cast<int>(row_of_warp<Config>());
  const int token = row / params.num_heads;
  const int head = row - token * params.num_heads;
  if (token >= split.num_tokens) return;
  const int* const starts = params.query_start_loc + params.first_request;
  const int begin = load_now(starts);
  const int end = load_now(starts + params.num_requests);
  const int mine = static_cast<int>(threadIdx.x) % kLanes;
  const i64 line = static_cast<i64>(smaller(mine, kParts - 1)) * params.num_heads + head;
  const i64 lse = kept(line * split.num_tokens + token);
  i64 values[kParts];
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const i64 of_part = static_cast<i64>(p) * split.num_tokens * params.num_heads;
    values[p] = kept((of_part + row) * Config::kVHeadSize);
  }
  await_previous_kernel();  // which made the parts; the starts are older
  const float log = split.partial_lse[lse];
  Columns parts[kParts] = {};
#pragma unroll
  for (int p = 0; p < kParts; ++p) parts[p].load(split.partial_output + values[p]);
  const float weighed = mine < kParts ? log * kLog2E : kNegInf;
  float maximum = kNegInf;
  if (!(weighed <= maximum)) maximum = weighed;
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAll, maximum, step);
    if (!(other <= maximum)) maximum = other;
  }
  const float weight = weight_of_part(weighed, maximum);
  float total = weight;
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) total += __shfl_xor_sync(kAll, total, step);
  Columns sums{};
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const float of_part = __shfl_sync(kAll, weight, p);
    if (of_part != 0.0f) sums.add(of_part, parts[p]);
  }
  if (token < begin || token >= end) return;
  store_row<Config>(params, token, head, sums, total, maximum);
}

/// Splits of split-KV decoding. Every request has num_splits, empty ones included. Grid: x = rows
/// of the whole batch; rows outside the requests of `params` are idle.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32)
    combine_splits(const __grid_constant__ AttendParams params,
                   const __grid_constant__ SplitParams split) {
  allow_next_kernel();
  if constexpr (requires { Config::kTogether; }) {
    combine_together<Config>(params, split);
    return;
  }
  const i64 row = row_of_warp<Config>();
  const i64 token = row / params.num_heads;
  const int head = static_cast<int>(row % params.num_heads);
  const int* starts = params.query_start_loc + params.first_request;
  if (token < starts[0] || token >= starts[params.num_requests]) return;
  await_previous_kernel();  // which made the parts; the starts are older
  const float* lse = split.partial_lse + head * split.num_tokens + token;
  const i64 lse_stride = params.num_heads * split.num_tokens;
  const float* values = split.partial_output + row * Config::kVHeadSize;
  const i64 stride = split.num_tokens * params.num_heads * Config::kVHeadSize;
  combine_row<Config>(
      params, token, head, split.num_splits, [&](int p) { return lse[p * lse_stride] * kLog2E; },
      [](int) { return 1.0f; }, [&](int p) { return values + p * stride; });
}

/// Triton's segments: only the active ones of a request were written. Grid: x = (token, head) rows
/// of one request, y = request.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32)
    reduce_segments(const __grid_constant__ AttendParams params,
                    const __grid_constant__ SegmentParams segments) {
  allow_next_kernel();
  await_previous_kernel();
  const int request = params.first_request + static_cast<int>(blockIdx.y);
  const int first = params.query_start_loc[request];
  const i64 row = row_of_warp<Config>();
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

/// Splits of a planned decode; a request with one split has been finished by attend_plan already.
/// Grid: x = (token, head) rows of the longest query, y = request. What the plan and the batch say
/// is read before the wait: whoever made it had ended before attend_plan let this kernel begin.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps * 32)
    combine_plan(const __grid_constant__ AttendParams params,
                 const __grid_constant__ PlanParams plan) {
  allow_next_kernel();
  const int request = static_cast<int>(blockIdx.y);
  const int splits = plan.num_splits[request + 1] - plan.num_splits[request];
  const int* const starts = params.query_start_loc + params.first_request + request;
  const i64 query_start = starts[0];
  const i64 query_len = starts[1] - query_start;
  const i64 row = row_of_warp<Config>();
  const i64 index = row / params.num_heads;
  const int head = static_cast<int>(row % params.num_heads);
  const i64 first = (plan.partial_start_loc[request] + index) * params.num_heads + head;
  const i64 stride = query_len * params.num_heads;
  // By all, so that the kernel behind this one comes after attend_plan too.
  await_previous_kernel();
  if (splits <= 1 || index >= query_len) return;
  combine_row<Config>(
      params, query_start + index, head, splits,
      [&](int p) { return plan.partial_lse[first + p * stride] * kLog2E; },
      [](int) { return 1.0f; },
      [&](int p) { return plan.partial_output + (first + p * stride) * Config::kVHeadSize; });
}

}  // namespace attn
