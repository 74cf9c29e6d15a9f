// Moving rows without arithmetic: concatenation, gathering by index, strided copies (semantics
// §8.4.5, §8.6, the transposes around the collectives of §7). Bits are copied, NaN payloads
// included, unless copy() is told to convert. One thread does one vector; the last CTA has idle
// threads.
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/params_mla.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// A thread's place in rows of `row_vectors` loads.
struct VectorPlace {
  i64 row;
  i64 vector;
};

/// Threads run along a row first, so that a warp reads and writes contiguous memory.
template <class Config>
__device__ __forceinline__ VectorPlace place_of_thread(i64 row_vectors) {
  const i64 index = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const i64 row = quotient(index, row_vectors);
  return {row, index - row * row_vectors};
}

/// output[i, j, k, :] = source[i, j, k, :] by the strides of either side, converted from kSource to
/// kOutput where they differ. Config: Element kSource, kOutput; int kVector (elements of a load),
/// kThreads. Grid: cdiv(rows * width / kVector, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) copy(const __grid_constant__ CopyParams p) {
  constexpr int kVector = Config::kVector;
  const VectorPlace place = place_of_thread<Config>(p.width / kVector);
  const i64 outer = quotient(place.row, p.extents[2]);
  const i64 k = place.row - outer * p.extents[2];
  const i64 i = quotient(outer, p.extents[1]);
  const i64 j = outer - i * p.extents[1];
  if (i >= p.extents[0]) return;
  const i64 column = place.vector * kVector;
  const i64 from = i * p.source_strides[0] + j * p.source_strides[1] + k * p.source_strides[2];
  const i64 to = i * p.output_strides[0] + j * p.output_strides[1] + k * p.output_strides[2];
  const auto loaded = load_vector<Config::kSource, kVector>(
      static_cast<const char*>(p.source) + (from + column) * size_of(Config::kSource));
  char* const output = static_cast<char*>(p.output) + (to + column) * size_of(Config::kOutput);
  if constexpr (Config::kSource == Config::kOutput) {
    store_vector(output, loaded);
  } else {
    float values[kVector];
    decode_vector(loaded, values);
    store_vector(output, encode_vector<Config::kOutput>(values));
  }
}

/// Row (token, head) of the output is first | second; kVector divides the sizes of both parts, so a
/// vector lies in one of them. Config: Element kElement; int kVector, kThreads.
/// Grid: cdiv(T * H * (first_size + second_size) / kVector, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) concat(const __grid_constant__ ConcatParams p) {
  constexpr int kVector = Config::kVector;
  constexpr int kBytes = size_of(Config::kElement);
  const VectorPlace place = place_of_thread<Config>((p.first_size + p.second_size) / kVector);
  const i64 token = quotient(place.row, p.num_heads);
  if (token >= p.num_tokens) return;
  const i64 head = place.row - token * p.num_heads;
  const i64 column = place.vector * kVector;
  ElementVector<Config::kElement, kVector> loaded{};
  if (column < p.first_size) {
    const i64 at = token * p.first_token_stride + head * p.first_head_stride + column;
    loaded =
        load_vector<Config::kElement, kVector>(static_cast<const char*>(p.first) + at * kBytes);
  } else if (p.second != nullptr) {
    const i64 at =
        token * p.second_token_stride + head * p.second_head_stride + column - p.first_size;
    loaded =
        load_vector<Config::kElement, kVector>(static_cast<const char*>(p.second) + at * kBytes);
  }
  const i64 to = token * p.output_token_stride + head * p.output_head_stride + column;
  store_vector(static_cast<char*>(p.output) + to * kBytes, loaded);
}

/// output[i] = source[rows[i]]. Config as concat's. Grid: cdiv(num_rows * width / kVector,
/// kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    gather_rows(const __grid_constant__ GatherRowsParams p) {
  constexpr int kVector = Config::kVector;
  constexpr int kBytes = size_of(Config::kElement);
  const VectorPlace place = place_of_thread<Config>(p.width / kVector);
  if (place.row >= p.num_rows) return;
  const i64 column = place.vector * kVector;
  const i64 from = p.rows[place.row] * p.source_row_stride + column;
  const i64 to = place.row * p.output_row_stride + column;
  store_vector(
      static_cast<char*>(p.output) + to * kBytes,
      load_vector<Config::kElement, kVector>(static_cast<const char*>(p.source) + from * kBytes));
}

}  // namespace attn
