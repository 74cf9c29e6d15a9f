// Scores of one warp in the fragments of mma.sync: transform, mask, online softmax in base 2. Of a
// block a thread holds two rows (`half`) and of each of them two keys (i); which ones, says Place.
// Element s[m][n][2 * half + i] is row Place::row(half) of row block m and key Place::key(n, i).
//
// Online softmax: keys come tile by tile, and a row's state after each tile is
//   base   what no score so far exceeds by more than a slack (raise_base()),
//   sum    of 2^(s - base) over the keys so far,
//   o      of 2^(s - base) * v over the keys so far.
// When the base grows, sum and o are multiplied by 2^(old - new). At the end the output is o / sum
// and the LSE is base + log2(sum), whatever the base was.
#pragma once

#include "kernels/attention/rows.cuh"
#include "kernels/ptx/mma_sync.cuh"

namespace attn {

/// S = Q @ K^T: blocks of 16 rows and 8 keys. With g = lane / 4 and t = lane % 4 a thread has rows
/// g and g + 8, keys 2t and 2t + 1.
struct RowsByKeys {
  // Lanes of one row are those whose numbers differ in the bits from kFirstLane to kLastLane: a
  // butterfly of shuffles over those bits reduces a row.
  static constexpr int kFirstLane = 1;
  static constexpr int kLastLane = 2;
  __device__ __forceinline__ static int row(int half) {
    return half * 8 + static_cast<int>(threadIdx.x % 32 / 4);
  }
  __device__ __forceinline__ static int key(int n, int i) {
    return n * 8 + static_cast<int>(threadIdx.x % 4) * 2 + i;
  }
};
/// S^T = K @ Q^T: blocks of 16 keys and 8 rows. A thread has rows 2t and 2t + 1, keys g and g + 8.
struct KeysByRows {
  static constexpr int kFirstLane = 4;
  static constexpr int kLastLane = 16;
  __device__ __forceinline__ static int row(int half) {
    return static_cast<int>(threadIdx.x % 4) * 2 + half;
  }
  __device__ __forceinline__ static int key(int n, int i) {
    return n * 16 + i * 8 + static_cast<int>(threadIdx.x % 32 / 4);
  }
};

/// How raw dot products become exponents of 2.
struct ScoreScale {
  float factor;  // softmax_scale * k_scale * log2(e)
  float soft_cap;
  KeyPlaces keys;  // of global forms of ALiBi
};

/// Running softmax of a thread's rows: l = sum of 2^(x - base), this thread's columns only. Where
/// every value has a scale of its own, each row's output has a unit, so that 16 bits hold P times
/// the scales however large or small they are.
template <int kRowBlocks>
struct SoftmaxState {
  float base[kRowBlocks][2];
  float sum[kRowBlocks][2];
  float unit[kRowBlocks][2];     // of scale_weights()
  float inverse[kRowBlocks][2];  // 1 / unit, from the first raise_units() on
};

/// s -> exponents of 2: scale, soft cap, ALiBi in that order (semantics §3.1). Only where
/// Config::kScaleFirst; otherwise the factor is applied together with the exponential.
template <class Config, class Place, int kRowBlocks, int kKeyBlocks>
__device__ __forceinline__ void transform_scores(float (&s)[kRowBlocks][kKeyBlocks][4],
                                                 const Row* rows, int first_key,
                                                 const ScoreScale& scale) {
  if constexpr (Config::kSoftCap) {
    // c * tanh(y / c) = c - 2c / (1 + e^(2y / c)); tanh.approx has 11 good bits only. In log2
    // units: inner makes e^(2y / c) a power of two, outer is c * log2(e). Of a huge score the power
    // is infinite, its reciprocal 0 and the result c, as it must be; likewise 0 and -c.
    const float inner = 2.0f * scale.factor / scale.soft_cap;
    const float outer = scale.soft_cap * kLog2E;
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float grown = exp2_fast(s[m][n][i] * inner);
          s[m][n][i] = outer - 2.0f * outer * reciprocal_fast(1.0f + grown);
        }
      }
    }
  } else {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][n][i] *= scale.factor;
      }
    }
  }
  if constexpr (Config::kAlibi != Alibi::kNone) {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // The bias relative to the row's position: alibi_row_constant() has the rest of it.
        const Row& row = rows[m * 16 + Place::row(half)];
        const float slope = row.slope;
#pragma unroll
        for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int key = place_of_key(Config::kAlibi, scale.keys, first_key + Place::key(n, i));
            const auto distance = static_cast<float>(key - row.position);
            if constexpr (local_form(Config::kAlibi) == Alibi::kDistance) {
              s[m][n][half * 2 + i] -= slope * fabsf(distance);
            } else if constexpr (local_form(Config::kAlibi) == Alibi::kSqrt) {
              s[m][n][half * 2 + i] -= slope * sqrtf(fmaxf(-distance, 0.0f));
            } else {
              s[m][n][half * 2 + i] += slope * distance;
            }
          }
        }
      }
    }
  }
}

