// Soft caps of the Hopper prefill kernel: scores s become exponents of 2, c tanh(s scale / c)
// log2(e), less the softmax's base.
//
// Why not as in attention/softmax.cuh, e^(2y) and a reciprocal for every score: with the weight
// these are three instructions of the unit that does a sixteenth of what the others do, 0.19 clocks
// of a multiprocessor for a score, where its products of 128 columns take 0.125. Forms of
// it, HopperPlan::cap:
//   1  Four scores share a reciprocal, 2.25 such instructions a score: 1 / a = b c d / (a b c d).
//   2  A series where no score of the warp's tile is above 0.75 c, one such instruction; else 1.
//   3  A shorter series where no score is above 0.25 c, else 2.
//   4  3, with a reciprocal for each score in place of 1, whose products of four add up to an error
//      of 2.2e-5 at a cap of 50.
// The last step of either is a fused multiplication, which takes the base as well; so the base has
// to be there before, from the largest score as it comes out of the products: a cap keeps the order
// of scores.
// tanh.approx would be one more instead of all that; but it is off by up to 2^-11 of its result,
// 5e-4 for a score of 1, where 2e-5 is the limit of an LSE (docs/verdicts.md).
#pragma once

#include "kernels/attention/hopper/schedule.cuh"
#include "kernels/ptx/packed.cuh"

namespace attn {

/// Past 2^26, tanh is 1 in f32; and the product of four such powers is finite.
constexpr float kMostCapPower = 26.0f;

/// 1 + e^(2 s scale / c).
__device__ __forceinline__ float cap_denominator(float s, float inner) {
  return 1.0f + exp2_fast(least_or_nan(s * inner, kMostCapPower));
}
/// tanh(x) = 1 - 2 / (1 + e^2x).
__device__ __forceinline__ float cap_score(float s, const SoftCap& cap, float base = 0.0f) {
  return fmaf(cap.fall, reciprocal_fast(cap_denominator(s, cap.inner)), cap.outer - base);
}

/// The same of four scores of one row, with one reciprocal. NaN of one becomes that of all: so what
/// the row may not see has to be finite.
__device__ __forceinline__ void cap_four(float& s0, float& s1, float& s2, float& s3, float base,
                                         const SoftCap& cap) {
  const float a = cap_denominator(s0, cap.inner);
  const float b = cap_denominator(s1, cap.inner);
  const float c = cap_denominator(s2, cap.inner);
  const float d = cap_denominator(s3, cap.inner);
  const float ab = a * b;
  const float cd = c * d;
  const float shared = reciprocal_fast(ab * cd) * cap.fall;
  const float of_ab = shared * cd;
  const float of_cd = shared * ab;
  const float top = cap.outer - base;
  s0 = fmaf(of_ab, b, top);
  s1 = fmaf(of_ab, a, top);
  s2 = fmaf(of_cd, d, top);
  s3 = fmaf(of_cd, c, top);
}

template <int kKeyBlocks>
__device__ __forceinline__ void cap_by_fours(float (&s)[kKeyBlocks][4], const float (&base)[2],
                                             const SoftCap& cap) {
  static_assert(kKeyBlocks % 2 == 0);
#pragma unroll
  for (int n = 0; n < kKeyBlocks; n += 2) {
    cap_four(s[n][0], s[n][1], s[n + 1][0], s[n + 1][1], base[0], cap);
    cap_four(s[n][2], s[n][3], s[n + 1][2], s[n + 1][3], base[1], cap);
  }
}

template <int kKeyBlocks>
__device__ __forceinline__ void cap_each(float (&s)[kKeyBlocks][4], const float (&base)[2],
                                         const SoftCap& cap) {
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = cap_score(s[n][i], cap, base[i / 2]);
  }
}

template <int kTerms, int kKeyBlocks>
__device__ __forceinline__ void cap_by_series(float (&s)[kKeyBlocks][4], const float (&base)[2],
                                              const float (&series)[kTerms]) {
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float square = s[n][i] * s[n][i];
      float sum = series[kTerms - 1];
#pragma unroll
      for (int k = kTerms - 2; k >= 0; --k) sum = fmaf(sum, square, series[k]);
      s[n][i] = fmaf(s[n][i], sum, -base[i / 2]);
    }
  }
}

/// The largest magnitude of a thread's scores, by integers, three at a time (bound_scores()): as
/// numbers without a sign, bits of negative ones come behind all others, in the order of their
/// magnitudes. `most` is at least the largest of them. NaN counts as more than infinity.
template <int kKeyBlocks>
__device__ __forceinline__ float largest_magnitude(const float (&s)[kKeyBlocks][4], float most) {
  u32 bits[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u32 low = float_bits(s[n][half * 2]);
      const u32 high = float_bits(s[n][half * 2 + 1]);
      const u32 two = low > bits[half] ? low : bits[half];
      bits[half] = high > two ? high : two;
    }
  }
  const u32 all = bits[0] > bits[1] ? bits[0] : bits[1];
  return fmaxf(fabsf(float_from_bits(all)), most);
}

/// Whether `most` of every thread of the warp is at most `bound`.
__device__ __forceinline__ bool all_within(float most, float bound) {
  return __any_sync(0xFFFFFFFFu, most > bound) == 0;
}

/// s -> c tanh(s scale / c) log2(e) - base, of a thread's two rows; `most` is at least the largest
/// score.
template <int kForm, int kKeyBlocks>
__device__ __forceinline__ void cap_scores(float (&s)[kKeyBlocks][4], float most,
                                           const float (&base)[2], const SoftCap& cap) {
  if constexpr (kForm > 1) {
    const float magnitude = largest_magnitude(s, most);
    if constexpr (kForm > 2) {
      if (all_within(magnitude, cap.short_bound)) {
        cap_by_series(s, base, cap.short_series);
        return;
      }
    }
    if (all_within(magnitude, cap.bound)) {
      cap_by_series(s, base, cap.series);
      return;
    }
  }
  if constexpr (kForm > 3) {
    cap_each(s, base, cap);
  } else {
    cap_by_fours(s, base, cap);
  }
}

}  // namespace attn
