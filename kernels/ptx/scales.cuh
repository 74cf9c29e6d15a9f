// What quantisation shares that goes by scales, in the registers of threads: products with the
// reciprocal of one, in which zero stays zero (semantics §9.2, §9.4), and the scale of a group of
// columns in e4m3 (§9.3), whose largest magnitude becomes 448, the largest e4m3 number.
#pragma once

#include "kernels/common/numeric.cuh"
#include "kernels/params_quant.h"

namespace attn {

/// x * factor, where zero stays zero: the reciprocal of a scale below 2^-128 is infinite.
__device__ __forceinline__ float scaled_by(float x, float factor) {
  return x == 0.0f ? x : __fmul_rn(x, factor);
}
/// values * factor under the rule of scaled_by().
template <int kCount>
__device__ __forceinline__ void scale_by(float (&values)[kCount], float factor) {
  // Why one condition outside: inside the loop it becomes a branch for every value.
  if (factor < float_from_bits(0x7F800000u)) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = __fmul_rn(values[i], factor);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = scaled_by(values[i], factor);
  }
}

/// max(scale, 1e-10) rounded up to a power of two; infinity stays.
__device__ __forceinline__ float round_up_to_power_of_two(float scale) {
  // Why: adding the largest mantissa carries into the exponent unless the mantissa is 0.
  return float_from_bits((float_bits(fmaxf(scale, 1e-10f)) + 0x7FFFFFu) & 0x7F800000u);
}

/// The scale of a group, of which each of kLanes neighbouring lanes has kGroupPiece numbers. All
/// lanes of the warp must call this.
template <int kLanes>
__device__ __forceinline__ float group_scale(const float (&values)[kGroupPiece], bool is_ue8m0) {
  float largest = 1e-10f;
#pragma unroll
  for (int i = 0; i < kGroupPiece; ++i) largest = fmaxf(largest, fabsf(values[i]));
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
  }
  const float scale = __fdiv_rn(largest, 448.0f);
  return is_ue8m0 ? round_up_to_power_of_two(scale) : scale;
}

}  // namespace attn
