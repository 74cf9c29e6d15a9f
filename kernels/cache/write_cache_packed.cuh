// Cache writes in 4 bits: rotated vectors with a scale and a zero point for each token and head
// (semantics §5.6), and NVFP4 with an e4m3 scale for each 16 columns (§5.7). Bytes must be the same
// on every device and on the CPU, so the operations are rounded one by one.
#pragma once

#include "kernels/cache/write_cache.cuh"
#include "kernels/ptx/nvfp4_block.cuh"
#include "kernels/ptx/rotation.cuh"

namespace attn {

/// Eight codes of 4 bits of values * inverse + zero_point, the first in the low nibble.
__device__ __forceinline__ u32 int4_codes(const float* values, float inverse, int zero_point) {
  u32 word = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float scaled = __fmul_rn(values[i], inverse);
    const int code = int4_code(__fadd_rn(scaled, static_cast<float>(zero_point)));
    word |= static_cast<u32>(code) << (i * 4);
  }
  return word;
}

/// kLanes neighbouring threads have a head of a token between them, kVector columns each.
/// Config: Element kSource; int kWidth (D), kVector, kLanes (kWidth / kVector), kLoad (elements of
/// a load), kThreads. Grid: (cdiv(tokens * heads * kLanes, kThreads), 1 or 2): sides from
/// `first_side` on.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    write_cache_int4(const __grid_constant__ CacheWriteParams p,
                     const __grid_constant__ int first_side) {
  constexpr int kVector = Config::kVector;
  constexpr int kLanes = Config::kLanes;
  static_assert(kLanes * kVector == Config::kWidth && kVector % 8 == 0 && kLanes <= 32);
  const bool is_value = static_cast<int>(blockIdx.y) + first_side == 1;
  const WriteSide side = write_side(p, is_value);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const i64 row = (static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x) / kLanes;
  const i64 token = quotient(row, p.num_kv_heads);
  const i64 head = row - token * p.num_kv_heads;
  const i64 slot = token < p.num_slots ? p.slot_mapping[token] : -1;
  ElementVector<Config::kSource, kVector> loaded{};
  if (slot >= 0) {
    loaded = load_parts<Config::kSource, kVector, Config::kLoad>(
        side.source + (token * side.token_stride + head * Config::kWidth + lane * kVector) *
                          size_of(Config::kSource));
  }
  float values[kVector];
  decode_vector(loaded, values);
  apply_rotation_signs(values, lane);
  hadamard<kLanes>(values, lane);
  round_values<Config::kSource>(values);
  float least = values[0];
  float most = values[0];
#pragma unroll
  for (int i = 1; i < kVector; ++i) {
    least = fminf(least, values[i]);
    most = fmaxf(most, values[i]);
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    least = fminf(least, __shfl_xor_sync(0xFFFFFFFFu, least, step));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
  }
  if (slot < 0) return;  // after the shuffles, which need whole warps
  // Why a product: upstream's compiler makes one of the division by a constant (§5.5).
  const float scale = fmaxf(__fmul_rn(__fadd_rn(most, -least), 1.0f / 15.0f), 1e-6f);
  const int zero_point = int4_code(__fdiv_rn(-least, scale));
  const float inverse = __fdiv_rn(1.0f, scale);
  const SlotPlace place = place_of_slot(slot, p.block_size);
  auto* const words = reinterpret_cast<u32*>(side.cache + place.block * p.block_stride +
                                             place.offset * p.slot_stride + head * p.head_stride) +
                      lane * (kVector / 8);
#pragma unroll
  for (int i = 0; i < kVector; i += 8) words[i / 8] = int4_codes(values + i, inverse, zero_point);
  if (lane != 0) return;
  float* const scales = is_value ? p.value_scales : p.key_scales;
  scales[place.block * p.scale_block_stride + place.offset * p.scale_slot_stride +
         head * p.scale_head_stride] = int4_stored_scale(scale, zero_point);
}

/// A thread has a block of 16 columns of a token and head.
/// Config: Element kSource; int kWidth (D), kLoad (elements of a load), kThreads. Grid: as above,
/// kWidth / 16 threads a head.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    write_cache_nvfp4(const __grid_constant__ CacheWriteParams p,
                      const __grid_constant__ int first_side) {
  constexpr int kBlocks = Config::kWidth / kNvfp4Block;
  const bool is_value = static_cast<int>(blockIdx.y) + first_side == 1;
  const WriteSide side = write_side(p, is_value);
  const i64 index = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const i64 row = index / kBlocks;
  const int block = static_cast<int>(index - row * kBlocks);
  const i64 token = quotient(row, p.num_kv_heads);
  const i64 head = row - token * p.num_kv_heads;
  if (token >= p.num_slots) return;
  const i64 slot = p.slot_mapping[token];
  if (slot < 0) return;
  const auto source = load_parts<Config::kSource, kNvfp4Block, Config::kLoad>(
      side.source + (token * side.token_stride + head * Config::kWidth + block * kNvfp4Block) *
                        size_of(Config::kSource));
  Nvfp4Codes codes;
  const u8 scale_code = quantise_nvfp4_block(nvfp4_columns<Config::kSource>(source),
                                             __fdiv_rn(1.0f, side.scale[head]), codes);
  const SlotPlace place = place_of_slot(slot, p.block_size);
  store_parts<4>(side.cache + place.block * p.block_stride + place.offset * p.slot_stride +
                     head * p.head_stride + block * (kNvfp4Block / 2),
                 codes);
  const BlockScales& at = p.block_scales;
  const int offset = static_cast<int>(place.offset);
  const SwizzledScale scale_place =
      is_value ? swizzled_value_scale(offset, block, kBlocks) : SwizzledScale{offset, block};
  (is_value ? at.value : at.key)[place.block * at.block_stride + scale_place.slot * at.slot_stride +
                                 head * at.head_stride + scale_place.block] = scale_code;
}

}  // namespace attn
