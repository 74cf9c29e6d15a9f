// exp for the softmax: a plain function that compilers turn into vector code inside loops, which
// they cannot do with std::exp. It splits x = n ln 2 + r, |r| <= ln(2) / 2, takes a polynomial for
// e^r and puts n into the exponent. Whoever changes a term changes the last bits of every result of
// the CPU backends.
#pragma once

#include "kernels/common/numeric.cuh"

namespace attnbench::cpu {

/// a * b + c, in one rounding where the machine has the instruction.
inline float mul_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// e^x for x <= 0, to 2 ulp; exactly 0 below -87.3 (and for -inf), NaN for NaN.
inline float exp_nonpositive(float x) {
  constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: leaves round(x) in the low bits
  constexpr float kLn2High = 0.693145751953125f;  // few bits, so that n * kLn2High is exact
  constexpr float kLn2Low = 1.428606765330187e-06f;
  const float shifted = mul_add(x, 1.44269504088896341f, kRoundToInteger);
  const float n = shifted - kRoundToInteger;
  const float r = mul_add(n, -kLn2Low, mul_add(n, -kLn2High, x));
  // Taylor series: |r| <= ln(2) / 2, the first term left out is below 2^-26.
  float p = mul_add(r, 1.0f / 5040.0f, 1.0f / 720.0f);
  p = mul_add(p, r, 1.0f / 120.0f);
  p = mul_add(p, r, 1.0f / 24.0f);
  p = mul_add(p, r, 1.0f / 6.0f);
  p = mul_add(p, r, 0.5f);
  p = mul_add(p, r, 1.0f);
  p = mul_add(p, r, 1.0f);
  const float power = attn::float_from_bits((attn::float_bits(shifted) + 127u) << 23);
  return x < -87.3f ? 0.0f : p * power;
}

}  // namespace attnbench::cpu
