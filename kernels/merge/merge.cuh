// merge_attn_states: two partial results of the same rows into one (semantics §6.3).
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/params.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

struct MergeWeights {
  float prefix;
  float suffix;
  float lse;
};

__device__ __forceinline__ MergeWeights merge_weights(float prefix_lse, float suffix_lse) {
  const float kNegInf = float_from_bits(0xFF800000u);
  // Both infinities mean "no key was seen" (§3.8); a NaN is no empty part and propagates.
  const float p = isinf(prefix_lse) ? kNegInf : prefix_lse;
  const float s = isinf(suffix_lse) ? kNegInf : suffix_lse;
  if (p == kNegInf && s == kNegInf) return {0.0f, 0.0f, kNegInf};
  const float maximum = p > s ? p : s;
  const float prefix = expf(p - maximum);
  const float suffix = expf(s - maximum);
  const float total = prefix + suffix;
  return {__fdiv_rn(prefix, total), __fdiv_rn(suffix, total), maximum + logf(total)};
}

/// A side of weight 0 contributes exactly 0, whatever it holds (§0.6.6).
template <int kCount>
__device__ __forceinline__ void weighted_sum(const MergeWeights& weights,
                                             const float (&prefix)[kCount],
                                             float (&suffix)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float from_suffix = weights.suffix == 0.0f ? 0.0f : weights.suffix * suffix[i];
    suffix[i] = weights.prefix == 0.0f ? from_suffix : from_suffix + weights.prefix * prefix[i];
  }
}

/// Config: Element kElement, kOutput; int kVector (elements of a thread's load), kThreads, kItems
/// (vectors of a thread). Grid: cdiv(T * H * D / kVector, kThreads * kItems).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) merge(const __grid_constant__ MergeParams p) {
  constexpr int kVector = Config::kVector;
  constexpr int kItems = Config::kItems;
  const unsigned row_vectors = static_cast<unsigned>(p.head_size / kVector);
  const i64 first = static_cast<i64>(blockIdx.x) * (Config::kThreads * kItems);
  const i64 first_row = quotient(first, row_vectors);
  const unsigned first_vector =
      static_cast<unsigned>(first - first_row * row_vectors) + threadIdx.x;
  const i64 num_rows = p.num_tokens * p.num_heads;

  i64 rows[kItems];
  unsigned vectors[kItems];
  MergeWeights weights[kItems];
  ElementVector<Config::kElement, kVector> prefix[kItems];
  ElementVector<Config::kElement, kVector> suffix[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const unsigned vector = first_vector + i * Config::kThreads;
    rows[i] = first_row + vector / row_vectors;
    vectors[i] = vector % row_vectors;
    prefix[i] = {};
    if (rows[i] >= num_rows) continue;
    const i64 token = quotient(rows[i], p.num_heads);
    const i64 head = rows[i] - token * p.num_heads;
    const i64 suffix_element = rows[i] * p.head_size + vectors[i] * kVector;
    suffix[i] = load_vector<Config::kElement, kVector>(static_cast<const char*>(p.suffix_output) +
                                                       suffix_element * size_of(Config::kElement));
    const i64 at = head * p.num_tokens + token;
    weights[i] = {0.0f, 1.0f, p.suffix_lse[at]};
    // Rows past the merged ones copy the suffix; their prefix may be garbage and is not read.
    if (token < p.num_merged) {
      const i64 prefix_element = rows[i] * p.prefix_head_stride + vectors[i] * kVector;
      prefix[i] = load_vector<Config::kElement, kVector>(
          static_cast<const char*>(p.prefix_output) + prefix_element * size_of(Config::kElement));
      weights[i] = merge_weights(p.prefix_lse[at], weights[i].lse);
    }
    if (p.output_lse != nullptr && vectors[i] == 0) {
      p.output_lse[head * p.output_lse_stride + token] = weights[i].lse;
    }
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (rows[i] >= num_rows) continue;
    float values[kVector];
    float other[kVector];
    decode_vector(suffix[i], values);
    decode_vector(prefix[i], other);
    weighted_sum(weights[i], other, values);
    if constexpr (Config::kOutput == Element::kE4M3) {
      const float factor = p.output_scale > 0.0f ? __fdiv_rn(1.0f, p.output_scale) : 1.0f;
#pragma unroll
      for (int d = 0; d < kVector; ++d) values[d] *= factor;
    }
    const i64 element = rows[i] * p.head_size + vectors[i] * kVector;
    store_vector(static_cast<char*>(p.output) + element * size_of(Config::kOutput),
                 encode_vector<Config::kOutput>(values));
  }
}

}  // namespace attn
