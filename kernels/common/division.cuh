// Quotients without the slow divisions of a GPU, which has no divide instruction: 32-bit unsigned
// quotients take some twenty instructions, 64-bit ones some hundred, and a correctly rounded f32
// quotient has a slow path that is a call.
#pragma once

#include "kernels/common/numeric.cuh"
#include "kernels/params.h"

namespace attn {

/// a / b of a >= 0 and b > 0.
ATTN_FN i64 quotient(i64 a, i64 b) {
  // Why two ways: indices of nearly all launches fit into 32 bits, and all threads of a warp then
  // take the cheap branch together.
  if (((a | b) >> 32) == 0) {
    return static_cast<unsigned>(a) / static_cast<unsigned>(b);
  }
  return a / b;
}

/// a * b + c, rounded once. The host's must be a fused operation too, or its codes would differ.
ATTN_FN float multiply_add(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

/// Whether quotient_by_reciprocal() may divide by it: whether its exponent keeps the products and
/// the remainder there within the range of f32.
ATTN_FN bool has_exact_reciprocal_step(float divisor) {
  const u32 bits = float_bits(divisor);
  const u32 exponent = bits >> 23;
  // 2^-60 to 2^60; the theorem holds for every significand but the one whose bits are all ones.
  return exponent >= 67u && exponent <= 187u && (bits & 0x7FFFFFu) != 0x7FFFFFu;
}

/// x / divisor, rounded to nearest even like the division where the quotient lies between 2^-30 and
/// 2^30; otherwise what fp8 codes cannot tell from it (zeros keep their sign): below that range
/// every quotient rounds to code 0, above it every one saturates. `reciprocal` is 1 / divisor,
/// rounded to nearest even. One division then serves all elements that share a scale.
ATTN_FN float quotient_by_reciprocal(float x, float divisor, float reciprocal) {
  const float guess = x * reciprocal;
  const float magnitude = float_from_bits(float_bits(guess) & 0x7FFFFFFFu);
  // Why: with the exact remainder one step gives the correctly rounded quotient (Markstein 1990).
  const float remainder = multiply_add(-guess, divisor, x);
  const float refined = multiply_add(remainder, reciprocal, guess);
  return magnitude >= 0x1p-30f && magnitude < 0x1p30f ? refined : guess;
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
/// values / divisor on the way to fp8 codes: rounded to nearest even, or what the codes cannot tell
/// from it. One branch serves all values of a thread. For the device only: g++ has no __fdiv_rn.
template <int kCount>
__device__ __forceinline__ void divide_for_codes(float (&values)[kCount], float divisor) {
  if (has_exact_reciprocal_step(divisor)) {
    const float reciprocal = __fdiv_rn(1.0f, divisor);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = quotient_by_reciprocal(values[i], divisor, reciprocal);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = __fdiv_rn(values[i], divisor);
  }
}
#endif

}  // namespace attn