/// What belongs to keys that a row may not see becomes `masked`: of scores -inf. A select, so that
/// NaN cannot pass.
template <class Place, int kRowBlocks, int kKeyBlocks>
__device__ __forceinline__ void mask_keys(float (&s)[kRowBlocks][kKeyBlocks][4], const Row* rows,
                                          int first_key, float masked) {
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyInterval keys = rows[m * 16 + Place::row(half)].keys;
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = first_key + Place::key(n, i);
          const bool visible = key >= keys.begin && key < keys.end;
          s[m][n][half * 2 + i] = visible ? s[m][n][half * 2 + i] : masked;
        }
      }
    }
  }
}

/// Scales of the keys of a thread, for scale_columns(): f32 in a row of their own in shared memory,
/// one after another.
template <class Place>
struct RowOfScales {
  const float* first;
  __device__ __forceinline__ float2 of_block(int n) const {
    return make_float2(first[Place::key(n, 0)], first[Place::key(n, 1)]);
  }
};

/// Every score times the scale of its key.
template <class Scales, int kRowBlocks, int kKeyBlocks>
__device__ __forceinline__ void scale_columns(float (&s)[kRowBlocks][kKeyBlocks][4],
                                              const Scales& scales) {
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
    const float2 scale = scales.of_block(n);
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][n][i] *= i % 2 == 0 ? scale.x : scale.y;
    }
  }
}

/// Maximum and sum over the lanes that share a row; every one of them gets the result. Whole warps.
template <class Place>
__device__ __forceinline__ float max_of_row(float x) {
#pragma unroll
  for (int lanes = Place::kFirstLane; lanes <= Place::kLastLane; lanes *= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, lanes));
  }
  return x;
}
template <class Place>
__device__ __forceinline__ float sum_of_row(float x) {
#pragma unroll
  for (int lanes = Place::kFirstLane; lanes <= Place::kLastLane; lanes *= 2) {
    x += __shfl_xor_sync(0xFFFFFFFFu, x, lanes);
  }
  return x;
}

/// o *= factor for one of the rows of a thread: `half` of row block m.
template <int kRowBlocks, int kValueBlocks>
__device__ __forceinline__ void scale_output_row(float (&o)[kRowBlocks][kValueBlocks][4], int m,
                                                 int half, float factor) {
#pragma unroll
  for (int n = 0; n < kValueBlocks; ++n) {
    o[m][n][half * 2] *= factor;
    o[m][n][half * 2 + 1] *= factor;
  }
}

/// Units from here on have an inverse, as have those of no more than 2^126.
constexpr float kLeastValueUnit = 0x1p-126f;
constexpr u32 kMostValueUnitBits = 253u << 23;

/// Raises the units of rows that a weight of `most` (of this thread) has outgrown: the largest
/// power of two not above the row's largest weight becomes the unit, and the output so far is
/// brought to it. The vote is over the whole warp, because max_of_row() needs all lanes.
template <class Place, int kRowBlocks, int kValueBlocks>
__device__ __forceinline__ void raise_units(const float (&most)[kRowBlocks][2],
                                            SoftmaxState<kRowBlocks>& state,
                                            float (&o)[kRowBlocks][kValueBlocks][4]) {
  // Why a slack: f16 has room for it, and most tiles then leave the output as it is.
  constexpr float kSlack = 256.0f;
  bool outgrown = false;
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float unit = state.unit[m][half];
      outgrown |= most[m][half] > unit * kSlack || unit < kLeastValueUnit;
    }
  }
  if (!__any_sync(0xFFFFFFFFu, outgrown)) return;
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u32 bits = float_bits(max_of_row<Place>(most[m][half])) & 0x7F800000u;
      const float power = float_from_bits(bits < kMostValueUnitBits ? bits : kMostValueUnitBits);
      const float grown = fmaxf(power, kLeastValueUnit);
      if (!(grown > state.unit[m][half])) continue;
      state.inverse[m][half] = reciprocal_fast(grown);
      scale_output_row(o, m, half, state.unit[m][half] * state.inverse[m][half]);
      state.unit[m][half] = grown;
    }
  }
}

/// P times the scales of the values of its keys, in the units of the rows: p * v_scale / unit. Why
/// units: the products are rounded to f16 for P @ V, whose range ends at 65504 and 2^-24, while a
/// scale may be any f32. What is lost of a weight is less than 2^-24 of the largest one of its row.
/// kMasked: the scale of a key that a row may not see counts for nothing, whatever it is.
template <bool kMasked, class Place, class Scales, int kRowBlocks, int kKeyBlocks, int kValueBlocks>
__device__ __forceinline__ void scale_weights(float (&p)[kRowBlocks][kKeyBlocks][4],
                                              const Row* rows, int first_key, const Scales& scales,
                                              SoftmaxState<kRowBlocks>& state,
                                              float (&o)[kRowBlocks][kValueBlocks][4]) {
  scale_columns(p, scales);
  // Why after the product: 0 times infinity is NaN.
  if constexpr (kMasked) mask_keys<Place>(p, rows, first_key, 0.0f);
  float most[kRowBlocks][2] = {};
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) most[m][i / 2] = fmaxf(most[m][i / 2], fabsf(p[m][n][i]));
    }
  }
  raise_units<Place>(most, state, o);
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
        p[m][n][half * 2] *= state.inverse[m][half];
        p[m][n][half * 2 + 1] *= state.inverse[m][half];
      }
    }
  }
}

