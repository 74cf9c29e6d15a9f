// Cache writes into slots that a key and its value share (semantics §5.8): a warp has a head of a
// token, its key and its value. Bytes must be the same on every device and on the CPU, so the
// operations are rounded one by one; sums of squares go by pairs of columns 1, 2, 4, ... apart,
// like the passes of the rotation.
#pragma once

#include "kernels/cache/write_cache.cuh"
#include "kernels/common/slot_codes.cuh"
#include "kernels/ptx/rotation.cuh"

namespace attn {

/// Sum of the squares of the head whose columns the 32 lanes have. All lanes must call it.
template <int kCount>
__device__ __forceinline__ float sum_of_squares(const float (&values)[kCount]) {
  float sums[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = __fmul_rn(values[i], values[i]);
#pragma unroll
  for (int apart = 1; apart < kCount; apart *= 2) {
#pragma unroll
    for (int i = 0; i + apart < kCount; i += 2 * apart) {
      sums[i] = __fadd_rn(sums[i], sums[i + apart]);
    }
  }
  float sum = sums[0];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, step));
  }
  return sum;
}

/// Codes of a rotated key in its lane's columns; returns the key's norm.
template <int kBits, int kCount>
__device__ __forceinline__ float rotated_key_codes(float (&values)[kCount], const float* centroids,
                                                   int lane, u32 (&codes)[kCount]) {
  const float norm = __fsqrt_rn(sum_of_squares(values));
  const float divisor = __fadd_rn(norm, 1e-8f);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = __fdiv_rn(values[i], divisor);
  hadamard<32>(values, lane);
  const float unit = __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(32 * kCount)));
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    codes[i] = static_cast<u32>(centroid_index(__fmul_rn(values[i], unit), centroids, kBits));
  }
  return norm;
}

/// Step and least value of a vector.
struct ValueSteps {
  float step;
  float least;
};

/// Codes of a value in its lane's columns; 0 past the width.
template <int kBits, int kWidth, int kCount>
__device__ __forceinline__ ValueSteps value_codes(const float (&values)[kCount], int lane,
                                                  u32 (&codes)[kCount]) {
  float least = float_from_bits(0x7F800000u);
  float most = -least;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (lane * kCount + i >= kWidth) continue;
    least = least_of(least, values[i]);
    most = fmaxf(most, values[i]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    least = least_of(least, __shfl_xor_sync(0xFFFFFFFFu, least, step));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
  }
  const float step = value_step(least, most, kBits);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float steps = __fdiv_rn(__fadd_rn(values[i], -least), step);
    codes[i] = lane * kCount + i < kWidth ? static_cast<u32>(value_code(steps, kBits)) : 0u;
  }
  return {step, least};
}

/// The lane's columns of a vector; 0 past the width.
template <Element kSource, int kWidth, int kCount>
__device__ __forceinline__ void load_columns(const char* source, int lane,
                                             float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int column = lane * kCount + i;
    float loaded[1] = {0.0f};
    if (column < kWidth) {
      decode_vector(load_vector<kSource, 1>(source + column * size_of(kSource)), loaded);
    }
    values[i] = loaded[0];
  }
}

/// The codes of all lanes into their packed places at `to`, which is null where nothing is to be
/// written. Eight columns are a word, of one lane or of neighbouring ones. All lanes must call it.
template <int kBits, int kWidth, int kCount>
__device__ __forceinline__ void store_packed_codes(const u32 (&codes)[kCount], int lane, u8* to) {
  constexpr int kOwn = kCount < 8 ? kCount : 8;  // columns of a word that a lane has
#pragma unroll
  for (int first = 0; first < kCount; first += kOwn) {
    const int column = lane * kCount + first;
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) word |= codes[first + i] << ((column + i) % 8 * kBits);
#pragma unroll
    for (int step = 1; step < 8 / kOwn; step *= 2) {
      word |= __shfl_xor_sync(0xFFFFFFFFu, word, step);
    }
    if (to != nullptr && column % 8 == 0 && column < kWidth) {
      store_eight_codes(word, kBits, to + code_bytes(kBits, column));
    }
  }
}

/// Columns of a lane: a power of two, so that eight columns are those of whole lanes.
ATTN_FN constexpr int slot_columns(int width) {
  int count = 1;
  while (count * 32 < width) count *= 2;
  return count;
}

/// Config: Element kSource; int kWidth (D, a multiple of 8; 32 times a power of two where keys are
/// rotated), kKeyBits, kValueBits, kThreads. Grid: cdiv(tokens * heads, kThreads / 32).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    write_cache_slots(const __grid_constant__ CacheWriteParams p) {
  constexpr int kWidth = Config::kWidth;
  constexpr int kKeyBits = Config::kKeyBits;
  constexpr int kValueBits = Config::kValueBits;
  constexpr int kCount = slot_columns(kWidth);
  constexpr int kRows = Config::kThreads / 32;
  constexpr bool kRotated = kKeyBits < 8;
  static_assert(kWidth % 8 == 0 && (!kRotated || kCount * 32 == kWidth));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const i64 row = static_cast<i64>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x) / 32;
  const i64 token = quotient(row, p.num_kv_heads);
  const i64 head = row - token * p.num_kv_heads;
  // Why not an early return: the shuffles need whole warps.
  const i64 slot = token < p.num_slots ? p.slot_mapping[token] : -1;
  float keys[kCount] = {};
  float values[kCount] = {};
  u8* key_part = nullptr;
  u8* value_part = nullptr;
  if (slot >= 0) {
    constexpr int kBytes = size_of(Config::kSource);
    load_columns<Config::kSource, kWidth>(
        static_cast<const char*>(p.key) + (token * p.key_token_stride + head * kWidth) * kBytes,
        lane, keys);
    load_columns<Config::kSource, kWidth>(
        static_cast<const char*>(p.value) + (token * p.value_token_stride + head * kWidth) * kBytes,
        lane, values);
    const SlotPlace place = place_of_slot(slot, p.block_size);
    const i64 at =
        place.block * p.block_stride + place.offset * p.slot_stride + head * p.head_stride;
    key_part = static_cast<u8*>(p.key_cache) + at;
    value_part = static_cast<u8*>(p.value_cache) + at;
  }
  u32 codes[kCount];
  if constexpr (kRotated) {
    const float norm = rotated_key_codes<kKeyBits>(keys, p.centroids, lane, codes);
    store_packed_codes<kKeyBits, kWidth>(codes, lane, key_part);
    if (slot >= 0 && lane == 0) store_f16_bytes(norm, key_part + code_bytes(kKeyBits, kWidth));
  } else if (slot >= 0) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int column = lane * kCount + i;
      if (column < kWidth) key_part[column] = e4m3_from_float(keys[i]);
    }
  }
  const ValueSteps steps = value_codes<kValueBits, kWidth>(values, lane, codes);
  store_packed_codes<kValueBits, kWidth>(codes, lane, value_part);
  if (slot < 0 || lane != 0) return;
  u8* const behind = value_part + code_bytes(kValueBits, kWidth);
  store_f16_bytes(steps.step, behind);
  store_f16_bytes(steps.least, behind + 2);
}

}  // namespace attn
