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
#include "kernels/ptx/mbarrier.cuh"

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

/// What the CTAs of a cluster of kParts send to each of them, in its shared memory at the same
/// place: of `kRows` rows at most, its share of their columns and their states.
template <class Config, int kRows>
struct ClusterInbox {
  static constexpr int kQuads = Config::kVHeadSize / 4;
  Barrier filled;
  float4 states[Config::kParts * kRows];  // of part and row: base and sum, then nothing
  static constexpr int kMost = (kRows * kQuads + Config::kParts - 1) / Config::kParts;
  float4 values[Config::kParts * kMost];  // of part and quad of the share
};

/// How the columns of the rows of a tile, four at a time (quads), are dealt out to the CTAs of a
/// cluster: in turn.
template <int kParts, int kQuads>
struct ClusterShares {
  static __device__ int owner(int quad) { return quad % kParts; }
  /// Among those of its owner.
  static __device__ int place(int quad) { return quad / kParts; }
  static __device__ int quad(int rank, int place) { return place * kParts + rank; }
  static __device__ int count(int num_rows, int rank) {
    return (num_rows * kQuads + kParts - 1 - rank) / kParts;
  }
  /// Bytes that all parts send to a CTA: its quads, and the states of their rows, which are all
  /// rows, or a different one for each quad.
  static __device__ u32 bytes(int num_rows, int rank) {
    const int mine = count(num_rows, rank);
    return static_cast<u32>(kParts * (mine + (kQuads >= kParts ? num_rows : mine)) * 16);
  }
};

/// The share of CTA `rank` in the rows of its cluster, from its inbox. `rows` are this CTA's own,
/// which differ from the others' in their keys only.
template <class Config, int kRows>
__device__ void join_cluster(const AttendParams& params, const RowTile& tile, int rank,
                             const Row* rows, const ClusterInbox<Config, kRows>& inbox) {
  constexpr int kParts = Config::kParts;
  constexpr int kQuads = Config::kVHeadSize / 4;
  using Shares = ClusterShares<kParts, kQuads>;
  const int mine = Shares::count(tile.num_rows, rank);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= mine) return;
  const WholeRequest whole{};
  for (int i = thread; i < mine; i += Config::kWarps * 32) {
    const int quad = Shares::quad(rank, i);
    const int row = quad / kQuads;
    const int column = quad % kQuads * 4;
    const OutputPlace to = output_place(params, tile, row, column);
    await(shared_address(&inbox.filled), 0);
    float2 states[kParts];
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      states[p] = *reinterpret_cast<const float2*>(&inbox.states[p * kRows + row]);
    }
    float base = kNegInf;
#pragma unroll
    for (int p = 0; p < kParts; ++p) base = fmaxf(base, states[p].x);
    float total = 0.0f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const float4 values = inbox.values[p * inbox.kMost + i];
      const float weight = weight_of_base(states[p].x, base);
      total += states[p].y * weight;
      sum.x += values.x * weight;
      sum.y += values.y * weight;
      sum.z += values.z * weight;
      sum.w += values.w * weight;
    }
    const float factor = total == 0.0f ? 0.0f : to.factor / total;
    sum.x *= factor;
    sum.y *= factor;
    sum.z *= factor;
    sum.w *= factor;
    store_quad<Config>(params, to, sum);
    if (column == 0) whole.store_state<Config>(params, tile, row, base, total, rows[row]);
  }
}

}  // namespace attn
