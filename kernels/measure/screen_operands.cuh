// Numbers on their way into screening: elements of stored tensors as float64, tiles of them in
// shared memory, and sums over the 16 neighbouring threads that hold a row when it is compared.
#pragma once

#include "kernels/common/numeric.cuh"
#include "kernels/params_measure.h"

namespace attn {

constexpr int kScreenDepth = 32;      // columns of Q and K in shared memory at a time
constexpr int kScreenValueKeys = 16;  // rows of V likewise, for a warp

ATTN_FN double screen_infinity() { return double{float_from_bits(0x7F800000u)}; }
ATTN_FN bool screen_is_finite(double x) { return x - x == 0.0; }

template <Element kElement>
ATTN_FN double screen_number(const void* data, i64 at) {
  if constexpr (kElement == Element::kF64) return static_cast<const double*>(data)[at];
  if constexpr (kElement == Element::kF32) return static_cast<const float*>(data)[at];
  if constexpr (kElement == Element::kF16) return f16_to_float(static_cast<const u16*>(data)[at]);
  if constexpr (kElement == Element::kBF16) {
    return bf16_to_float(static_cast<const u16*>(data)[at]);
  }
  if constexpr (kElement == Element::kE4M3) return e4m3_to_float(static_cast<const u8*>(data)[at]);
}

/// body.run<element>() for the element of a tensor, which is one of the set kElements: the choice
/// stands outside of the loops, so that their loads are under way together.
template <unsigned kElements, class Body>
ATTN_FN void with_screen_element(Element element, const Body& body) {
  if constexpr ((kElements & kScreenBit<Element::kF32>) != 0) {
    if (element == Element::kF32) return body.template run<Element::kF32>();
  }
  if constexpr ((kElements & kScreenBit<Element::kF16>) != 0) {
    if (element == Element::kF16) return body.template run<Element::kF16>();
  }
  if constexpr ((kElements & kScreenBit<Element::kBF16>) != 0) {
    if (element == Element::kBF16) return body.template run<Element::kBF16>();
  }
  if constexpr ((kElements & kScreenBit<Element::kF64>) != 0) {
    if (element == Element::kF64) return body.template run<Element::kF64>();
  }
  if constexpr ((kElements & kScreenBit<Element::kE4M3>) != 0) {
    if (element == Element::kE4M3) return body.template run<Element::kE4M3>();
  }
}

/// Columns [first, first + kScreenDepth) of kRows rows: to[row * kStride + column]. Rows of number
/// -1 are zeros.
template <int kRows, int kStride>
struct ScreenLoadRows {
  double* to;
  const ScreenOperand& from;
  const i64* rows;
  int head;
  int first;

  template <Element kElement>
  __device__ __forceinline__ void run() const {
    constexpr int kRowsAtOnce = kScreenThreads / kScreenDepth;
    const int column = static_cast<int>(threadIdx.x) % kScreenDepth;
    const i64 place = from.first + head * from.head_stride + first + column;
    double loaded[kRows / kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      const i64 row = rows[static_cast<int>(threadIdx.x) / kScreenDepth + i * kRowsAtOnce];
      const bool valid = row >= 0 && first + column < from.width;
      loaded[i] = valid ? screen_number<kElement>(from.data, row * from.row_stride + place) : 0.0;
    }
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
      to[(static_cast<int>(threadIdx.x) / kScreenDepth + i * kRowsAtOnce) * kStride + column] =
          loaded[i];
    }
  }
};

/// kKeys rows of V from column `first` on: to[key * kStride + column].
template <int kKeys, int kColumns, int kStride>
struct ScreenLoadValues {
  double* to;
  const ScreenOperand& from;
  const i64* rows;
  int head;
  int first;

  template <Element kElement>
  __device__ __forceinline__ void run() const {
    constexpr int kKeysAtOnce = kScreenThreads / kColumns;
    const int column = static_cast<int>(threadIdx.x) % kColumns;
    const i64 place = from.first + head * from.head_stride + first + column;
    double loaded[kKeys / kKeysAtOnce];
#pragma unroll
    for (int i = 0; i < kKeys / kKeysAtOnce; ++i) {
      const i64 row = rows[static_cast<int>(threadIdx.x) / kColumns + i * kKeysAtOnce];
      const bool valid = row >= 0 && first + column < from.width;
      loaded[i] = valid ? screen_number<kElement>(from.data, row * from.row_stride + place) : 0.0;
    }
#pragma unroll
    for (int i = 0; i < kKeys / kKeysAtOnce; ++i) {
      to[(static_cast<int>(threadIdx.x) / kColumns + i * kKeysAtOnce) * kStride + column] =
          loaded[i];
    }
  }
};

/// Sum or maximum over the 16 threads of a row; every one of them gets it.
__device__ __forceinline__ double screen_row_sum(double x) {
#pragma unroll
  for (int step = kScreenLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
__device__ __forceinline__ double screen_row_max(double x) {
#pragma unroll
  for (int step = kScreenLanes / 2; step > 0; step /= 2) {
    const double other = __shfl_xor_sync(~0u, x, step);
    x = other > x ? other : x;
  }
  return x;
}

}  // namespace attn
