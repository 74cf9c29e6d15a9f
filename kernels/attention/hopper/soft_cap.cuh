// Soft caps of the Hopper prefill kernel: scores s become exponents of 2, c tanh(s scale / c)
// log2(e), before they are masked.
//
// Why not as in attention/softmax.cuh, e^(2y) and a reciprocal for every score: with the weight
// these are three instructions of the unit that does a sixteenth of what the others do, 0.19 clocks
// of a multiprocessor for a score, where its products of 128 columns take 0.125. Forms of
// it, HopperPlan::cap:
//   1  Four scores share a reciprocal, 2.25 such instructions a score: 1 / a = b c d / (a b c d).
//   2  A series where no score of the warp's tile is above 0.75 c, one such instruction; else 1.
//   3  1, with one in four of the first exponentials by fused multiplications, 2 such instructions.
//   4  1, with two in four, 1.75.
//   5  A series as in 2, else 4.
//   6  A shorter series where no score is above 0.25 c, else 2.
// tanh.approx would be one more instead of all that; but it is off by up to 2^-11 of its result,
// 5e-4 for a score of 1, where 2e-5 is the limit of an LSE (docs/verdicts.md).
#pragma once

#include "kernels/attention/hopper/schedule.cuh"
#include "kernels/ptx/packed.cuh"

namespace attn {

/// Past 2^26, tanh is 1 in f32; and the product of four such powers is finite.
constexpr float kMostCapPower = 26.0f;

/// 1 + 2^z for z from -126 to 127 by fused multiplications, off by 7.5e-8 of the power.
__device__ __forceinline__ float one_plus_power(float z) {
  // What is added moves the integer next to z, and the bias of exponents, into the last bits.
  constexpr float kMagic = 12582912.0f + 127.0f;
  const float moved = z + kMagic;
  const float rest = z - (moved - kMagic);
  const float power = float_from_bits(float_bits(moved) << 23);
  float sum = fmaf(0.001327647217f, rest, 0.009675541331f);
  sum = fmaf(sum, rest, 0.05550713273f);
  sum = fmaf(sum, rest, 0.2402211972f);
  sum = fmaf(sum, rest, 0.6931469671f);
  sum = fmaf(sum, rest, 1.000000072f);
  return fmaf(sum, power, 1.0f);
}

/// 1 + e^(2 s scale / c).
template <bool kFused>
__device__ __forceinline__ float cap_denominator(float s, float inner) {
  const float z = least_or_nan(s * inner, kMostCapPower);
  if constexpr (kFused) return one_plus_power(most_or_nan(z, -126.0f));
  return 1.0f + exp2_fast(z);
}

/// tanh(x) = 1 - 2 / (1 + e^2x), four of one row with one reciprocal. NaN of one becomes that of
/// all: so what the row may not see has to be finite. kFused: of how many of them the exponential
/// is made of fused multiplications.
template <int kFused>
__device__ __forceinline__ void cap_four(float& s0, float& s1, float& s2, float& s3,
                                         const SoftCap& cap) {
  const float a = cap_denominator<false>(s0, cap.inner);
  const float b = cap_denominator<(kFused > 1)>(s1, cap.inner);
  const float c = cap_denominator<false>(s2, cap.inner);
  const float d = cap_denominator<(kFused > 0)>(s3, cap.inner);
  const float ab = a * b;
  const float cd = c * d;
  const float shared = reciprocal_fast(ab * cd) * cap.fall;
  const float of_ab = shared * cd;
  const float of_cd = shared * ab;
  s0 = fmaf(of_ab, b, cap.outer);
  s1 = fmaf(of_ab, a, cap.outer);
  s2 = fmaf(of_cd, d, cap.outer);
  s3 = fmaf(of_cd, c, cap.outer);
}

template <int kFused, int kKeyBlocks>
__device__ __forceinline__ void cap_by_fours(float (&s)[kKeyBlocks][4], const SoftCap& cap) {
  static_assert(kKeyBlocks % 2 == 0);
#pragma unroll
  for (int n = 0; n < kKeyBlocks; n += 2) {
    cap_four<kFused>(s[n][0], s[n][1], s[n + 1][0], s[n + 1][1], cap);
    cap_four<kFused>(s[n][2], s[n][3], s[n + 1][2], s[n + 1][3], cap);
  }
}

/// Of a thread's scores. NaN is passed over, as it stays NaN.
template <int kKeyBlocks>
__device__ __forceinline__ float largest_magnitude(const float (&s)[kKeyBlocks][4]) {
  float upper = 0.0f;
  float lower = 0.0f;
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
    upper = fmaxf(fmaxf(upper, fabsf(s[n][0])), fabsf(s[n][1]));
    lower = fmaxf(fmaxf(lower, fabsf(s[n][2])), fabsf(s[n][3]));
  }
  return fmaxf(upper, lower);
}

template <int kTerms, int kKeyBlocks>
__device__ __forceinline__ void cap_by_series(float (&s)[kKeyBlocks][4],
                                              const float (&series)[kTerms]) {
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float square = s[n][i] * s[n][i];
      float sum = series[kTerms - 1];
#pragma unroll
      for (int k = kTerms - 2; k >= 0; --k) sum = fmaf(sum, square, series[k]);
      s[n][i] *= sum;
    }
  }
}

/// Whether `most` of every thread of the warp is at most `bound`.
__device__ __forceinline__ bool all_within(float most, float bound) {
  return __any_sync(0xFFFFFFFFu, most > bound) == 0;
}

/// s -> c tanh(s scale / c) log2(e).
template <int kForm, int kKeyBlocks>
__device__ __forceinline__ void cap_scores(float (&s)[kKeyBlocks][4], const SoftCap& cap) {
  constexpr bool kSeries = kForm == 2 || kForm == 5 || kForm == 6;
  constexpr int kFused = kForm == 5 ? 2 : (kForm == 3 || kForm == 4 ? kForm - 2 : 0);
  if constexpr (kSeries) {
    const float most = largest_magnitude(s);
    if constexpr (kForm == 6) {
      if (all_within(most, cap.short_bound)) {
        cap_by_series(s, cap.short_series);
        return;
      }
    }
    if (all_within(most, cap.bound)) {
      cap_by_series(s, cap.series);
      return;
    }
  }
  cap_by_fours<kFused>(s, cap);
}

}  // namespace attn
