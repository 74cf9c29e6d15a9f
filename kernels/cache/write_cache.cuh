// Scatter of new keys and values into the paged cache, as they are or divided by the scale of their
// head (semantics §5.1, §5.2). Keys and values are two halves of one launch: they have the same
// slots and differ in addresses, scale and width only. Also what the other cache writes share:
// where a slot lies, and how a vector becomes what the cache stores.
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/params.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// Where a slot of a paged cache lies: block = slot / block_size, offset = slot % block_size.
struct SlotPlace {
  i64 block;
  i64 offset;  // within the block
};

/// `slot` >= 0: callers drop the negative slots of padding tokens before.
ATTN_FN SlotPlace place_of_slot(i64 slot, int block_size) {
  const i64 block = quotient(slot, block_size);
  return {block, slot - block * block_size};
}

/// One of key and value of a call.
struct WriteSide {
  const char* source;
  char* cache;
  i64 token_stride;    // elements of the source
  const float* scale;  // [Hk], or null where bits are copied
  int width;           // D or Dv
};

__device__ __forceinline__ WriteSide write_side(const CacheWriteParams& p, bool is_value) {
  if (is_value) {
    return {static_cast<const char*>(p.value), static_cast<char*>(p.value_cache),
            p.value_token_stride, p.v_scale, p.v_head_size};
  }
  return {static_cast<const char*>(p.key), static_cast<char*>(p.key_cache), p.key_token_stride,
          p.k_scale, p.head_size};
}

/// Bits of the source, or codes of source / scale.
template <Element kSource, Element kCache, int kCount>
__device__ __forceinline__ ElementVector<kCache, kCount> cache_vector(
    const ElementVector<kSource, kCount>& source, const float* scale, int head) {
  if constexpr (kSource == kCache) {
    return source;
  } else {
    float values[kCount];
    decode_vector(source, values);
    divide_for_codes(values, scale[head]);
    return encode_vector<kCache>(values);
  }
}

/// A thread has kItems vectors, kThreads apart, of the [num_slots, Hk, D or Dv] of its side. Tokens
/// of negative slots are neither read nor written. Config: Element kSource, kCache; int kVector
/// (elements of a thread's load), kThreads, kItems (loads of a thread). Grid: (cdiv(vectors of the
/// wider side, kThreads * kItems), 2): key, value.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    write_cache(const __grid_constant__ CacheWriteParams p) {
  constexpr int kItems = Config::kItems;
  constexpr int kVector = Config::kVector;
  const WriteSide side = write_side(p, blockIdx.y == 1);
  const unsigned head_vectors = static_cast<unsigned>(side.width / kVector);
  const unsigned token_vectors = head_vectors * static_cast<unsigned>(p.num_kv_heads);
  // Why token by token and not by flat index: offsets pass 2^32, quotients of 32 bits do not.
  const i64 first = static_cast<i64>(blockIdx.x) * (Config::kThreads * kItems);
  const i64 first_token = quotient(first, token_vectors);
  const unsigned first_vector =
      static_cast<unsigned>(first - first_token * token_vectors) + threadIdx.x;

  // Three passes over the items: slots, loads, stores. Each pass has kItems independent accesses to
  // memory, so that a thread waits twice and not 2 * kItems times.
  i64 tokens[kItems];
  i64 slots[kItems];
  unsigned vectors[kItems];  // of the token
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const unsigned vector = first_vector + i * Config::kThreads;
    tokens[i] = first_token + vector / token_vectors;
    vectors[i] = vector % token_vectors;
    slots[i] = tokens[i] < p.num_slots ? p.slot_mapping[tokens[i]] : -1;
  }
  // All loads are under way before the first is waited for.
  ElementVector<Config::kSource, kVector> loaded[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (slots[i] < 0) continue;
    const i64 element = tokens[i] * side.token_stride + static_cast<i64>(vectors[i]) * kVector;
    loaded[i] =
        load_vector<Config::kSource, kVector>(side.source + element * size_of(Config::kSource));
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (slots[i] < 0) continue;
    const unsigned head = vectors[i] / head_vectors;
    const SlotPlace place = place_of_slot(slots[i], p.block_size);
    const i64 element = place.block * p.block_stride + place.offset * p.slot_stride +
                        head * p.head_stride +
                        static_cast<i64>(vectors[i] - head * head_vectors) * kVector;
    store_vector(side.cache + element * size_of(Config::kCache),
                 cache_vector<Config::kSource, Config::kCache>(loaded[i], side.scale,
                                                               static_cast<int>(head)));
  }
}

}  // namespace attn
