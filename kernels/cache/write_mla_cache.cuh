// Scatter of new latents into the MLA cache: bits, or e4m3 of one scale (semantics §8.4.1). The
// entry of a token is kv_c followed by k_pe, which come from two tensors: a piece lies in one of
// them.
#pragma once

#include "kernels/cache/write_cache.cuh"
#include "kernels/move/row_moves.cuh"
#include "kernels/params_mla.h"

namespace attn {

/// The first element of a slot's entry; of "fp8_ds_mla" the first byte.
__device__ __forceinline__ i64 slot_element(const MlaCacheWriteParams& p, i64 slot) {
  const SlotPlace place = place_of_slot(slot, p.block_size);
  return place.block * p.block_stride + place.offset * p.slot_stride;
}

/// The entry of a token, by a warp in pieces of kVector elements. Tokens past the last, and those
/// of negative slots, are not written.
template <Element kSource, Element kCache, int kVector>
__device__ __forceinline__ void write_latent(const MlaCacheWriteParams& p, i64 token) {
  constexpr int kSourceSize = size_of(kSource);
  constexpr int kCacheSize = size_of(kCache);
  const i64 slot = token < p.num_slots ? p.slot_mapping[token] : -1;
  if (slot < 0) return;
  const char* const latent =
      static_cast<const char*>(p.kv_c) + token * p.kv_c_token_stride * kSourceSize;
  const char* const rope =
      static_cast<const char*>(p.k_pe) + token * p.k_pe_token_stride * kSourceSize;
  char* const entry = static_cast<char*>(p.cache) + slot_element(p, slot) * kCacheSize;
  for (int column = static_cast<int>(threadIdx.x) % 32 * kVector;
       column < p.kv_lora_rank + p.rope_head_dim; column += 32 * kVector) {
    const char* const from = column < p.kv_lora_rank
                                 ? latent + column * kSourceSize
                                 : rope + (column - p.kv_lora_rank) * kSourceSize;
    store_vector(entry + column * kCacheSize,
                 cache_vector<kSource, kCache>(load_vector<kSource, kVector>(from), p.k_scale, 0));
  }
}

/// Rows of move_rows() are tokens. RowMove::source points to the token's kv_c; pieces from Lkv on
/// are read from k_pe instead.
///
/// Config: Element kSource, kCache; int kVector (elements of a piece, a
/// divisor of Lkv and R), and those of move_rows(). Grid as there, of num_slots.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    write_mla_cache(const __grid_constant__ MlaCacheWriteParams p) {
  constexpr int kVector = Config::kVector;
  constexpr int kSourceSize = size_of(Config::kSource);
  constexpr int kCacheSize = size_of(Config::kCache);
  const auto find = [&](i64 token) -> RowMove {
    const i64 slot = p.slot_mapping[token];
    if (slot < 0) return {};
    return {static_cast<const char*>(p.kv_c) + token * p.kv_c_token_stride * kSourceSize,
            static_cast<char*>(p.cache) + slot_element(p, slot) * kCacheSize};
  };
  const auto load = [&](i64 token, const char* latent, int piece) {
    const int column = piece * kVector;
    const char* const source =
        column < p.kv_lora_rank
            ? latent + column * kSourceSize
            : static_cast<const char*>(p.k_pe) +
                  (token * p.k_pe_token_stride + column - p.kv_lora_rank) * kSourceSize;
    return load_vector<Config::kSource, kVector>(source);
  };
  using Piece = ElementVector<Config::kSource, kVector>;
  const auto store = [&](char* entry, int piece, const Piece& loaded) {
    store_vector(entry + piece * kVector * kCacheSize,
                 cache_vector<Config::kSource, Config::kCache>(loaded, p.k_scale, 0));
  };
  move_rows<Config>(p.num_slots, find, load, store);
}

}  // namespace attn
