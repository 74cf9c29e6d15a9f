// The query rows of a CTA in shared memory, as the first product takes them: copied as they are
// stored, then, if the products work on another element (Formats::kScore), converted in place. That
// is so for keys of codes that are not scaled before the product, which become f16: bf16 queries
// get a factor for each row that fits their range into that of f16, e4m3 queries become f16
// exactly. The factors go into the scores.
#pragma once

#include "kernels/attention/kv_rows.cuh"

namespace attn {

/// Starts the copy of a tile's rows, as they are stored, into rows kPitch bytes apart; rows past
/// the tile become zeros.
template <class Config, int kRows, int kPitch, int kThreads>
__device__ __forceinline__ void copy_query_rows(const AttendParams& params, const RowTile& tile,
                                                u32 to, int thread) {
  constexpr int kElementBytes = size_of(Config::kQuery);
  constexpr int kBytes = Config::kQueryCopyBytes;
  constexpr int kPieces = Config::kHeadSize * kElementBytes / kBytes;
  const auto* query = static_cast<const unsigned char*>(params.query);
  for (int i = thread; i < kRows * kPieces; i += kThreads) {
    const int row = i / kPieces;
    const bool valid = row < tile.num_rows;
    const PackedRow of = valid ? unpack_row(tile, row) : PackedRow{0, 0};
    const i64 offset = valid ? (tile.first_token + of.token) * params.query_token_stride +
                                   (tile.kv_head * tile.group + of.head) * params.query_head_stride
                             : 0;
    copy_async<kBytes>(to + row * kPitch + i % kPieces * kBytes,
                       query + offset * kElementBytes + i % kPieces * kBytes, valid);
  }
}

/// Whether rows are not stored as Formats::kScore.
template <class Config>
constexpr bool kConvertsQuery = Formats<Config>::kScore != Config::kQuery;

/// The scales of int8 rows into factors [kRows]; those of rows that are not there are 1.
template <int kRows, int kThreads>
__device__ __forceinline__ void copy_query_scales(const AttendParams& params, const RowTile& tile,
                                                  float* factors, int thread) {
  const Int8ScoreParams& int8 = params.int8;
  for (int row = thread; row < kRows; row += kThreads) {
    factors[row] = row < tile.num_rows
                       ? int8.query_scale[token_of(tile, row) * int8.query_scale_token_stride +
                                          head_of(tile, row) * int8.query_scale_head_stride]
                       : 1.0f;
  }
}

/// The exponent field of the largest finite number of a warp's words, each of two bf16. Magnitudes
/// of bf16 are in the order of their bits.
template <int kWords>
__device__ __forceinline__ int largest_exponent(const u32 (&words)[kWords]) {
  u32 largest = 0;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const u32 finite = words[i] & ~nonfinite_halves<Element::kBF16>(words[i]) & 0x7FFF7FFFu;
    largest = larger(static_cast<int>(largest),
                     larger(static_cast<int>(finite >> 16), static_cast<int>(finite & 0xFFFFu)));
  }
  return static_cast<int>(__reduce_max_sync(0xFFFFFFFFu, largest) >> 7);
}

/// One row of bf16 by one warp, in place: f16 of q / factor. The factor is the power of two that
/// puts the largest number below 2^15, so that whatever lies within 2^-31 of it keeps its 8 bits. A
/// power of two, so that the division and its undoing in the scores are exact. Returns the factor.
template <int kColumns>
__device__ __forceinline__ float bf16_row_to_f16(u32* row, int lane) {
  constexpr int kWords = (kColumns / 2 + 31) / 32;
  u32 words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int at = i * 32 + lane;
    words[i] = at < kColumns / 2 ? row[at] : 0u;
  }
  constexpr int kTop = 127 + 14;  // the exponent field of 2^14
  // Why at least 20: the inverse of the factor must be a number too.
  const int exponent = larger(largest_exponent(words), 20);
  const float inverse = float_from_bits(static_cast<u32>(127 + kTop - exponent) << 23);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int at = i * 32 + lane;
    const float low = float_from_bits(words[i] << 16);
    const float high = float_from_bits(words[i] & 0xFFFF0000u);
    if (at < kColumns / 2) row[at] = pack<Element::kF16>(low * inverse, high * inverse);
  }
  return float_from_bits(static_cast<u32>(127 + exponent - kTop) << 23);
}

/// One row of codes by one warp: the same numbers in f16, from the start of the row on. The row has
/// room for 16-bit elements, and its codes lie at its start.
template <Element kCode, int kColumns>
__device__ __forceinline__ void code_row_to_f16(u32* row, int lane) {
  constexpr int kWords = (kColumns / 4 + 31) / 32;
  u32 words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int at = i * 32 + lane;
    words[i] = at < kColumns / 4 ? row[at] : 0u;
  }
  __syncwarp();  // all codes are read before the first is overwritten
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int at = i * 32 + lane;
    const Four16 numbers = codes_to_f16<kCode>(words[i]);
    if (at < kColumns / 4) {
      reinterpret_cast<uint2*>(row)[at] = make_uint2(numbers.low, numbers.high);
    }
  }
}

/// Rows that have arrived become Formats::kScore; factors [kRows] undo it in the scores. All
/// threads, whole warps.
template <class Config, int kRows, int kPitch, int kThreads>
__device__ __forceinline__ void convert_query_rows(unsigned char* rows, float* factors,
                                                   int thread) {
  constexpr int kWarps = kThreads / 32;
  static_assert(kRows % kWarps == 0);
  const int lane = thread % 32;
#pragma unroll 4
  for (int i = 0; i < kRows / kWarps; ++i) {
    const int row = thread / 32 + i * kWarps;
    auto* words = reinterpret_cast<u32*>(rows + row * kPitch);
    float factor = 1.0f;
    if constexpr (size_of(Config::kQuery) == 1) {
      code_row_to_f16<Config::kQuery, Config::kHeadSize>(words, lane);
    } else {
      factor = bf16_row_to_f16<Config::kHeadSize>(words, lane);
    }
    if (lane == 0) factors[row] = factor;
  }
}

/// What the scores of this thread's rows are to be multiplied with beside `factor`; `factors`
/// [kRowBlocks * 16] in shared memory. Only rows of bf16 and of int8 have other ones than 1.
template <class Config, class Place, int kRowBlocks>
__device__ __forceinline__ RowFactors<kRowBlocks> row_factors(const float* factors, float factor) {
  // Why not 0, as the scale of the keys may make it: a masked score is -inf, and 0 times -inf is
  // NaN. Other scores of f16 are less than 2^40, so that all factors below this give one weight.
  constexpr float kLeastFactor = 0x1p-126f;
  RowFactors<kRowBlocks> of;
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      of.factors[m][half] = factor;
      if constexpr (kInt8Scores<Config> ||
                    (kConvertsQuery<Config> && size_of(Config::kQuery) == 2)) {
        of.factors[m][half] *= factors[m * 16 + Place::row(half)];
      }
      if (Formats<Config>::kCodes && of.factors[m][half] < kLeastFactor) {
        of.factors[m][half] = kLeastFactor;
      }
    }
  }
  return of;
}

/// Every row of S times its factor.
template <int kRowBlocks, int kKeyBlocks>
__device__ __forceinline__ void scale_rows(float (&s)[kRowBlocks][kKeyBlocks][4],
                                           const RowFactors<kRowBlocks>& factors) {
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[m][n][i] *= factors.of(m, i / 2);
    }
  }
}

}  // namespace attn
