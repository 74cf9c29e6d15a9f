// Scores of one warp in the fragments of mma.sync: transform, mask, online softmax in base 2.
// A thread holds, per block of 16 rows, two rows (g = lane / 4 and g + 8) and of each block of 8
// keys two columns (2t and 2t + 1, t = lane % 4).
#pragma once

#include "kernels/attention/rows.cuh"
#include "kernels/ptx/mma_sync.cuh"

namespace attn {

/// How raw dot products become exponents of 2.
struct ScoreScale {
  float factor;  // softmax_scale * k_scale * log2(e)
  float soft_cap;
};

/// Running softmax of a thread's rows: l = sum of 2^(x - base), this thread's columns only.
template <int kRowBlocks>
struct SoftmaxState {
  float base[kRowBlocks][2];
  float sum[kRowBlocks][2];
};

/// s -> exponents of 2: scale, soft cap, ALiBi in that order (semantics §3.1). Only where
/// Config::kScaleFirst; otherwise the factor is applied together with the exponential.
template <class Config, int kRowBlocks, int kKeyBlocks>
__device__ __forceinline__ void transform_scores(float (&s)[kRowBlocks][kKeyBlocks][4],
                                                 const Row* rows, int first_key,
                                                 const ScoreScale& scale) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (Config::kSoftCap) {
    // c * tanh(y / c) = c - 2c / (1 + e^(2y / c)); tanh.approx has 11 good bits only.
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
        const Row& row = rows[m * 16 + half * 8 + lane / 4];
        const int ahead = first_key + lane % 4 * 2 - row.position;
        const float slope = row.slope;
#pragma unroll
        for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const auto distance = static_cast<float>(ahead + n * 8 + i);
            if constexpr (Config::kAlibi == Alibi::kDistance) {
              s[m][n][half * 2 + i] -= slope * fabsf(distance);
            } else if constexpr (Config::kAlibi == Alibi::kSqrt) {
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

/// Scores of keys that a row may not see become -inf; a select, so that NaN cannot pass.
template <int kRowBlocks, int kKeyBlocks>
__device__ __forceinline__ void mask_scores(float (&s)[kRowBlocks][kKeyBlocks][4], const Row* rows,
                                            int first_key) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyInterval keys = rows[m * 16 + half * 8 + lane / 4].keys;
      const int first = first_key + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = first + n * 8 + i;
          const bool visible = key >= keys.begin && key < keys.end;
          s[m][n][half * 2 + i] = visible ? s[m][n][half * 2 + i] : kNegInf;
        }
      }
    }
  }
}

/// Scales of the columns of a thread, for scale_columns(): in a row of their own in shared memory.
struct RowOfScales {
  const float* first;
  __device__ __forceinline__ float2 of_block(int n) const {
    return *reinterpret_cast<const float2*>(first + n * 8 + threadIdx.x % 4 * 2);
  }
};

/// Every column times the scale of its key.
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

__device__ __forceinline__ float max_of_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
__device__ __forceinline__ float sum_of_quad(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

template <int kRowBlocks, int kValueBlocks>
__device__ __forceinline__ void scale_output(float (&o)[kRowBlocks][kValueBlocks][4],
                                             float factor) {
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kValueBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[m][n][i] *= factor;
    }
  }
}

/// Powers of two between which the unit of scale_weights() lies: both have an inverse.
constexpr float kLeastValueUnit = 0x1p-126f;
constexpr u32 kMostValueUnitBits = 253u << 23;
__device__ __forceinline__ float inverse_of_unit(float unit) {
  return float_from_bits((254u << 23) - float_bits(unit));
}

