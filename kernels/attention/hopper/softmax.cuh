// Online softmax of 16 rows by one warp while the product of the tile before is under way: as in
// attention/softmax.cuh, but the factors for what was accumulated are kept until it may be touched.
#pragma once

#include "kernels/attention/softmax.cuh"

namespace attn {

/// Factors of a thread's two rows of the output, due when the product under way has ended.
struct DueRescale {
  bool any;  // in this warp; otherwise the factors are 1
  float factor[2];
};

/// The largest score of each of a thread's two rows. NaN is passed over here and shows in P.
template <int kKeyBlocks>
__device__ __forceinline__ void largest_scores(const float (&s)[kKeyBlocks][4], float (&most)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Two chains, so that neighbouring instructions need not wait for one another.
    float even = s[0][half * 2];
    float odd = s[0][half * 2 + 1];
#pragma unroll
    for (int n = 1; n < kKeyBlocks; ++n) {
      even = fmaxf(even, s[n][half * 2]);
      odd = fmaxf(odd, s[n][half * 2 + 1]);
    }
    most[half] = fmaxf(even, odd);
  }
}

/// At least the largest score of each of a thread's two rows: that one, or 0 where all are
/// negative. Why: bits of positive numbers are in the order of the numbers, and the largest of
/// three integers is one instruction, that of three numbers two. NaN counts as more than infinity,
/// which is as well: the row is lost.
template <int kKeyBlocks>
__device__ __forceinline__ void bound_scores(const float (&s)[kKeyBlocks][4], float (&most)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int bits[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
      bits[n % 2] = larger(larger(bits[n % 2], static_cast<int>(float_bits(s[n][half * 2]))),
                           static_cast<int>(float_bits(s[n][half * 2 + 1])));
    }
    most[half] = float_from_bits(static_cast<u32>(larger(bits[0], bits[1])));
  }
}

template <bool kBounds, int kKeyBlocks>
__device__ __forceinline__ void most_scores(const float (&s)[kKeyBlocks][4], float (&most)[2]) {
  if constexpr (kBounds) {
    bound_scores(s, most);
  } else {
    largest_scores(s, most);
  }
}

/// Raises the base of rows whose maximum has outgrown it. Why only past a slack of 2^8: see
/// raise_base(). The vote costs one instruction a tile; shuffles follow only where it says yes.
/// `most` may be more than the maximum if find_most(most) makes the maximum of it.
/// kCodes: weights become e4m3, so the base is set 8 below the maximum, which makes the largest one
/// kE4M3ProbabilityShift, and may be outgrown by 2^0.75 only: 2^8.75 is 431, and 448 is all there
/// is.
template <bool kCodes, class FindMost>
__device__ __forceinline__ DueRescale raise_bases(float (&most)[2], SoftmaxState<1>& state,
                                                  const FindMost& find_most) {
  constexpr float kRoom = kCodes ? 8.0f : 0.0f;
  constexpr float kSlack = kCodes ? 8.75f : 8.0f;
  static_assert(!kCodes || kE4M3ProbabilityShift == 256.0f);
  DueRescale due{false, {1.0f, 1.0f}};
  const bool outgrown = most[0] > state.base[0][0] + kSlack || most[1] > state.base[0][1] + kSlack;
  due.any = __any_sync(0xFFFFFFFFu, outgrown) != 0;
  if (!due.any) return due;
  find_most(most);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float base = max_of_row<RowsByKeys>(most[half]) - kRoom;
    if (!(base > state.base[0][half])) continue;
    due.factor[half] = exp2_fast(state.base[0][half] - base);
    state.base[0][half] = base;
    state.sum[0][half] *= due.factor[half];
  }
  return due;
}

/// The factor of a thread's rows, one for both or one for each.
__device__ __forceinline__ float factor_of(float factor, int) { return factor; }
__device__ __forceinline__ float factor_of(const float (&factors)[2], int half) {
  return factors[half];
}

/// s -> P = 2^(s * factor - base), row sums grow; `factor` is > 0, or 1 where scores are scaled
/// already. Masked scores are -inf and give P = 0.
/// kBounds: by bound_scores(), which is exact where a base may rise. Before pair `i` of the `all`
/// that a thread has between(i, all, a sum of the last ones) is called.
template <bool kCodes, bool kBounds, class Factor, int kKeyBlocks, class Between>
__device__ __forceinline__ DueRescale weigh_scores(float (&s)[kKeyBlocks][4], const Factor& factor,
                                                   SoftmaxState<1>& state, const Between& between) {
  float most[2];
  most_scores<kBounds>(s, most);
  most[0] *= factor_of(factor, 0);
  most[1] *= factor_of(factor, 1);
  const DueRescale due = raise_bases<kCodes>(most, state, [&](float(&exact)[2]) {
    if constexpr (kBounds) {
      largest_scores(s, exact);
      exact[0] *= factor_of(factor, 0);
      exact[1] *= factor_of(factor, 1);
    }
  });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Why: a row that has seen no key has base -inf, and (-inf) - (-inf) is NaN.
    const float base = state.base[0][half] == kNegInf ? 0.0f : state.base[0][half];
    const float row_factor = factor_of(factor, half);
    float even = 0.0f;
    float odd = 0.0f;
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
      between(half * kKeyBlocks + n, 2 * kKeyBlocks, even);
      s[n][half * 2] = exp2_fast(fmaf(s[n][half * 2], row_factor, -base));
      s[n][half * 2 + 1] = exp2_fast(fmaf(s[n][half * 2 + 1], row_factor, -base));
      even += s[n][half * 2];
      odd += s[n][half * 2 + 1];
    }
    state.sum[0][half] += even + odd;
  }
  return due;
}

