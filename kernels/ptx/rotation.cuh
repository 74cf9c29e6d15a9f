// The rotation of a head in registers (semantics §5.6): kLanes neighbouring threads of a warp hold
// kCount neighbouring columns each. Sums and differences only, in passes over columns 1, 2, 4, ...
// apart: inside of a thread first, then by shuffles, so that the bits are those of every other way
// to deal out the columns.
#pragma once

#include "kernels/common/packed_codes.cuh"
#include "kernels/params_rope.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// Columns [lane * kCount, (lane + 1) * kCount) of the head get their signs.
template <int kCount>
__device__ __forceinline__ void apply_rotation_signs(float (&values)[kCount], int lane) {
  static_assert(32 % kCount == 0);
  const u32 signs = rotation_signs_of(lane * kCount / 32) >> (lane * kCount % 32);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = float_from_bits(float_bits(values[i]) ^ (signs >> i & 1u) << 31);
  }
}

/// values = H values over the head. All 32 lanes of the warp must call it.
template <int kLanes, int kCount>
__device__ __forceinline__ void hadamard(float (&values)[kCount], int lane) {
#pragma unroll
  for (int apart = 1; apart < kCount; apart *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if ((i & apart) != 0) continue;
      const float lower = values[i];
      const float upper = values[i + apart];
      values[i] = lower + upper;
      values[i + apart] = lower - upper;
    }
  }
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, values[i], step);
      values[i] = (lane & step) != 0 ? other - values[i] : values[i] + other;
    }
  }
}

/// Values as they read back from an element.
template <Element kElement, int kCount>
__device__ __forceinline__ void round_values(float (&values)[kCount]) {
  if constexpr (kElement != Element::kF32) {
    const ElementVector<kElement, kCount> rounded = encode_vector<kElement>(values);
    decode_vector(rounded, values);
  }
}

}  // namespace attn
