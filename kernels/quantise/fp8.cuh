// Quantisation to e4m3: one static scale, a scale per group of columns, and the encoder's padded
// heads (semantics §8.7 step 2, §9.2, §9.3, §10.5). Bandwidth bounds all of them, so they load
// several vectors before they store the first. Whether an element is multiplied by 1 / scale or
// divided by the scale is part of each definition, since the two give different codes now and then.
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/params_mm.h"
#include "kernels/params_quant.h"
#include "kernels/ptx/element_vector.cuh"
#include "kernels/ptx/scales.cuh"

namespace attn {

/// Elements that saturation changes by more than rounding would (§0.4): up to 464, half a step
/// beyond 448, rounding to the nearest number gives 448 anyhow.
template <int kCount>
__device__ __forceinline__ int count_saturated(const float (&values)[kCount]) {
  int count = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) count += fabsf(values[i]) > 464.0f ? 1 : 0;
  return count;
}

/// Adds the counts of all threads of the CTA to *total; every thread must come here.
__device__ __forceinline__ void add_saturated(int count, i64* total) {
  if (total == nullptr) return;
  const int of_warp = __reduce_add_sync(0xFFFFFFFFu, count);
  if (threadIdx.x % 32 == 0 && of_warp > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(total),
              static_cast<unsigned long long>(of_warp));
  }
}

/// What quantise_rows() works on: rows of heads. Codes of a row lie without gaps, a head padded to
/// kHeadPieces * kCodes columns; those of columns from `width` on are 0.
struct QuantisedRows {
  const char* source;
  i64 source_row_stride;  // elements
  i64 source_head_stride;
  unsigned char* codes;
  i64 code_row_stride;
  i64 num_rows;
  int width;  // elements of a head
};

/// The loop of the kernels with one scale: load, scale, round, store. scale(values, live) changes
/// numbers in place to what is rounded; the first `live` of them are of a head, the others padding.
/// Returns how many of this thread's elements saturated, or 0 unless `counts`.
///
/// Config: Element kSource; int kVector (elements of a load), kCodes (of a store, a multiple of
/// kVector), kItems (stores of a thread), kHeadPieces, kRowPieces (stores of a head, of a row),
/// kThreads. Grid: cdiv(num_rows * kRowPieces, kThreads * kItems).
template <class Config, class Scale>
__device__ __forceinline__ int quantise_rows(const QuantisedRows& rows, bool counts,
                                             const Scale& scale) {
  constexpr int kItems = Config::kItems;
  constexpr int kVector = Config::kVector;
  constexpr int kCodes = Config::kCodes;
  constexpr int kLoads = kCodes / kVector;
  constexpr unsigned kRowPieces = Config::kRowPieces;
  constexpr unsigned kHeadPieces = Config::kHeadPieces;
  const i64 first = static_cast<i64>(blockIdx.x) * (Config::kThreads * kItems);
  const i64 first_row = quotient(first, kRowPieces);
  const unsigned first_piece = static_cast<unsigned>(first - first_row * kRowPieces) + threadIdx.x;
  // All loads are under way before the first is waited for.
  unsigned char* codes[kItems];
  ElementVector<Config::kSource, kVector> loaded[kItems][kLoads];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const unsigned index = first_piece + i * Config::kThreads;
    const i64 row = first_row + index / kRowPieces;
    const unsigned piece = index % kRowPieces;
    codes[i] = nullptr;
    if (row >= rows.num_rows) continue;
    codes[i] = rows.codes + row * rows.code_row_stride + piece * kCodes;
    const int column = static_cast<int>(piece % kHeadPieces) * kCodes;
    const i64 from = row * rows.source_row_stride + piece / kHeadPieces * rows.source_head_stride;
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      loaded[i][l] = {};
      if (column + l * kVector >= rows.width) continue;
      loaded[i][l] = load_vector<Config::kSource, kVector>(
          rows.source + (from + column + l * kVector) * size_of(Config::kSource));
    }
  }
  int saturated = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (codes[i] == nullptr) continue;
    float values[kCodes];
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      float part[kVector];
      decode_vector(loaded[i][l], part);
#pragma unroll
      for (int k = 0; k < kVector; ++k) values[l * kVector + k] = part[k];
    }
    const unsigned piece = (first_piece + i * Config::kThreads) % kRowPieces;
    scale(values, rows.width - static_cast<int>(piece % kHeadPieces) * kCodes);
    if (counts) saturated += count_saturated(values);
    store_vector(codes[i], encode_vector<Element::kE4M3>(values));
  }
  return saturated;
}