/// s -> P = 2^s, row sums grow.
template <int kKeyBlocks>
__device__ __forceinline__ void weigh_exponents(float (&s)[kKeyBlocks][4], SoftmaxState<1>& state) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float even = 0.0f;
    float odd = 0.0f;
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
      s[n][half * 2] = exp2_fast(s[n][half * 2]);
      s[n][half * 2 + 1] = exp2_fast(s[n][half * 2 + 1]);
      even += s[n][half * 2];
      odd += s[n][half * 2 + 1];
    }
    state.sum[0][half] += even + odd;
  }
}

/// ALiBi of a thread's two rows in a tile: slope times a key's distance from the thread's first
/// one, or of products from the tile's last one, and what that one itself has. Apart, as the second
/// part is added together with the base.
struct KeyBias {
  float slope[2];
  float start[2];
};

/// s -> s * factor + bias, less bias.start.
template <int kKeyBlocks>
__device__ __forceinline__ void add_slopes(float (&s)[kKeyBlocks][4], float factor,
                                           const KeyBias& bias) {
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto distance = static_cast<float>(8 * n + i % 2);
      s[n][i] = fmaf(s[n][i], factor, bias.slope[i / 2] * distance);
    }
  }
}

/// s -> P = 2^(s * factor + start - base), row sums grow; `factor` is > 0, `start` of a thread's
/// rows.
template <bool kBounds, int kKeyBlocks>
__device__ __forceinline__ DueRescale weigh_from(float (&s)[kKeyBlocks][4], float factor,
                                                 const float (&start)[2], SoftmaxState<1>& state) {
  float most[2];
  most_scores<kBounds>(s, most);
  most[0] = fmaf(most[0], factor, start[0]);
  most[1] = fmaf(most[1], factor, start[1]);
  const DueRescale due = raise_bases<false>(most, state, [&](float(&exact)[2]) {
    if constexpr (kBounds) {
      largest_scores(s, exact);
      exact[0] = fmaf(exact[0], factor, start[0]);
      exact[1] = fmaf(exact[1], factor, start[1]);
    }
  });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float base = state.base[0][half] == kNegInf ? 0.0f : state.base[0][half];
    const float from = start[half] - base;
    float even = 0.0f;
    float odd = 0.0f;
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
      s[n][half * 2] = exp2_fast(fmaf(s[n][half * 2], factor, from));
      s[n][half * 2 + 1] = exp2_fast(fmaf(s[n][half * 2 + 1], factor, from));
      even += s[n][half * 2];
      odd += s[n][half * 2 + 1];
    }
    state.sum[0][half] += even + odd;
  }
  return due;
}

/// How many of a thread's keys, the first two of every eight, come before key `end`.
__device__ __forceinline__ int pairs_before(int end) {
  const int most = larger(end, 0);
  return most / 8 * 2 + smaller(most % 8, 2);
}
/// `count` ones of kBits bits, from the lowest on; all of them for more, none for less than 0.
template <int kBits>
__device__ __forceinline__ u32 low_bits(int count) {
  if constexpr (kBits < 32) {
    return (1u << smaller(larger(count, 0), kBits)) - 1u;
  } else {
    return count >= 32 ? 0xFFFFFFFFu : (1u << larger(count, 0)) - 1u;
  }
}

/// Scores of keys that a row may not see become `masked`: key block n of the tile starts with key
/// first_key + 8 n. A select, so that NaN cannot pass. kLeft: rows may not see the first keys
/// either. kByBits: by bits, which become predicates seven at a time, instead of a comparison for
/// each score; it takes more registers.
template <bool kLeft, bool kByBits, int kKeyBlocks>
__device__ __forceinline__ void mask_scores(float (&s)[kKeyBlocks][4], const Row* rows,
                                            int first_key, float masked = kNegInf) {
  constexpr int kBlocksOfWord = 16;  // two keys each
  const int at = first_key + RowsByKeys::key(0, 0);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const KeyInterval keys = rows[RowsByKeys::row(half)].keys;
    const KeyInterval mine = {keys.begin - at, keys.end - at};
    const KeyInterval pairs = {pairs_before(mine.begin), pairs_before(mine.end)};
    u32 visible = 0;
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
      if (kByBits && n % kBlocksOfWord == 0) {
        constexpr int kBits = 2 * (kKeyBlocks < kBlocksOfWord ? kKeyBlocks : kBlocksOfWord);
        visible = low_bits<kBits>(pairs.end - 2 * n);
        if constexpr (kLeft) visible &= ~low_bits<kBits>(pairs.begin - 2 * n);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = 8 * n + i;
        const bool is_seen = kByBits ? (visible >> (2 * n + i) % 32 & 1u) != 0
                                     : key < mine.end && (!kLeft || key >= mine.begin);
        float& score = s[n][half * 2 + i];
        score = is_seen ? score : masked;
      }
    }
  }
}

}  // namespace attn
