// Splits of the rows of one CTA put together by those who made them, without a launch of their own:
// from device memory by the last CTA to finish, or through the shared memory of a cluster. With l_p
// the log-weight of split p, w_p = 2^(l_p - max l) and sum_p 1 for normalised splits,
//   total = sum w_p sum_p,  output = sum w_p values_p / total,  LSE = max l + log2(total),
// always in the order of p, so that the bytes are the same in every run. combine.cuh does the same
// with a launch.
#pragma once

#include "kernels/attention/combine.cuh"
#include "kernels/attention/decode/layout.cuh"
#include "kernels/attention/parts.cuh"
#include "kernels/ptx/arrivals.cuh"
#include "kernels/ptx/cluster.cuh"

namespace attn {

/// Splits that are under way to a thread at once.
constexpr int kJoinBatch = 8;

/// LSE and weights of one row by one warp: weights [num_splits] are w_p / total, in shared memory.
/// `lse` are the row's partial LSEs, `stride` apart.
template <class Config>
__device__ __forceinline__ void weigh_splits(const AttendParams& params, const RowTile& tile,
                                             int row, const float* lse, i64 stride, int num_splits,
                                             float* weights) {
  constexpr u32 kAll = 0xFFFFFFFFu;
  const int lane = static_cast<int>(threadIdx.x % 32);
  float maximum = kNegInf;
  for (int p = lane; p < num_splits; p += 32) {
    const float log = load_of_grid(lse + p * stride) * kLog2E;
    weights[p] = log;
    // The negated test lets a NaN through, so that it is seen in the result.
    if (!(log <= maximum)) maximum = log;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAll, maximum, step);
    if (!(other <= maximum)) maximum = other;
  }
  float total = 0.0f;
  for (int p = lane; p < num_splits; p += 32) {
    weights[p] = weight_of_part(weights[p], maximum);
    total += weights[p];
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(kAll, total, step);
  const float factor = total == 0.0f ? 0.0f : 1.0f / total;
  for (int p = lane; p < num_splits; p += 32) weights[p] *= factor;
  if (lane == 0) {
    store_lse(params, tile, row, total == 0.0f ? kNegInf : (maximum + log2_fast(total)) * kLn2);
  }
}

/// Output and LSE of the tile's rows from their partial results in device memory, by all threads of
/// the CTA; `shared` has join_bytes(). Rows whose columns do not occupy all
/// threads are dealt out by splits as well: thread group g takes splits g, g + groups, ...
template <class Config>
__device__ void join_splits(const AttendParams& params, const SplitParams& split,
                            const RowTile& tile, float* shared) {
  constexpr int kThreads = Config::kWarps * 32;
  constexpr int kQuads = Config::kVHeadSize / 4;
  const int thread = static_cast<int>(threadIdx.x);
  const int num_splits = split.num_splits;
  const i64 lse_stride = params.num_heads * split.num_tokens;
  for (int row = thread / 32; row < tile.num_rows; row += Config::kWarps) {
    const float* lse = split.partial_lse + static_cast<i64>(head_of(tile, row)) * split.num_tokens +
                       token_of(tile, row);
    weigh_splits<Config>(params, tile, row, lse, lse_stride, num_splits, shared + row * num_splits);
  }
  __syncthreads();
  const int items = tile.num_rows * kQuads;
  const int groups = items >= kThreads ? 1 : kThreads / items;
  auto* const sums = reinterpret_cast<float4*>(shared + join_weights(tile.num_rows, num_splits));
  const i64 stride = split.num_tokens * params.num_heads * Config::kVHeadSize;
  const int group = groups == 1 ? 0 : thread / items;
  const int first = groups == 1 ? thread : thread % items;
  for (int item = first; item < items; item += kThreads) {
    const int row = item / kQuads;
    const int column = item % kQuads * 4;
    const float* const weights = shared + row * num_splits;
    const float* const from =
        split.partial_output +
        (static_cast<i64>(token_of(tile, row)) * params.num_heads + head_of(tile, row)) *
            Config::kVHeadSize +
        column;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int p = group; p < num_splits && group < groups; p += kJoinBatch * groups) {
      float4 batch[kJoinBatch] = {};
#pragma unroll
      for (int i = 0; i < kJoinBatch; ++i) {
        const int at = p + i * groups;
        if (at < num_splits)
          batch[i] = load_of_grid(reinterpret_cast<const float4*>(from + at * stride));
      }
#pragma unroll
      for (int i = 0; i < kJoinBatch; ++i) {
        const int at = p + i * groups;
        const float weight = at < num_splits ? weights[at] : 0.0f;
        if (weight == 0.0f) continue;  // its values may be NaN
        sum.x += weight * batch[i].x;
        sum.y += weight * batch[i].y;
        sum.z += weight * batch[i].z;
        sum.w += weight * batch[i].w;
      }
    }
    if (groups == 1) {
      WholeRequest{}.store_values<Config>(params, tile, row, column, sum);
    } else {
      sums[thread] = sum;
    }
  }
  if (groups == 1) return;
  __syncthreads();
  if (thread >= items) return;
  float4 sum = sums[thread];
  for (int g = 1; g < groups; ++g) {
    const float4 other = sums[g * items + thread];
    sum.x += other.x;
    sum.y += other.y;
    sum.z += other.z;
    sum.w += other.w;
  }
  WholeRequest{}.store_values<Config>(params, tile, thread / kQuads, thread % kQuads * 4, sum);
}

/// The share of CTA `rank` in the rows of its cluster of kParts: every thread reads the states of a
/// row and four columns of all CTAs. `states` and `outputs` are the shared addresses of what each
/// has at the same place, `rows` this CTA's own, which differ from the others' in their keys only.
template <class Config, int kParts>
__device__ void join_cluster(const AttendParams& params, const RowTile& tile, int rank,
                             const Row* rows, u32 states, u32 outputs, int output_pitch) {
  constexpr int kThreads = Config::kWarps * 32;
  constexpr int kQuads = Config::kVHeadSize / 4;
  const int items = tile.num_rows * kQuads;
  for (int item = rank * kThreads + static_cast<int>(threadIdx.x); item < items;
       item += kParts * kThreads) {
    const int row = item / kQuads;
    const int column = item % kQuads * 4;
    float2 state[kParts];
    float4 values[kParts];
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      state[p] = load_pair_of_cta(in_cta(states + row * 8, p));
      values[p] = load_quad_of_cta(in_cta(outputs + row * output_pitch + column * 4, p));
    }
    float base = kNegInf;
#pragma unroll
    for (int p = 0; p < kParts; ++p) base = fmaxf(base, state[p].x);
    float total = 0.0f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const float weight = weight_of_base(state[p].x, base);
      total += state[p].y * weight;
      sum.x += values[p].x * weight;
      sum.y += values[p].y * weight;
      sum.z += values[p].z * weight;
      sum.w += values[p].w * weight;
    }
    const float factor = total == 0.0f ? 0.0f : 1.0f / total;
    sum.x *= factor;
    sum.y *= factor;
    sum.z *= factor;
    sum.w *= factor;
    const WholeRequest whole{};
    if (column == 0) whole.store_state<Config>(params, tile, row, base, total, rows[row]);
    whole.store_values<Config>(params, tile, row, column, sum);
  }
}

}  // namespace attn
