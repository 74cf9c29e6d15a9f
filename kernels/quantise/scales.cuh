// Largest elements of tensors and the scales made of them, without a way over the host (semantics
// §5.4, §10.6).
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/params_mm.h"
#include "kernels/params_scale.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

constexpr float kAmaxNan = __builtin_bit_cast(float, 0x7FFFFFFFu);

/// The larger one, or NaN if either is: a maximum in any order gives the same.
__device__ __forceinline__ float nan_max(float running, float value) {
  return (value != value) | (value > running) ? value : running;
}

/// *running = nan_max(*running, value) by all threads of a grid.
__device__ __forceinline__ void atomic_nan_max(float* running, float value) {
  // As integers, floats >= 0 ascend and negative ones descend; this NaN is above all of them.
  const float ordered = value != value ? kAmaxNan : value + 0.0f;  // -0 becomes 0
  if (float_bits(ordered) >> 31 == 0u) {
    atomicMax(reinterpret_cast<int*>(running), static_cast<int>(float_bits(ordered)));
  } else {
    atomicMin(reinterpret_cast<unsigned*>(running), float_bits(ordered));
  }
}

/// Config: int kThreads. Grid: 1.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    start_amax(const __grid_constant__ AmaxParams p) {
  if (threadIdx.x != 0) return;
  const bool is_empty = p.num_tokens * p.num_heads * p.head_size == 0;
  *p.amax = p.is_signed != 0 && !is_empty ? float_from_bits(0xFF800000u) : 0.0f;
}

/// Config: Element kElement; int kVector (elements of a load), kItems (loads of a thread),
/// kThreads. Grid: cdiv(T * H * D / kVector, kThreads * kItems).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) amax(const __grid_constant__ AmaxParams p) {
  constexpr int kVector = Config::kVector;
  const int row_vectors = p.head_size / kVector;
  const i64 num_vectors = p.num_tokens * p.num_heads * row_vectors;
  const i64 first = static_cast<i64>(blockIdx.x) * (Config::kThreads * Config::kItems);
  float largest = p.is_signed != 0 ? float_from_bits(0xFF800000u) : 0.0f;
#pragma unroll
  for (int item = 0; item < Config::kItems; ++item) {
    const i64 index = first + item * Config::kThreads + threadIdx.x;
    if (index >= num_vectors) break;
    const i64 row = quotient(index, row_vectors);
    const i64 token = quotient(row, p.num_heads);
    const i64 at = token * p.token_stride + (row - token * p.num_heads) * p.head_stride +
                   (index - row * row_vectors) * kVector;
    float values[kVector];
    decode_vector(load_vector<Config::kElement, kVector>(static_cast<const char*>(p.source) +
                                                         at * size_of(Config::kElement)),
                  values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      largest = nan_max(largest, p.is_signed != 0 ? values[i] : fabsf(values[i]));
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    largest = nan_max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
  }
  if (threadIdx.x % 32 == 0 && first < num_vectors) atomic_nan_max(p.amax, largest);
}

/// One thread a tensor. Config: int kThreads. Grid: cdiv(num_tensors, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    update_amax_history(const __grid_constant__ AmaxHistoryParams p) {
  const i64 tensor = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
  if (tensor >= p.num_tensors) return;
  float* const ring = p.history + tensor * kAmaxHistoryLength;
  ring[p.position] = p.amax[tensor];
  float largest = 1.17549435e-38f;  // 2^-126, the least normal float
#pragma unroll
  for (int k = 0; k < kAmaxHistoryLength; ++k) largest = nan_max(largest, ring[k]);
  p.scale[tensor] = __fdiv_rn(largest, 448.0f);
}

/// Config: int kThreads. Grid: 1.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    calc_kv_scales(const __grid_constant__ KvScaleParams p) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= 3) return;
  const float scale = __fdiv_rn(p.amax[i], p.range[i]);
  p.scale[i] = scale == 0.0f ? 1.0f : scale;
}

}  // namespace attn
