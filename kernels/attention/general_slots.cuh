// Keys and values of slots that both share (semantics §5.8) on their way to the tiles of
// kernels/attention/general.cuh, as f32: the products of such caches are of f32, as upstream's are.
// A warp has a row at a time. Keys that are indices of centroids stay rotated: the queries of the
// tile are rotated instead, once, and what brings a key to its length is a factor of its scores.
#pragma once

#include "kernels/attention/general_tiles.cuh"
#include "kernels/common/slot_codes.cuh"
#include "kernels/params.h"

namespace attn {

/// kRows keys into a tile; `offsets` [kRows] are bytes from `base`, rows of a negative one become
/// zeros. Of rotated keys scales[row] becomes the factor of the row's products with queries that
/// rotate_rows() has rotated.
template <KvCoding kCoding, int kRows, int kColumns>
__device__ __forceinline__ void stage_slot_keys(const void* base, const i64* offsets,
                                                const float* centroids, float* scales,
                                                unsigned char* tile, int pitch) {
  constexpr int kBits = slot_key_bits(kCoding);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = static_cast<int>(threadIdx.x) / 32; row < kRows; row += kGeneralThreads / 32) {
    const i64 offset = offsets[row];
    const u8* const codes = static_cast<const u8*>(base) + (offset < 0 ? 0 : offset);
    auto* const to = reinterpret_cast<float*>(tile + row * pitch);
    float squares = 0.0f;
    for (int column = lane; column < kColumns; column += 32) {
      float x = 0.0f;
      if (offset >= 0) {
        if constexpr (kBits == 8) {
          x = e4m3_to_float(codes[column]);
        } else {
          x = centroids[packed_code(codes, kBits, column)];
        }
      }
      to[column] = x;
      squares += x * x;
    }
    if constexpr (kBits < 8) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        squares += __shfl_xor_sync(0xFFFFFFFFu, squares, step);
      }
      if (lane == 0) {
        const float norm = offset < 0 ? 0.0f : load_f16_bytes(codes + code_bytes(kBits, kColumns));
        // Both the key and the query were multiplied by a matrix whose square is kColumns.
        scales[row] = norm / sqrtf((squares + 1e-16f) * static_cast<float>(kColumns));
      }
    }
  }
}

/// The same of values.
template <KvCoding kCoding, int kRows, int kColumns>
__device__ __forceinline__ void stage_slot_values(const void* base, const i64* offsets,
                                                  unsigned char* tile, int pitch) {
  constexpr int kBits = slot_value_bits(kCoding);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = static_cast<int>(threadIdx.x) / 32; row < kRows; row += kGeneralThreads / 32) {
    const i64 offset = offsets[row];
    const u8* const codes = static_cast<const u8*>(base) + (offset < 0 ? 0 : offset);
    const u8* const behind = codes + code_bytes(kBits, kColumns);
    const float step = offset < 0 ? 0.0f : load_f16_bytes(behind);
    const float least = offset < 0 ? 0.0f : load_f16_bytes(behind + 2);
    auto* const to = reinterpret_cast<float*>(tile + row * pitch);
    for (int column = lane; column < kColumns; column += 32) {
      const int code = offset < 0 ? 0 : packed_code(codes, kBits, column);
      to[column] = fmaf(static_cast<float>(code), step, least);
    }
  }
}

/// kRows rows of f32 in a tile are multiplied by the unnormalised matrix of Hadamard. All threads;
/// begins and ends with a barrier.
template <int kRows, int kColumns>
__device__ __forceinline__ void rotate_rows(unsigned char* tile, int pitch) {
  constexpr int kPairs = kColumns / 2;
  __syncthreads();
#pragma unroll 1
  for (int apart = 1; apart < kColumns; apart *= 2) {
    for (int index = threadIdx.x; index < kRows * kPairs; index += kGeneralThreads) {
      const int pair = index % kPairs;
      const int column = pair / apart * 2 * apart + pair % apart;
      auto* const values = reinterpret_cast<float*>(tile + index / kPairs * pitch) + column;
      const float lower = values[0];
      const float upper = values[apart];
      values[0] = lower + upper;
      values[apart] = lower - upper;
    }
    __syncthreads();
  }
}

}  // namespace attn
