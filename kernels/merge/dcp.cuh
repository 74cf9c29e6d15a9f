// Combining the partial results of the ranks of a decode-context group by their LSEs (semantics
// §7.3 steps 2 and 3, §7.5).
#pragma once

#include "kernels/common/numeric.cuh"
#include "kernels/params_dcp.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

constexpr float kNoLse = __builtin_bit_cast(float, 0xFF800000u);

/// e^x, or 2^x.
__device__ __forceinline__ float lse_power(const RankLses& lses, float x) {
  return lses.base_two != 0 ? exp2f(x) : expf(x);
}

/// LSE of a rank; NaN and +inf are no LSE.
__device__ __forceinline__ float rank_lse(const RankLses& lses, int rank, i64 token, i64 head) {
  const float lse =
      lses.lse[rank * lses.rank_stride + token * lses.token_stride + head * lses.head_stride];
  return lse < float_from_bits(0x7F800000u) ? lse : kNoLse;
}

/// ln sum e^lse over the ranks; -inf when none saw a key.
__device__ __forceinline__ float combined_lse(const RankLses& lses, i64 token, i64 head) {
  float maximum = kNoLse;
  for (int rank = 0; rank < lses.world_size; ++rank) {
    maximum = fmaxf(maximum, rank_lse(lses, rank, token, head));
  }
  if (maximum == kNoLse) return kNoLse;
  float sum = 0.0f;
  for (int rank = 0; rank < lses.world_size; ++rank) {
    sum += lse_power(lses, rank_lse(lses, rank, token, head) - maximum);
  }
  return maximum + (lses.base_two != 0 ? log2f(sum) : logf(sum));
}

/// Its weight, 0 where either is -inf.
__device__ __forceinline__ float rank_weight(const RankLses& lses, int rank, i64 token, i64 head,
                                             float combined) {
  const float lse = rank_lse(lses, rank, token, head);
  return lse == kNoLse ? 0.0f : lse_power(lses, lse - combined);
}

/// What both operations do with a thread's columns [column, column + kVector) of a row: `add`(row
/// token, head, lse, column, values) fills values. Grid: cdiv(T * H * D / kVector, kThreads).
template <class Config, class Params, class Add>
__device__ __forceinline__ void combine_ranks(const Params& p, Add add) {
  constexpr int kVector = Config::kVector;
  // 32 bits are enough for all vectors of a decode; the launch sees to it.
  const unsigned index = blockIdx.x * Config::kThreads + threadIdx.x;
  const unsigned row_vectors = static_cast<unsigned>(p.head_size / kVector);
  const unsigned row = index / row_vectors;
  const i64 token = row / static_cast<unsigned>(p.num_heads);
  if (token >= p.num_tokens) return;
  const i64 head = row - token * p.num_heads;
  const int column = static_cast<int>(index - row * row_vectors) * kVector;
  const float lse = combined_lse(p.lses, token, head);
  float values[kVector] = {};
  add(token, head, lse, column, values);
  const i64 to = token * p.output_token_stride + head * p.output_head_stride + column;
  store_vector(static_cast<char*>(p.output) + to * size_of(Config::kOutput),
               encode_vector<Config::kOutput>(values));
  if (p.output_lse != nullptr && column == 0) {
    p.output_lse[token * p.lse_token_stride + head * p.lse_head_stride] = lse;
  }
}

template <class Config, class Params>
__device__ __forceinline__ void load_partial(const Params& p, i64 first, i64 token, i64 head,
                                             int column, float (&values)[Config::kVector]) {
  const i64 from = first + token * p.partial_token_stride + head * p.partial_head_stride + column;
  decode_vector(load_vector<Config::kPartial, Config::kVector>(static_cast<const char*>(p.partial) +
                                                               from * size_of(Config::kPartial)),
                values);
}

/// Config: Element kPartial, kOutput; int kVector (elements of a load), kThreads.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    correct_dcp(const __grid_constant__ DcpCorrectParams p) {
  constexpr int kVector = Config::kVector;
  combine_ranks<Config>(p,
                        [&](i64 token, i64 head, float lse, int column, float(&values)[kVector]) {
                          const float weight = rank_weight(p.lses, p.rank, token, head, lse);
                          if (weight == 0.0f) return;  // exactly 0, whatever the partial holds
                          load_partial<Config>(p, 0, token, head, column, values);
#pragma unroll
                          for (int i = 0; i < kVector; ++i) values[i] *= weight;
                        });
}

/// Config as correct_dcp's.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    combine_dcp(const __grid_constant__ DcpCombineParams p) {
  constexpr int kVector = Config::kVector;
  combine_ranks<Config>(
      p, [&](i64 token, i64 head, float lse, int column, float(&values)[kVector]) {
        for (int rank = 0; rank < p.lses.world_size; ++rank) {
          const float weight = rank_weight(p.lses, rank, token, head, lse);
          if (weight == 0.0f) continue;
          float part[kVector];
          load_partial<Config>(p, rank * p.partial_rank_stride, token, head, column, part);
#pragma unroll
          for (int i = 0; i < kVector; ++i) values[i] += weight * part[i];
        }
      });
}

/// Config: Element kElement; int kVector, kThreads. Grid: cdiv(count / kVector, kThreads).
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
