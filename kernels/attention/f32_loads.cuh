// Tiles of any element from device memory to f32 in shared memory, for f32.cuh. They pass through
// registers, where they are converted, so that one loop serves every element and alignment.
#pragma once

#include "kernels/ptx/codes.cuh"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// A stored element of K or V: codes times the scale of their tensor, which does not touch wider
/// elements.
template <Element kStored>
__device__ __forceinline__ float dequantise(float code, float scale) {
  return size_of(kStored) == 1 ? code * scale : code;
}

/// kVector consecutive elements as f32, exactly; `at` counts elements from `base`.
template <Element kElement, int kVector>
__device__ __forceinline__ void load_floats(const void* base, i64 at, float (&values)[kVector]) {
  const auto* from = static_cast<const unsigned char*>(base) + at * size_of(kElement);
  const ElementVector<kElement, kVector> vector = load_vector<kElement, kVector>(from);
  if constexpr (size_of(kElement) == 1 && kVector == 4) {
    const Four16 numbers = codes_to_f16<kElement>(vector.words[0]);
    values[0] = f16_low_to_float(numbers.low);
    values[1] = f16_high_to_float(numbers.low);
    values[2] = f16_low_to_float(numbers.high);
    values[3] = f16_high_to_float(numbers.high);
  } else {
    decode_vector<kElement, kVector>(vector, values);
  }
}

/// kRows rows of columns [first, first + kColumns), out of kWidth columns; the rest are zeros, as
/// are rows of negative offset. Rows lie kPitch floats apart in `to`. `map(value, row)` is what
/// becomes of a value.
template <Element kElement, int kVector, int kRows, int kColumns, int kPitch, int kWidth,
          int kThreads>
struct LoadTile {
  template <class Map>
  static __device__ __forceinline__ void run(const void* base, const i64* row_at, int first,
                                             float* to, int thread, Map map) {
    constexpr int kPieces = kColumns / kVector;
    static_assert(kPieces * kVector == kColumns && kWidth % kVector == 0);
    constexpr int kTotal = kRows * kPieces;
#pragma unroll 4
    for (int i = thread; i < kTotal; i += kThreads) {
      const int row = i / kPieces;
      const int column = i % kPieces * kVector;
      const i64 at = row_at[row];
      float values[kVector] = {};
      if (at >= 0 && first + column < kWidth) {
        load_floats<kElement, kVector>(base, at + first + column, values);
#pragma unroll
        for (int v = 0; v < kVector; ++v) values[v] = map(values[v], row);
      }
      float* at_shared = to + row * kPitch + column;
      if constexpr (kVector == 4) {
        *reinterpret_cast<float4*>(at_shared) =
            make_float4(values[0], values[1], values[2], values[3]);
      } else {
#pragma unroll
        for (int v = 0; v < kVector; ++v) at_shared[v] = values[v];
      }
    }
  }
};

}  // namespace attn
