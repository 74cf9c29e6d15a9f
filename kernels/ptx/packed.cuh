// Two 16-bit numbers in a register, their conversions, and fast f32 functions. The functions are
// one instruction each; those of the CUDA headers with full precision add range checks and
// corrections that attention, whose weights are rounded to 16 bits, does not need.
#pragma once

#include "kernels/common/numeric.cuh"
#include "kernels/params.h"

namespace attn {

/// 2^x to 2 ulp; 0 for -inf. Softmax works in base 2 because this is what the hardware has: e^x
/// costs another multiplication for every score. Results below 2^-126 become 0 (ftz).
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// log2(x), off by at most 2^-22: absolutely for x from 0.5 to 2, else relatively; -inf for 0.
__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// 1 / x to 1 ulp; subnormal operands count as 0, so their inverse is infinite.
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The lesser of two numbers; NaN where one is.
__device__ __forceinline__ float least_or_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
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

/// `seen` with 0 times each half of `packed` added to it: a half of it becomes NaN, and stays so,
/// once a NaN or an infinity has gone into it. Starts from 0; one instruction for two numbers.
template <Element kElement>
__device__ __forceinline__ u32 mark_nonfinite(u32 packed, u32 seen) {
  u32 marked;
  if constexpr (kElement == Element::kBF16) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(marked) : "r"(packed), "r"(0u), "r"(seen));
  } else {
    static_assert(kElement == Element::kF16);
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(marked) : "r"(packed), "r"(0u), "r"(seen));
  }
  return marked;
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
