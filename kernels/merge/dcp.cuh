// Combining the partial results of the ranks of a decode-context parallel group by their LSEs
// (semantics §7.3 steps 2 and 3, §7.5). Row (token, head) has a partial output and an LSE on every
// rank; with LSE = ln sum e^lse_rank the whole is sum e^(lse_rank - LSE) * partial_rank.
//   correct_dcp  scales the partial of one rank, which a reduce-scatter sums up afterwards;
//   combine_dcp  has the partials of all ranks after an all-to-all and sums them itself;
//   sum_ranks    is the sum of that reduce-scatter where ranks are simulated on one device.
// Ranks are always summed in ascending order, so that results do not depend on timing.
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/common/numeric.cuh"
#include "kernels/params_dcp.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// -inf: the rank saw no key of the row.
constexpr float kNoLse = __builtin_bit_cast(float, 0xFF800000u);

/// e^x, or 2^x.
__device__ __forceinline__ float lse_power(const RankLses& lses, float x) {
  return lses.base_two != 0 ? exp2f(x) : expf(x);
}

/// LSE of a rank at `lse`; NaN and +inf, which some attention kernels give to rows without keys,
/// become kNoLse: both fail the comparison.
__device__ __forceinline__ float rank_lse(const RankLses& lses, const float* lse, int rank) {
  const float value = lse[rank * lses.rank_stride];
  return value < float_from_bits(0x7F800000u) ? value : kNoLse;
}

/// What a CTA does: some heads of kTokens tokens, or some columns of one head where a row has more
/// vectors than the CTA has threads.
struct DcpTile {
  i64 first_token;
  unsigned first_head;
  unsigned num_heads;
};
template <class Config, class Params>
__device__ __forceinline__ DcpTile dcp_tile(const Params& p, int row_vectors) {
  const unsigned most = static_cast<unsigned>(
      dcp_heads_of_cta(row_vectors, p.lses.world_size, Config::kTokens, Config::kThreads));
  const unsigned heads = static_cast<unsigned>(p.num_heads);
  const unsigned across = (heads + most - 1) / most;
  const i64 down = quotient(blockIdx.x, across);
  const unsigned first = static_cast<unsigned>(blockIdx.x - down * across) * most;
  return {down * Config::kTokens, first, heads - first < most ? heads - first : most};
}

/// The factors e^(lse_rank - LSE) of all rows of the tile, 0 where either is -inf, with LSE = ln
/// sum e^lse over the ranks: weights[num_terms, heads, kTokens], of the ranks from `first_rank` on.
/// The LSE is stored if the caller of the operation wants it, and only by the CTAs with
/// `stores_lse`, one of those that share a row. kLanes lanes have a row. All threads must call
/// this; it ends with a barrier.
template <class Config, class Params>
__device__ __forceinline__ void weigh_ranks(const Params& p, const DcpTile& tile, int first_rank,
                                            int num_terms, bool stores_lse, float* weights) {
  constexpr int kLanes = 8;
  constexpr unsigned kTokens = Config::kTokens;
  constexpr unsigned kAtOnce = Config::kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const unsigned num_rows = tile.num_heads * kTokens;
  // Tokens run fastest, as they mostly do in the LSEs.
  for (unsigned first = 0; first < num_rows; first += kAtOnce) {
    const unsigned row = first + threadIdx.x / kLanes;
    const i64 token = tile.first_token + row % kTokens;
    const i64 head = tile.first_head + row / kTokens;
    const int world_size = row < num_rows && token < p.num_tokens ? p.lses.world_size : 0;
    const float* const lses = p.lses.lse + token * p.lses.token_stride + head * p.lses.head_stride;
    const float own = lane < world_size ? rank_lse(p.lses, lses, lane) : kNoLse;
    // The largest LSE is subtracted first: no power overflows, and that of the largest is 1.
    float maximum = own;
    for (int rank = lane + kLanes; rank < world_size; rank += kLanes) {
      maximum = fmaxf(maximum, rank_lse(p.lses, lses, rank));
    }
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, step));
    }
    const float base = maximum == kNoLse ? 0.0f : maximum;
    float sum = lse_power(p.lses, own - base);
    for (int rank = lane + kLanes; rank < world_size; rank += kLanes) {
      sum += lse_power(p.lses, rank_lse(p.lses, lses, rank) - base);
    }
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    const float lse = base + (p.lses.base_two != 0 ? log2f(sum) : logf(sum));
    for (int rank = lane; rank < world_size; rank += kLanes) {
      const int term = rank - first_rank;
      if (term < 0 || term >= num_terms) continue;
      const float of_rank = rank == lane ? own : rank_lse(p.lses, lses, rank);
      weights[term * num_rows + row] = of_rank == kNoLse ? 0.0f : lse_power(p.lses, of_rank - lse);
    }
    if (p.output_lse != nullptr && stores_lse && lane == 0 && world_size > 0) {
      p.output_lse[token * p.lse_token_stride + head * p.lse_head_stride] = lse;
    }
  }
  __syncthreads();
}

