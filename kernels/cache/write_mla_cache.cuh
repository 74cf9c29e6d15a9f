// Scatter of new latents into the MLA cache: bits, e4m3 of one scale, or the 656-byte entries of
// "fp8_ds_mla" (semantics §8.4.1, §8.4.3); and these entries back as bf16.
#pragma once

#include "kernels/cache/gather.cuh"
#include "kernels/common/slots.cuh"

namespace attn {

constexpr int kDsMlaScaleOffset = kDsMlaLatent;
constexpr int kDsMlaRopeOffset = kDsMlaScaleOffset + kDsMlaLatent / kDsMlaTile * 4;

__device__ __forceinline__ i64 slot_element(const MlaCacheWriteParams& p, i64 slot) {
  const SlotPlace place = place_of_slot(slot, p.block_size);
  return place.block * p.block_stride + place.offset * p.slot_stride;
}

/// Config: Element kSource, kCache; int kVector (elements of a load), kThreads. Grid:
/// cdiv(num_slots * (Lkv + R) / kVector, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    write_mla_cache(const __grid_constant__ MlaCacheWriteParams p) {
  constexpr int kVector = Config::kVector;
  const i64 index = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const int row_vectors = (p.kv_lora_rank + p.rope_head_dim) / kVector;
  const i64 token = quotient(index, row_vectors);
  if (token >= p.num_slots) return;
  const i64 slot = p.slot_mapping[token];
  if (slot < 0) return;
  const int column = static_cast<int>(index - token * row_vectors) * kVector;
  const bool is_rope = column >= p.kv_lora_rank;
  const void* const source = is_rope ? p.k_pe : p.kv_c;
  const i64 from = is_rope ? token * p.k_pe_token_stride + column - p.kv_lora_rank
                           : token * p.kv_c_token_stride + column;
  const auto loaded = load_vector<Config::kSource, kVector>(static_cast<const char*>(source) +
                                                            from * size_of(Config::kSource));
  char* const output =
      static_cast<char*>(p.cache) + (slot_element(p, slot) + column) * size_of(Config::kCache);
  if constexpr (Config::kSource == Config::kCache) {
    store_vector(output, loaded);
  } else {
    const float scale = p.k_scale[0];
    float values[kVector];
    decode_vector(loaded, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] = __fdiv_rn(values[i], scale);
    store_vector(output, encode_vector<Config::kCache>(values));
  }
}

/// One warp a token: each tile of 128 latents is one element quad of every lane. Config: int
/// kVector (bf16 of a load: 1, 2 or 4), kThreads. Grid: cdiv(num_slots, kThreads / 32).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    write_ds_mla(const __grid_constant__ MlaCacheWriteParams p) {
  constexpr int kVector = Config::kVector;
  constexpr int kNumTiles = kDsMlaLatent / kDsMlaTile;
  constexpr int kLoads = 4 / kVector;
  const i64 token = static_cast<i64>(blockIdx.x) * (Config::kThreads / 32) + threadIdx.x / 32;
  if (token >= p.num_slots) return;
  const i64 slot = p.slot_mapping[token];
  if (slot < 0) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const u16* const kv_c = static_cast<const u16*>(p.kv_c) + token * p.kv_c_token_stride;
  char* const entry = static_cast<char*>(p.cache) + slot_element(p, slot);
#pragma unroll
  for (int tile = 0; tile < kNumTiles; ++tile) {
    const int column = tile * kDsMlaTile + lane * 4;
    float values[4];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      float part[kVector];
      decode_vector(load_vector<Element::kBF16, kVector>(kv_c + column + i * kVector), part);
#pragma unroll
      for (int k = 0; k < kVector; ++k) values[i * kVector + k] = part[k];
    }
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) largest = fmaxf(largest, fabsf(values[i]));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
    }
    constexpr float kLeastNormal = 1.17549435e-38f;
    const float scale = fmaxf(__fdiv_rn(largest, 448.0f), kLeastNormal);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = __fdiv_rn(values[i], scale);
    store_vector(entry + column, encode_vector<Element::kE4M3>(values));
    if (lane == 0) *reinterpret_cast<float*>(entry + kDsMlaScaleOffset + tile * 4) = scale;
  }
  const u16* const k_pe = static_cast<const u16*>(p.k_pe) + token * p.k_pe_token_stride + lane * 2;
  *reinterpret_cast<u32*>(entry + kDsMlaRopeOffset + lane * 4) = k_pe[0] | static_cast<u32>(k_pe[1])
                                                                               << 16;
}

/// One warp a row, two columns a lane and step: entries and rows need no more alignment than 4
/// bytes. Config: int kThreads. Grid: cdiv(num_rows, kThreads / 32).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    upconvert_ds_mla(const __grid_constant__ DsMlaUpconvertParams p) {
  const i64 row = static_cast<i64>(blockIdx.x) * (Config::kThreads / 32) + threadIdx.x / 32;
  if (row >= p.num_rows || row < p.workspace_starts[0]) return;
  const int request = request_of_token(p.workspace_starts, p.num_requests, row);
  const i64 position = row - p.workspace_starts[request];
  if (position >= p.seq_lens[request]) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const char* const entry = entry_at(p.entries, request, static_cast<int>(position), 1);
  u16* const output = static_cast<u16*>(p.output) + row * p.output_token_stride;
#pragma unroll
  for (int step = 0; step < kDsMlaLatent / 64; ++step) {
    const int column = step * 64 + lane * 2;
    const float scale =
        *reinterpret_cast<const float*>(entry + kDsMlaScaleOffset + column / kDsMlaTile * 4);
    float values[2];
    decode_vector(load_vector<Element::kE4M3, 2>(entry + column), values);
    values[0] = __fmul_rn(values[0], scale);
    values[1] = __fmul_rn(values[1], scale);
    store_vector(output + column, encode_vector<Element::kBF16>(values));
  }
  store_vector(output + kDsMlaLatent + lane * 2,
               load_vector<Element::kBF16, 2>(entry + kDsMlaRopeOffset + lane * 4));
}

}  // namespace attn
