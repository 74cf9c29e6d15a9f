// The entries of an "fp8_model1_mla" cache, FlashMLA's MODEL1_FP8Sparse, written and read back as
// bf16 (semantics §8.4.6). A warp has an entry: two columns a lane of each of the 7 tiles of 64
// codes, and of the 64 bf16 of k_pe.
#pragma once

#include "kernels/cache/gather.cuh"
#include "kernels/cache/write_mla_cache.cuh"

namespace attn {

constexpr int kModel1Tiles = kModel1Latent / kModel1Tile;

/// Byte of the scales of slot `offset` from the start of its block.
ATTN_FN i64 model1_scales_at(int block_size, i64 offset) {
  return static_cast<i64>(block_size) * kModel1DataBytes + offset * kModel1ScaleBytes;
}
/// The ue8m0 code of the least power of two that is not below x, a normal number.
ATTN_FN u8 ue8m0_at_least(float x) { return static_cast<u8>((float_bits(x) + 0x7FFFFFu) >> 23); }

/// s = max(max|x|, 1e-4) / 448 rounded up to a power of two, code = rn_e4m3(x / s).
/// Config: int kLoad (bf16 of a load: 2 or 1), kThreads. Grid: cdiv(num_slots, kThreads / 32).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    write_model1(const __grid_constant__ MlaCacheWriteParams p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const i64 token = static_cast<i64>(blockIdx.x) * (Config::kThreads / 32) + threadIdx.x / 32;
  if (token >= p.num_slots) return;  // a whole warp
  const i64 slot = p.slot_mapping[token];
  if (slot < 0) return;
  const SlotPlace place = place_of_slot(slot, p.block_size);
  u8* const block = static_cast<u8*>(p.cache) + place.block * p.block_stride;
  u8* const data = block + place.offset * p.slot_stride;
  const u16* const kv_c = static_cast<const u16*>(p.kv_c) + token * p.kv_c_token_stride;
  u32 own_scale = 0;  // of tile `lane`; 0 behind the last
#pragma unroll
  for (int tile = 0; tile < kModel1Tiles; ++tile) {
    float values[2];
    decode_vector(
        load_parts<Element::kBF16, 2, Config::kLoad>(kv_c + tile * kModel1Tile + lane * 2), values);
    float largest = fmaxf(fabsf(values[0]), fabsf(values[1]));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
    }
    const u8 code = ue8m0_at_least(__fdiv_rn(fmaxf(largest, 1e-4f), 448.0f));
    const float scale = ue8m0_to_float(code);
    for (float& value : values) value = __fdiv_rn(value, scale);
    store_vector(data + tile * kModel1Tile + lane * 2, encode_vector<Element::kE4M3>(values));
    if (lane == tile) own_scale = code;
  }
  store_vector(data + kModel1Latent + lane * 4,
               load_parts<Element::kBF16, 2, Config::kLoad>(
                   static_cast<const u16*>(p.k_pe) + token * p.k_pe_token_stride + lane * 2));
  if (lane < kModel1ScaleBytes) {
    block[model1_scales_at(p.block_size, place.offset) + lane] = static_cast<u8>(own_scale);
  }
}

/// Rows of the workspace become [kv_c | k_pe] in bf16; rows outside of every request are skipped.
/// Config: int kThreads. Grid: cdiv(num_rows, kThreads / 32).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    upconvert_model1(const __grid_constant__ DsMlaUpconvertParams p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const i64 row = static_cast<i64>(blockIdx.x) * (Config::kThreads / 32) + threadIdx.x / 32;
  if (row >= p.num_rows || row < p.workspace_starts[0]) return;
  const int request = request_of_token(p.workspace_starts, p.num_requests, row);
  const int position = static_cast<int>(row - p.workspace_starts[request]);
  if (position >= p.seq_lens[request]) return;
  const char* const data = entry_at(p.entries, request, position, 1);
  const i64 offset = position % p.entries.block_size;
  const u8* const scales = reinterpret_cast<const u8*>(data) - offset * p.entries.slot_stride +
                           model1_scales_at(p.entries.block_size, offset);
  char* const to = static_cast<char*>(p.output) + row * p.output_token_stride * 2;
#pragma unroll
  for (int tile = 0; tile < kModel1Tiles; ++tile) {
    const int column = tile * kModel1Tile + lane * 2;
    const float scale = ue8m0_to_float(scales[tile]);
    float values[2];
    decode_vector(load_vector<Element::kE4M3, 2>(data + column), values);
    for (float& value : values) value = __fmul_rn(value, scale);
    store_vector(to + column * 2, encode_vector<Element::kBF16>(values));
  }
  const int column = lane * 2;
  store_vector(to + (kModel1Latent + column) * 2,
               load_vector<Element::kBF16, 2>(data + kModel1Latent + column * 2));
}

}  // namespace attn