/// Output in its units -> output: once, after the last tile.
template <int kRowBlocks, int kValueBlocks>
__device__ __forceinline__ void apply_units(const SoftmaxState<kRowBlocks>& state,
                                            float (&o)[kRowBlocks][kValueBlocks][4]) {
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scale_output_row(o, m, half, state.unit[m][half]);
    }
  }
}

/// Raises the base of rows whose maximum has outgrown it, and rescales what was accumulated: the
/// output or, where it has units (kUnits), those. `most` is the maximum of this thread's columns.
/// Why only past a slack of 2^8: weights up to 256 lose nothing in f32 sums and 16-bit P, and most
/// tiles then neither touch the accumulators nor need the maximum of whole rows, which takes
/// shuffles. A row's first visible key always raises its base, from -inf; the factor is then 2^-inf
/// = 0, and sum and output were 0.
template <bool kUnits, class Place, int kRowBlocks, int kValueBlocks>
__device__ __forceinline__ void raise_base(const float (&most)[kRowBlocks][2],
                                           SoftmaxState<kRowBlocks>& state,
                                           float (&o)[kRowBlocks][kValueBlocks][4]) {
  constexpr float kSlack = 8.0f;
  bool outgrown = false;
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      outgrown |= most[m][half] > state.base[m][half] + kSlack;
    }
  }
  if (!__any_sync(0xFFFFFFFFu, outgrown)) return;
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float row_max = max_of_row<Place>(most[m][half]);
      if (!(row_max > state.base[m][half]))
        continue;  // another row of the warp has outgrown its own
      const float factor = exp2_fast(state.base[m][half] - row_max);
      state.base[m][half] = row_max;
      state.sum[m][half] *= factor;
      if constexpr (kUnits) {
        state.unit[m][half] *= factor;
        state.inverse[m][half] = reciprocal_fast(state.unit[m][half]);
      } else {
        scale_output_row(o, m, half, factor);
      }
    }
  }
}

/// One factor for the scores of all rows, for fold_scores().
struct SameFactor {
  float factor;
  __device__ __forceinline__ float of(int, int) const { return factor; }
};
/// A factor for every row of a thread.
template <int kRowBlocks>
struct RowFactors {
  float factors[kRowBlocks][2];
  __device__ __forceinline__ float of(int m, int half) const { return factors[m][half]; }
};

/// s -> P = 2^(s * factor - base), row sums grow. Factors are 1 where scores are scaled already;
/// else factors are > 0, so that the largest raw score is the largest score, and scaling costs
/// nothing beyond the fused operation in the exponent. Masked scores are -inf and give P = 0.
template <bool kUnits, class Place, class Factors, int kRowBlocks, int kKeyBlocks, int kValueBlocks>
__device__ __forceinline__ void fold_scores(float (&s)[kRowBlocks][kKeyBlocks][4],
                                            const Factors& factors, SoftmaxState<kRowBlocks>& state,
                                            float (&o)[kRowBlocks][kValueBlocks][4]) {
  float most[kRowBlocks][2];
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[m][half] = s[m][0][half * 2];
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
        // NaN is passed over here and shows in P.
        most[m][half] = fmaxf(most[m][half], fmaxf(s[m][n][half * 2], s[m][n][half * 2 + 1]));
      }
      most[m][half] *= factors.of(m, half);
    }
  }
  raise_base<kUnits, Place>(most, state, o);
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Why: a row that has seen no key has base -inf, and (-inf) - (-inf) is NaN.
      const float base = state.base[m][half] == kNegInf ? 0.0f : state.base[m][half];
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float p = exp2_fast(fmaf(s[m][n][half * 2 + i], factors.of(m, half), -base));
          s[m][n][half * 2 + i] = p;
          sum += p;
        }
      }
      state.sum[m][half] += sum;
    }
  }
}

/// A row that has seen nothing.
template <int kRowBlocks>
__device__ __forceinline__ void reset_state(SoftmaxState<kRowBlocks>& state) {
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state.base[m][half] = kNegInf;
      state.sum[m][half] = 0.0f;
      state.unit[m][half] = state.inverse[m][half] = 0.0f;
    }
  }
}

/// 2^(base - to). Equal infinities (a row that saw nothing, a sink of +inf) differ by NaN.
__device__ __forceinline__ float weight_of_base(float base, float to) {
  return base == to ? 1.0f : exp2_fast(base - to);
}

/// m + ln l of a row in natural units; -inf for a row that saw nothing.
template <class Config>
__device__ __forceinline__ float row_lse(float base, float sum, const Row& row, int context_len) {
  if (sum == 0.0f) return kNegInf;
  return (base + log2_fast(sum)) * kLn2 + alibi_row_constant(Config::kAlibi, row, context_len);
}

}  // namespace attn
