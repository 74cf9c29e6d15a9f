// merge_attn_states: two partial results of the same rows into one (semantics §6.3). Cascade
// attention merges what all requests saw of a common prefix with what each saw of its own keys;
// chunked prefill merges chunk after chunk. A kernel of pure bandwidth: three rows pass for a
// handful of multiplications, so all loads are issued before the weights are computed.
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/params.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// Factors of the two sides, which add up to 1, and the LSE of the merged row.
struct MergeWeights {
  float prefix;
  float suffix;
  float lse;
};

/// With m = max(p, s): weights e^(p - m) / l and e^(s - m) / l with l their sum, LSE = m + ln l.
/// Exact functions and divisions, not the fast ones: partials may be f32, and the cost is per row.
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

/// suffix = prefix * its weight + suffix * its weight. A side of weight 0 contributes exactly 0,
/// whatever it holds, NaN included (§0.6.6).
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

/// Config: Element kElement, kOutput; int kVector (elements of a load), kLoads (vectors of a
/// thread, all of one row; the row has a multiple of them), kThreads. Grid: cdiv(T * H * D /
/// (kVector * kLoads), kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) merge(const __grid_constant__ MergeParams p) {
  constexpr int kVector = Config::kVector;
  constexpr int kLoads = Config::kLoads;
  const unsigned row_threads = static_cast<unsigned>(p.head_size / (kVector * kLoads));
  const i64 thread = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const i64 row = quotient(thread, row_threads);
  const i64 token = quotient(row, p.num_heads);
  if (token >= p.num_tokens) return;
  const unsigned lane = static_cast<unsigned>(thread - row * row_threads);
  const i64 head = row - token * p.num_heads;
  const bool is_merged = token < p.num_merged;
  const char* const suffix_row =
      static_cast<const char*>(p.suffix_output) + row * p.head_size * size_of(Config::kElement);
  const char* const prefix_row = static_cast<const char*>(p.prefix_output) +
                                 row * p.prefix_head_stride * size_of(Config::kElement);
  char* const output_row =
      static_cast<char*>(p.output) + row * p.head_size * size_of(Config::kOutput);

  // All loads are under way before the weights are computed. Vectors of a thread lie row_threads
  // apart, so that neighbouring threads read neighbouring vectors.
  ElementVector<Config::kElement, kVector> prefix[kLoads];
  ElementVector<Config::kElement, kVector> suffix[kLoads];
  int elements[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    elements[i] = static_cast<int>(lane + i * row_threads) * kVector;
    suffix[i] = load_vector<Config::kElement, kVector>(suffix_row +
                                                       elements[i] * size_of(Config::kElement));
    // Rows past the merged ones copy the suffix; their prefix may be garbage and is not read.
    prefix[i] = {};
    if (is_merged) {
      prefix[i] = load_vector<Config::kElement, kVector>(prefix_row +
                                                         elements[i] * size_of(Config::kElement));
    }
  }
  const i64 at = head * p.num_tokens + token;
  const float suffix_lse = p.suffix_lse[at];
  const MergeWeights weights = is_merged ? merge_weights(p.prefix_lse[at], suffix_lse)
                                         : MergeWeights{0.0f, 1.0f, suffix_lse};
  if (p.output_lse != nullptr && lane == 0) {
    p.output_lse[head * p.output_lse_stride + token] = weights.lse;
  }
  float factor = 1.0f;
  if constexpr (Config::kOutput == Element::kE4M3) {
    if (p.output_scale > 0.0f) factor = __fdiv_rn(1.0f, p.output_scale);
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    float values[kVector];
    float other[kVector];
    decode_vector(suffix[i], values);
    decode_vector(prefix[i], other);
    weighted_sum(weights, other, values);
    if constexpr (Config::kOutput == Element::kE4M3) {
#pragma unroll
      for (int d = 0; d < kVector; ++d) values[d] *= factor;
    }
    store_vector(output_row + elements[i] * size_of(Config::kOutput),
                 encode_vector<Config::kOutput>(values));
  }
}

}  // namespace attn
