// Two 16-bit numbers in a register, their conversions, and fast f32 functions.
#pragma once

#include "kernels/common/numeric.cuh"
#include "kernels/params.h"

namespace attn {

/// 2^x to 2 ulp; 0 for -inf.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// `low` in the low half, both rounded to nearest even.
template <Element kElement>
__device__ __forceinline__ u32 pack(float low, float high) {
  u32 packed;
  if constexpr (kElement == Element::kBF16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    static_assert(kElement == Element::kF16);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

/// Each half of `packed` that is NaN or infinite, as a mask of ones.
template <Element kElement>
__device__ __forceinline__ u32 nonfinite_halves(u32 packed) {
  constexpr u32 kExponent = kElement == Element::kBF16 ? 0x7F80u : 0x7C00u;
  const u32 low = (packed & kExponent) == kExponent ? 0x0000FFFFu : 0u;
  const u32 high = (packed & (kExponent << 16)) == (kExponent << 16) ? 0xFFFF0000u : 0u;
  return low | high;
}

}  // namespace attn
