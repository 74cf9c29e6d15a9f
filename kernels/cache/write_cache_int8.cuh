// Cache writes of the int8 attention: bits are copied, by slot mapping or to the end of each
// request (semantics §11.6). Keys arrive quantised; their scales go to a cache of scales of their
// own, f32 [NB, Hk, bs]. The second way is that of a decode step that saves its tokens itself:
// token i of a request has position seq_len - query_len + i, and the block table says where that
// lies.
#pragma once

#include "kernels/cache/gather.cuh"
#include "kernels/cache/write_cache.cuh"
#include "kernels/params_int8.h"

namespace attn {

/// Block and offset of a new token; block -1: it is not written.
__device__ __forceinline__ SlotPlace place_of_new_token(const Int8CacheWriteParams& p, i64 token) {
  if (p.slot_mapping != nullptr) {
    const i64 slot = p.slot_mapping[token];
    return slot < 0 ? SlotPlace{-1, 0} : place_of_slot(slot, p.block_size);
  }
  const int request = request_of_token(p.query_start_loc, p.num_requests, token);
  const int past = p.query_start_loc[request + 1];
  const int seq_len = p.seq_lens[request];
  if (token < p.query_start_loc[0] || token >= past || seq_len == 0) return {-1, 0};
  // token = past - query_len + i, so this is seq_len - query_len + i.
  const i64 position = seq_len - past + token;
  const i64 column = quotient(position, p.block_size);
  return {p.block_table[request * p.block_table_stride + column], position - column * p.block_size};
}

/// A thread copies one vector of a key and the same columns of its value; the thread of column 0
/// copies the scale as well. Config: Element kValue; int kVector (elements of a load of both
/// sides), kThreads. Grid: cdiv(T * Hk * D / kVector, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    write_cache_int8(const __grid_constant__ Int8CacheWriteParams p) {
  constexpr int kVector = Config::kVector;
  constexpr int kValueBytes = size_of(Config::kValue);
  const i64 index = static_cast<i64>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const int row_vectors = p.head_size / kVector;
  const i64 row = quotient(index, row_vectors);
  const i64 token = quotient(row, p.num_kv_heads);
  if (token >= p.num_tokens) return;
  const i64 head = row - token * p.num_kv_heads;
  const int column = static_cast<int>(index - row * row_vectors) * kVector;
  const SlotPlace place = place_of_new_token(p, token);
  if (place.block < 0) return;
  const i64 cell =
      place.block * p.block_stride + place.offset * p.slot_stride + head * p.head_stride + column;
  const i64 key = token * p.key_token_stride + head * p.key_head_stride + column;
  const i64 value = token * p.value_token_stride + head * p.value_head_stride + column;
  store_vector(p.key_cache + cell, load_vector<Element::kI8, kVector>(p.key + key));
  store_vector(static_cast<char*>(p.value_cache) + cell * kValueBytes,
               load_vector<Config::kValue, kVector>(static_cast<const char*>(p.value) +
                                                    value * kValueBytes));
  if (column != 0) return;
  p.key_scale_cache[place.block * p.scale_block_stride + place.offset * p.scale_slot_stride +
                    head * p.scale_head_stride] =
      p.key_scale[token * p.key_scale_token_stride + head * p.key_scale_head_stride];
}

}  // namespace attn
