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

/// LSE of a rank; NaN and +inf, which some attention kernels give to rows without keys, become
/// kNoLse: both fail the comparison.
__device__ __forceinline__ float rank_lse(const RankLses& lses, int rank, i64 token, i64 head) {
  const float lse =
      lses.lse[rank * lses.rank_stride + token * lses.token_stride + head * lses.head_stride];
  return lse < float_from_bits(0x7F800000u) ? lse : kNoLse;
}

/// Rows (token, head) of a CTA, heads first. One 64-bit quotient finds the first of them; the
/// others follow from it by 32-bit ones.
class DcpRows {
 public:
  struct Row {
    i64 token;
    i64 head;
  };
  __device__ __forceinline__ DcpRows(i64 first, i64 num_tokens, int num_heads, int most)
      : token_(quotient(first, num_heads)),
        head_(static_cast<unsigned>(first - token_ * num_heads)),
        num_heads_(static_cast<unsigned>(num_heads)) {
    const i64 left = num_tokens * num_heads - first;
    count_ = static_cast<unsigned>(left < most ? left : most);
  }
  __device__ __forceinline__ unsigned count() const { return count_; }
  __device__ __forceinline__ Row operator[](unsigned row) const {
    const unsigned head = head_ + row;
    return {token_ + head / num_heads_, head % num_heads_};
  }

 private:
  i64 token_;
  unsigned head_;
  unsigned num_heads_;
  unsigned count_;
};

/// weights[W, rows] become the factors e^(lse_rank - LSE) of every rank, 0 where either is -inf,
/// with LSE = ln sum e^lse over the ranks. The LSE is stored if the caller of the operation wants
/// it, and only by the CTAs with `stores_lse`, one of those that share a row. All threads must call
/// this; it ends with a barrier.
template <class Config, class Params>
__device__ __forceinline__ void weigh_ranks(const Params& p, const DcpRows& rows, bool stores_lse,
                                            float* weights) {
  const unsigned count = rows.count();
  const unsigned world_size = static_cast<unsigned>(p.lses.world_size);
  for (unsigned i = threadIdx.x; i < count * world_size; i += Config::kThreads) {
    const DcpRows::Row row = rows[i % count];
    weights[i] = rank_lse(p.lses, static_cast<int>(i / count), row.token, row.head);
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < count; i += Config::kThreads) {
    float* const of_row = weights + i;
    // The largest LSE is subtracted first: no power overflows, and that of the largest is 1.
    float maximum = kNoLse;
    for (unsigned rank = 0; rank < world_size; ++rank) {
      maximum = fmaxf(maximum, of_row[rank * count]);
    }
    float lse = kNoLse;
    if (maximum != kNoLse) {
      float sum = 0.0f;
      for (unsigned rank = 0; rank < world_size; ++rank) {
        sum += lse_power(p.lses, of_row[rank * count] - maximum);
      }
      lse = maximum + (p.lses.base_two != 0 ? log2f(sum) : logf(sum));
    }
    for (unsigned rank = 0; rank < world_size; ++rank) {
      const float own = of_row[rank * count];
      of_row[rank * count] = own == kNoLse ? 0.0f : lse_power(p.lses, own - lse);
    }
    if (p.output_lse != nullptr && stores_lse) {
      const DcpRows::Row row = rows[i];
      p.output_lse[row.token * p.lse_token_stride + row.head * p.lse_head_stride] = lse;
    }
  }
  __syncthreads();
}

/// Where an output row begins, in elements.
__device__ __forceinline__ i64 output_place(const DcpCombineParams& p, const DcpRows::Row& row) {
  return row.token * p.output_token_stride + row.head * p.output_head_stride;
}
__device__ __forceinline__ i64 output_place(const DcpCorrectParams& p, const DcpRows::Row& row) {
  const unsigned heads = static_cast<unsigned>(p.part_heads);
  const unsigned head = static_cast<unsigned>(row.head);
  const unsigned part = heads == 0 ? 0 : head / heads;
  return part * p.output_part_stride + row.token * p.output_token_stride +
         (head - part * heads) * p.output_head_stride;
}

/// output = sum of partial * weight over `num_terms` ranks from `first_rank` on, in their order.
/// A thread has kItems vectors, kThreads apart, of the rows of its CTA; blockIdx.y counts on within
/// rows that are wider than a CTA.
/// Config: Element kPartial, kOutput; int kVector (elements of a load), kItems (vectors of a
/// thread), kTerms (ranks whose vectors are under way at once), kThreads. Grid: (cdiv(T * H,
/// dcp_rows_of_cta()), cdiv(D / kVector, kItems * kThreads)).
template <class Config, class Params>
__device__ __forceinline__ void combine_ranks(const Params& p, int first_rank, int num_terms,
                                              i64 rank_stride) {
  constexpr int kVector = Config::kVector;
  constexpr int kItems = Config::kItems;
  constexpr int kTerms = Config::kTerms;
  constexpr unsigned kSlots = Config::kThreads * kItems;
  __shared__ float weights[kDcpWeightsOfCta];
  const unsigned row_vectors = static_cast<unsigned>(p.head_size / kVector);
  const int most = dcp_rows_of_cta(static_cast<int>(row_vectors), p.lses.world_size, kSlots);
  const DcpRows rows(static_cast<i64>(blockIdx.x) * most, p.num_tokens, p.num_heads, most);
  bool is_live[kItems];
  unsigned row_of[kItems];
  i64 from[kItems];
  i64 to[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const unsigned index = blockIdx.y * kSlots + i * Config::kThreads + threadIdx.x;
    row_of[i] = index / row_vectors;
    is_live[i] = row_of[i] < rows.count();
    const DcpRows::Row row = rows[row_of[i]];
    const int column = static_cast<int>(index - row_of[i] * row_vectors) * kVector;
    from[i] = row.token * p.partial_token_stride + row.head * p.partial_head_stride + column;
    to[i] = output_place(p, row) + column;
  }
  ElementVector<Config::kPartial, kVector> loaded[kTerms][kItems];
  const auto load = [&](int first_term) {
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (!is_live[i] || first_term + t >= num_terms) continue;
        const i64 at = (from[i] + (first_term + t) * rank_stride) * size_of(Config::kPartial);
        loaded[t][i] =
            load_vector<Config::kPartial, kVector>(static_cast<const char*>(p.partial) + at);
      }
    }
  };
  load(0);  // under way while the weights are made
  weigh_ranks<Config>(p, rows, blockIdx.y == 0, weights);
  float values[kItems][kVector] = {};
  for (int first_term = 0; first_term < num_terms; first_term += kTerms) {
    if (first_term > 0) load(first_term);
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (!is_live[i] || first_term + t >= num_terms) continue;
        const unsigned rank = static_cast<unsigned>(first_rank + first_term + t);
        const float weight = weights[rank * rows.count() + row_of[i]];
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
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (!is_live[i]) continue;
    store_vector(static_cast<char*>(p.output) + to[i] * size_of(Config::kOutput),
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