/// P times the scales of the values of its keys, in units of a power of two: the largest scale so
/// far, so that f16 holds P however large or small the scales are; the output is in the same unit.
/// What is lost is less than 2^-24 of the largest value. `masked`: a weight of 0 stays 0 whatever
/// the scale of a key that nobody may see.
template <bool kMasked, class Scales, int kRowBlocks, int kKeyBlocks, int kValueBlocks>
__device__ __forceinline__ void scale_weights(float (&p)[kRowBlocks][kKeyBlocks][4],
                                              const Scales& scales, float& unit,
                                              float (&o)[kRowBlocks][kValueBlocks][4]) {
  float2 of[kKeyBlocks];
  float most = 0.0f;
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
    of[n] = scales.of_block(n);
    most = fmaxf(most, fmaxf(fabsf(of[n].x), fabsf(of[n].y)));
  }
  most = max_of_quad(most);  // the same in all quads
  constexpr u32 kExponent = 0x7F800000u;
  const u32 bits = float_bits(most) & kExponent;
  const float grown = float_from_bits(bits < kMostValueUnitBits ? bits : kMostValueUnitBits);
  if (grown > unit) {
    scale_output(o, unit * inverse_of_unit(grown));
    unit = grown;
  }
  const float inverse = inverse_of_unit(unit);
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
    const float2 scale = make_float2(of[n].x * inverse, of[n].y * inverse);
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float factor = i % 2 == 0 ? scale.x : scale.y;
        if constexpr (kMasked) {
          p[m][n][i] = p[m][n][i] == 0.0f ? 0.0f : p[m][n][i] * factor;
        } else {
          p[m][n][i] *= factor;
        }
      }
    }
  }
}

/// Raises the base of rows whose maximum has outgrown it, and rescales what was accumulated.
/// Why only past a slack of 2^8: weights up to 256 lose nothing in f32 sums and 16-bit P, and most
/// tiles then leave the accumulators alone.
template <int kRowBlocks, int kValueBlocks>
__device__ __forceinline__ void raise_base(const float (&tile_max)[kRowBlocks][2],
                                           SoftmaxState<kRowBlocks>& state,
                                           float (&o)[kRowBlocks][kValueBlocks][4]) {
  constexpr float kSlack = 8.0f;
  bool outgrown = false;
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      outgrown |= tile_max[m][half] > state.base[m][half] + kSlack;
    }
  }
  if (!__any_sync(0xFFFFFFFFu, outgrown)) return;
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!(tile_max[m][half] > state.base[m][half])) continue;
      const float factor = exp2_fast(state.base[m][half] - tile_max[m][half]);
      state.base[m][half] = tile_max[m][half];
      state.sum[m][half] *= factor;
#pragma unroll
      for (int n = 0; n < kValueBlocks; ++n) {
        o[m][n][half * 2] *= factor;
        o[m][n][half * 2 + 1] *= factor;
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

/// s -> P = 2^(s * factor - base), row sums grow. Factors are 1 where scores are scaled already.
template <class Factors, int kRowBlocks, int kKeyBlocks, int kValueBlocks>
__device__ __forceinline__ void fold_scores(float (&s)[kRowBlocks][kKeyBlocks][4],
                                            const Factors& factors, SoftmaxState<kRowBlocks>& state,
                                            float (&o)[kRowBlocks][kValueBlocks][4]) {
  float tile_max[kRowBlocks][2];
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = s[m][0][half * 2];
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
        // NaN is passed over here and shows in P.
        most = fmaxf(most, fmaxf(s[m][n][half * 2], s[m][n][half * 2 + 1]));
      }
      tile_max[m][half] = max_of_quad(most) * factors.of(m, half);
    }
  }
  raise_base(tile_max, state, o);
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

/// The start of every row: the sink is a key with a score and no value (semantics §3.5).
template <class Config, int kRowBlocks>
__device__ __forceinline__ void reset_state(const AttendParams& params, const RowTile& tile,
                                            const Row* rows, int first_row, bool with_sink,
                                            SoftmaxState<kRowBlocks>& state) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m * 16 + half * 8 + lane / 4;
      float sink = kNegInf;
      if (with_sink && params.score.sinks != nullptr && first_row + row < tile.num_rows) {
        const float shift = alibi_row_constant(Config::kAlibi, rows[row], tile.context_len);
        sink = (params.score.sinks[head_of(tile, first_row + row)] - shift) * kLog2E;
      }
      state.base[m][half] = sink;
      // One lane of the four that share a row counts it.
      state.sum[m][half] = lane % 4 == 0 && sink != kNegInf ? 1.0f : 0.0f;
    }
  }
}

/// m + ln l of a row in natural units; -inf for a row that saw nothing.
template <class Config>
__device__ __forceinline__ float row_lse(float base, float sum, const Row& row, int context_len) {
  if (sum == 0.0f) return kNegInf;
  return (base + log2_fast(sum)) * kLn2 + alibi_row_constant(Config::kAlibi, row, context_len);
}

}  // namespace attn