/// codes = rn_e4m3(x * (1 / scale)). Config: that of quantise_rows(). Grid as there.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    quantise_fp8(const __grid_constant__ StaticQuantiseParams p) {
  const float factor = __fdiv_rn(1.0f, p.scale[0]);
  const auto scale = [&](float(&values)[Config::kCodes], int) { scale_by(values, factor); };
  const QuantisedRows rows{static_cast<const char*>(p.source),
                           p.source_row_stride,
                           0,
                           p.codes,
                           p.code_row_stride,
                           p.num_rows,
                           static_cast<int>(p.num_columns)};
  const int saturated = quantise_rows<Config>(rows, p.num_saturated != nullptr, scale);
  add_saturated(saturated, p.num_saturated);
}

/// A thread has kGroupPiece columns, and the 4 or 8 neighbours that share a group find its maximum
/// by shuffles; groups divide a row, so they never straddle rows or warps. Threads past the last
/// row take part in the shuffles before they leave.
///
/// Config: Element kSource; int kVector (elements
/// of a load), kStoreBytes (of the codes' stores), kGroup, kThreads. Grid: cdiv(rows * columns /
/// kGroupPiece, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    quantise_fp8_groups(const __grid_constant__ GroupQuantiseParams p) {
  constexpr int kVector = Config::kVector;
  constexpr int kLanes = Config::kGroup / kGroupPiece;
  const i64 index = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const i64 row_pieces = p.num_columns / kGroupPiece;
  const i64 row = quotient(index, row_pieces);
  const i64 piece = index - row * row_pieces;
  const bool is_live = row < p.num_rows;
  const i64 column = piece * kGroupPiece;
  float values[kGroupPiece] = {};
  if (is_live) {
    const char* const from = static_cast<const char*>(p.source) +
                             (row * p.source_row_stride + column) * size_of(Config::kSource);
#pragma unroll
    for (int l = 0; l < kGroupPiece; l += kVector) {
      float part[kVector];
      decode_vector(load_vector<Config::kSource, kVector>(from + l * size_of(Config::kSource)),
                    part);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[l + i] = part[i];
    }
  }
  const float scale = group_scale<kLanes>(values, p.ue8m0 != 0);
  if (!is_live) return;
  // Why nothing is added to num_saturated: the largest quotient is 448, rounded twice.
  divide_for_codes(values, scale);
  const ElementVector<Element::kE4M3, kGroupPiece> codes = encode_vector<Element::kE4M3>(values);
  store_parts<Config::kStoreBytes>(p.codes + row * p.code_row_stride + column, codes);
  if (piece % kLanes == 0) {
    p.scales[row * p.scale_row_stride + piece / kLanes * p.scale_group_stride] = scale;
  }
}

/// Heads of head_size columns become heads of padded_head_size, counted in p.num_saturated. Config:
/// that of quantise_rows(); grid as there, of S rows.
template <class Config>
__device__ __forceinline__ void pad_and_quantise(const PadQuantiseParams& p) {
  const bool divides = p.padded_head_size != p.head_size;
  const float divisor = p.scale == nullptr ? 1.0f : p.scale[0];
  const float factor = __fdiv_rn(1.0f, divisor);
  const auto scale = [&](float(&values)[Config::kCodes], int live) {
    if (p.scale == nullptr) return;
    if (divides) {
      if (divisor == divisor) {
        divide_for_codes(values, divisor);
        return;
      }
      // Why apart: what follows a head is 0, and 0 divided by NaN is not.
#pragma unroll
      for (int k = 0; k < Config::kCodes; ++k) values[k] = k < live ? divisor : 0.0f;
    } else {
      scale_by(values, factor);
    }
  };
  const QuantisedRows rows{static_cast<const char*>(p.source),
                           p.source_token_stride,
                           p.source_head_stride,
                           p.codes,
                           static_cast<i64>(p.num_heads) * p.padded_head_size,
                           p.num_tokens,
                           p.head_size};
  const int saturated = quantise_rows<Config>(rows, p.num_saturated != nullptr, scale);
  add_saturated(saturated, p.num_saturated);
}

/// The encoder's. Config: that of quantise_rows(). Grid as there, of S rows.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    quantise_pad_fp8(const __grid_constant__ PadQuantiseParams p) {
  pad_and_quantise<Config>(p);
}

}  // namespace attn
