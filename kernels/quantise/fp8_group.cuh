// The scale of a group of columns in e4m3 (semantics §9.3): what the quantisation of outputs shares
// with the kernel that makes them. The largest magnitude becomes 448, the largest e4m3 number; a
// scale of zeros is not 0.
#pragma once

#include "kernels/common/numeric.cuh"
#include "kernels/params_quant.h"

namespace attn {

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