/// Where the output of a head begins, in elements.
__device__ __forceinline__ i64 output_place(const DcpCombineParams& p, unsigned head) {
  return head * p.output_head_stride;
}
__device__ __forceinline__ i64 output_place(const DcpCorrectParams& p, unsigned head) {
  const unsigned heads = static_cast<unsigned>(p.part_heads);
  const unsigned part = heads == 0 ? 0 : head / heads;
  return part * p.output_part_stride + (head - part * heads) * p.output_head_stride;
}

/// output = sum of partial * weight over `num_terms` ranks from `first_rank` on, in their order.
///
/// A thread has the same columns of kTokens tokens: what is asked of memory in time is few
/// instructions for each of these vectors, and so places are found once.
/// Config: Element kPartial, kOutput; int kVector (elements of a load), kTokens (vectors of a
/// thread), kTerms (ranks whose vectors are under way at once), kThreads. Grid: (cdiv(H,
/// dcp_heads_of_cta()) * cdiv(T, kTokens), cdiv(D / kVector, kThreads)).
template <class Config, class Params>
__device__ __forceinline__ void combine_ranks(const Params& p, int first_rank, int num_terms,
                                              i64 rank_stride) {
  constexpr int kVector = Config::kVector;
  constexpr int kTokens = Config::kTokens;
  constexpr int kTerms = Config::kTerms;
  constexpr int kPartialBytes = size_of(Config::kPartial);
  constexpr int kOutputBytes = size_of(Config::kOutput);
  __shared__ float weights[kDcpWeightsOfCta];
  const int row_vectors = p.head_size / kVector;
  const DcpTile tile = dcp_tile<Config>(p, row_vectors);
  const unsigned index = blockIdx.y * Config::kThreads + threadIdx.x;
  const unsigned of_tile = index / static_cast<unsigned>(row_vectors);
  const int column = static_cast<int>(index - of_tile * row_vectors) * kVector;
  const unsigned head = tile.first_head + of_tile;
  const i64 left = p.num_tokens - tile.first_token;
  const int num_live =
      of_tile < tile.num_heads ? static_cast<int>(left < kTokens ? left : kTokens) : 0;
  const char* const from =
      static_cast<const char*>(p.partial) +
      (tile.first_token * p.partial_token_stride + head * p.partial_head_stride + column) *
          kPartialBytes;
  ElementVector<Config::kPartial, kVector> loaded[kTerms][kTokens];
  const auto load = [&](int first_term) {
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
      if (first_term + t >= num_terms) continue;
      const char* const of_rank = from + (first_term + t) * rank_stride * kPartialBytes;
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        if (i >= num_live) continue;
        loaded[t][i] = load_vector<Config::kPartial, kVector>(
            of_rank + i * (p.partial_token_stride * kPartialBytes));
      }
    }
  };
  load(0);  // under way while the weights are made
  weigh_ranks<Config>(p, tile, first_rank, num_terms, blockIdx.y == 0, weights);
  float values[kTokens][kVector] = {};
  for (int first_term = 0; first_term < num_terms; first_term += kTerms) {
    if (first_term > 0) load(first_term);
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
      if (first_term + t >= num_terms) continue;
      const float* const of_rank =
          weights + ((first_term + t) * tile.num_heads + of_tile) * kTokens;
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        if (i >= num_live) continue;
        const float weight = of_rank[i];
        if (weight == 0.0f) continue;  // exactly 0, whatever the partial holds
        float part[kVector];
        decode_vector(loaded[t][i], part);
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          values[i][k] = __fmaf_rn(weight, part[k], values[i][k]);
        }
      }
    }
  }
  char* const to =
      static_cast<char*>(p.output) +
      (tile.first_token * p.output_token_stride + output_place(p, head) + column) * kOutputBytes;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (i >= num_live) continue;
    store_vector(to + i * (p.output_token_stride * kOutputBytes),
                 encode_vector<Config::kOutput>(values[i]));
  }
}

/// One term: the partial of rank p.rank. Config and grid: those of combine_ranks().
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    correct_dcp(const __grid_constant__ DcpCorrectParams p) {
  combine_ranks<Config>(p, p.rank, 1, 0);
}

/// The terms of all ranks. Config and grid: those of combine_ranks().
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    combine_dcp(const __grid_constant__ DcpCombineParams p) {
  combine_ranks<Config>(p, 0, p.lses.world_size, p.partial_rank_stride);
}

/// One vector a thread. Config: Element kElement; int kVector, kThreads. Grid: cdiv(count /
/// kVector, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    sum_ranks(const __grid_constant__ SumRanksParams p) {
  constexpr int kVector = Config::kVector;
  const i64 thread = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const i64 at = thread * kVector * size_of(Config::kElement);
  if (thread * kVector >= p.count) return;
  float sums[kVector];
  decode_vector(load_vector<Config::kElement, kVector>(static_cast<const char*>(p.parts[0]) + at),
                sums);
  for (int rank = 1; rank < p.world_size; ++rank) {
    float terms[kVector];
    decode_vector(
        load_vector<Config::kElement, kVector>(static_cast<const char*>(p.parts[rank]) + at),
        terms);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums[i] += terms[i];
  }
  store_vector(static_cast<char*>(p.output) + at, encode_vector<Config::kElement>(sums));
}

}  // namespace attn
