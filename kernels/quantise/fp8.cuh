// Quantisation to e4m3: one static scale, a scale per group of columns, and the encoder's padded
// heads (semantics §8.7 step 2, §9.2, §9.3, §10.5).
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/params_mm.h"
#include "kernels/params_quant.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// x * factor, where zero stays zero: the reciprocal of a scale below 2^-128 is infinite.
__device__ __forceinline__ float scaled_by(float x, float factor) {
  return x == 0.0f ? x : __fmul_rn(x, factor);
}

/// Elements that saturation changes by more than rounding would (§0.4).
template <int kCount>
__device__ __forceinline__ int count_saturated(const float (&values)[kCount]) {
  int count = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) count += fabsf(values[i]) > 464.0f ? 1 : 0;
  return count;
}

/// Adds the counts of all threads of the CTA to *total; every thread must come here.
__device__ __forceinline__ void add_saturated(int count, i64* total) {
  if (total == nullptr) return;
  const int of_warp = __reduce_add_sync(0xFFFFFFFFu, count);
  if (threadIdx.x % 32 == 0 && of_warp > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(total),
              static_cast<unsigned long long>(of_warp));
  }
}

/// Config: Element kSource; int kVector (elements of a thread), kThreads. Grid: cdiv(rows * columns
/// / kVector, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    quantise_fp8(const __grid_constant__ StaticQuantiseParams p) {
  constexpr int kVector = Config::kVector;
  const i64 index = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const i64 row_vectors = p.num_columns / kVector;
  const i64 row = quotient(index, row_vectors);
  int saturated = 0;
  if (row < p.num_rows) {
    const i64 column = (index - row * row_vectors) * kVector;
    const i64 from = row * p.source_row_stride + column;
    float values[kVector];
    decode_vector(load_vector<Config::kSource, kVector>(static_cast<const char*>(p.source) +
                                                        from * size_of(Config::kSource)),
                  values);
    const float factor = __fdiv_rn(1.0f, p.scale[0]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = scaled_by(values[i], factor);
    saturated = count_saturated(values);
    store_vector(p.codes + row * p.code_row_stride + column, encode_vector<Element::kE4M3>(values));
  }
  add_saturated(saturated, p.num_saturated);
}

/// max(scale, 1e-10) rounded up to a power of two; infinity stays.
__device__ __forceinline__ float round_up_to_power_of_two(float scale) {
  // Why: adding the largest mantissa carries into the exponent unless the mantissa is 0.
  return float_from_bits((float_bits(fmaxf(scale, 1e-10f)) + 0x7FFFFFu) & 0x7F800000u);
}

/// Lanes of a group hold 8 elements each. Config: Element kSource; int kVector (elements of a load,
/// at most 8), kGroup, kThreads. Grid: cdiv(rows * groups, kThreads * 8 / kGroup).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    quantise_fp8_groups(const __grid_constant__ GroupQuantiseParams p) {
  constexpr int kVector = Config::kVector;
  constexpr int kLoads = 8 / kVector;
  constexpr int kLanes = Config::kGroup / 8;
  const i64 num_groups = p.num_columns / Config::kGroup;
  const i64 index =
      static_cast<i64>(blockIdx.x) * (Config::kThreads / kLanes) + threadIdx.x / kLanes;
  const i64 row = quotient(index, num_groups);
  const i64 group = index - row * num_groups;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const bool is_live = row < p.num_rows;
  const i64 first = group * Config::kGroup + lane * kVector;
  float values[kLoads][kVector] = {};
  float largest = 1e-10f;
#pragma unroll
  for (int l = 0; l < kLoads; ++l) {
    if (is_live) {
      const i64 from = row * p.source_row_stride + first + l * kLanes * kVector;
      decode_vector(load_vector<Config::kSource, kVector>(static_cast<const char*>(p.source) +
                                                          from * size_of(Config::kSource)),
                    values[l]);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) largest = fmaxf(largest, fabsf(values[l][i]));
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
  }
  float scale = __fdiv_rn(largest, 448.0f);
  if (p.ue8m0 != 0) scale = round_up_to_power_of_two(scale);
  int saturated = 0;
  if (is_live) {
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[l][i] = __fdiv_rn(values[l][i], scale);
      saturated += count_saturated(values[l]);
      store_vector(p.codes + row * p.code_row_stride + first + l * kLanes * kVector,
                   encode_vector<Element::kE4M3>(values[l]));
    }
    if (lane == 0) p.scales[row * p.scale_row_stride + group * p.scale_group_stride] = scale;
  }
  add_saturated(saturated, p.num_saturated);
}

/// Config: Element kSource; int kVector (divides D and Dp), kThreads. Grid: cdiv(S * H * Dp /
/// kVector, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    quantise_pad_fp8(const __grid_constant__ PadQuantiseParams p) {
  constexpr int kVector = Config::kVector;
  const i64 index = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const int row_vectors = p.padded_head_size / kVector;
  const i64 row = quotient(index, row_vectors);
  const i64 token = quotient(row, p.num_heads);
  int saturated = 0;
  if (token < p.num_tokens) {
    const i64 head = row - token * p.num_heads;
    const int column = static_cast<int>(index - row * row_vectors) * kVector;
    float values[kVector] = {};
    if (column < p.head_size) {
      const i64 from = token * p.source_token_stride + head * p.source_head_stride + column;
      decode_vector(load_vector<Config::kSource, kVector>(static_cast<const char*>(p.source) +
                                                          from * size_of(Config::kSource)),
                    values);
      if (p.scale != nullptr) {
        const float scale = p.scale[0];
        const float inverse = __fdiv_rn(1.0f, scale);
        const bool divides = p.padded_head_size != p.head_size;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          values[i] = divides ? __fdiv_rn(values[i], scale) : scaled_by(values[i], inverse);
        }
      }
      saturated = count_saturated(values);
    }
    store_vector(p.codes + row * p.padded_head_size + column,
                 encode_vector<Element::kE4M3>(values));
  }
  add_saturated(saturated, p.num_saturated);
}

}  // namespace attn
