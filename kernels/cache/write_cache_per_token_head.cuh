// Quantising cache write with a scale of its own for every token and head (semantics §5.5).
#pragma once

#include "kernels/cache/write_cache.cuh"

namespace attn {

/// i8_half_away() or i8_truncate() in the instructions of the device: __float2int_rz saturates and
/// makes 0 of NaN.
__device__ __forceinline__ u32 int8_code(float value, bool truncate) {
  const float shifted = truncate ? value : value + copysignf(0.5f, value);
  return static_cast<u32>(min(max(__float2int_rz(shifted), -128), 127)) & 0xFFu;
}

/// Codes of values * inverse: fp8, or int8 rounded half away from zero or towards it.
template <Element kCache, int kCount>
__device__ __forceinline__ ElementVector<kCache, kCount> token_head_codes(
    const float (&values)[kCount], float inverse, bool truncate) {
  float scaled[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) scaled[i] = __fmul_rn(values[i], inverse);
  if constexpr (kCache == Element::kI8) {
    ElementVector<kCache, kCount> codes{};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      codes.words[i / 4] |= int8_code(scaled[i], truncate) << (8 * (i % 4));
    }
    return codes;
  } else {
    return encode_vector<kCache>(scaled);
  }
}

/// Config: Element kSource, kCache; int kWidth (elements of a head), kVector (of a thread's load),
/// kLanes (threads of a head, a power of two up to 32), kRows (heads of a thread), kThreads.
/// Grid: (cdiv(tokens * heads, kRows * kThreads / kLanes), 1 or 2): sides from `first_side` on.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    write_cache_per_token_head(const __grid_constant__ CacheWriteParams p,
                               const __grid_constant__ int first_side) {
  constexpr int kVector = Config::kVector;
  constexpr int kRows = Config::kRows;
  constexpr int kLanes = Config::kLanes;
  constexpr int kHeadVectors = Config::kWidth / kVector;
  constexpr int kParts = (kHeadVectors + kLanes - 1) / kLanes;
  constexpr int kRowsAtOnce = Config::kThreads / kLanes;
  constexpr float kMostCode = Config::kCache == Element::kI8 ? 127.0f : 448.0f;
  const bool is_value = static_cast<int>(blockIdx.y) + first_side == 1;
  const WriteSide side = write_side(p, is_value);
  float* const scales = is_value ? p.value_scales : p.key_scales;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const i64 first_row = static_cast<i64>(blockIdx.x) * (kRows * kRowsAtOnce) + threadIdx.x / kLanes;

  i64 tokens[kRows];
  int heads[kRows];
  i64 slots[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const i64 row = first_row + r * kRowsAtOnce;
    tokens[r] = quotient(row, p.num_kv_heads);
    heads[r] = static_cast<int>(row - tokens[r] * p.num_kv_heads);
    slots[r] = tokens[r] < p.num_slots ? p.slot_mapping[tokens[r]] : -1;
  }
  ElementVector<Config::kSource, kVector> loaded[kRows][kParts];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int vector = part * kLanes + lane;
      loaded[r][part] = {};
      if (slots[r] < 0 || vector >= kHeadVectors) continue;
      const i64 element = tokens[r] * side.token_stride +
                          static_cast<i64>(heads[r]) * Config::kWidth + vector * kVector;
      loaded[r][part] =
          load_vector<Config::kSource, kVector>(side.source + element * size_of(Config::kSource));
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float values[kParts][kVector];
    float largest = 0.0f;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      decode_vector(loaded[r][part], values[part]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) largest = fmaxf(largest, fabsf(values[part][i]));
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
    }
    if (slots[r] < 0) continue;
    const float scale = fmaxf(__fmul_rn(largest, 1.0f / kMostCode), 1e-6f);
    const float inverse = __fdiv_rn(1.0f, scale);
    const SlotPlace place = place_of_slot(slots[r], p.block_size);
    if (lane == 0) {
      scales[place.block * p.scale_block_stride + place.offset * p.scale_slot_stride +
             heads[r] * p.scale_head_stride] = scale;
    }
    char* const cell = side.cache + (place.block * p.block_stride + place.offset * p.slot_stride +
                                     heads[r] * p.head_stride);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int vector = part * kLanes + lane;
      if (vector >= kHeadVectors) continue;
      store_vector(cell + vector * kVector,
                   token_head_codes<Config::kCache>(values[part], inverse, p.int8_truncate != 0));
    }
  }
}

}  // namespace attn
