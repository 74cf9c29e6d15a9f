// Rotary position embedding in place (semantics §12.1): by itself, or fused with the cache write of
// what was rotated (§12.2). The fused kernel must give the bytes of the two operations in a row; it
// reads the rotated keys from the registers that hold them, already rounded to their element.
#pragma once

#include "kernels/cache/write_cache.cuh"
#include "kernels/params_rope.h"

namespace attn {

/// (x, y) turned by an angle. Each operation is rounded: a compiler that contracts a * b + c to a
/// fused operation would give other bytes than one that does not.
__device__ __forceinline__ void rotate(float cosine, float sine, float& x, float& y) {
  const float turned_x = __fsub_rn(__fmul_rn(x, cosine), __fmul_rn(y, sine));
  y = __fadd_rn(__fmul_rn(y, cosine), __fmul_rn(x, sine));
  x = turned_x;
}

/// Two vectors of one head after their rotation, and where their first elements are; both the same
/// where a vector holds whole pairs (GPT-J order, pairs of neighbours).
template <class Config>
struct RotatedPart {
  ElementVector<Config::kElement, Config::kVector> first;
  ElementVector<Config::kElement, Config::kVector> second;
  int first_element;
  int second_element;
};

/// Whether a rotation takes two vectors: in NeoX order the partner of an element lies rotary_dim /
/// 2 behind it, in GPT-J order it is its neighbour, which is in the same vector unless that has one
/// element only.
template <class Config>
inline constexpr bool kHasSecond = Config::kNeox || Config::kVector == 1;

/// Parts of a head that one thread turns.
template <class Config>
__device__ __forceinline__ int num_parts(int rotary_dim) {
  return rotary_dim / (kHasSecond<Config> ? 2 * Config::kVector : Config::kVector);
}

/// Turns part `part` of the head at `head` in place. `cos_sin` is the row of its position:
/// rotary_dim / 2 cosines, then as many sines, one for each pair.
template <class Config>
__device__ __forceinline__ RotatedPart<Config> turn_part(const RopeParams& p, char* head,
                                                         const char* cos_sin, int part) {
  constexpr int kVector = Config::kVector;
  constexpr int kSize = size_of(Config::kElement);
  constexpr int kAngleSize = size_of(Config::kAngles);
  const int half = p.rotary_dim / 2;
  RotatedPart<Config> turned;
  if constexpr (kHasSecond<Config>) {
    turned.first_element = Config::kNeox ? part * kVector : 2 * part;
    turned.second_element = Config::kNeox ? turned.first_element + half : 2 * part + 1;
    float x[kVector];
    float y[kVector];
    float cosines[kVector];
    float sines[kVector];
    decode_vector(load_vector<Config::kElement, kVector>(head + turned.first_element * kSize), x);
    decode_vector(load_vector<Config::kElement, kVector>(head + turned.second_element * kSize), y);
    decode_vector(load_vector<Config::kAngles, kVector>(cos_sin + part * kVector * kAngleSize),
                  cosines);
    decode_vector(
        load_vector<Config::kAngles, kVector>(cos_sin + (half + part * kVector) * kAngleSize),
        sines);
#pragma unroll
    for (int i = 0; i < kVector; ++i) rotate(cosines[i], sines[i], x[i], y[i]);
    turned.first = encode_vector<Config::kElement>(x);
    turned.second = encode_vector<Config::kElement>(y);
    store_vector(head + turned.second_element * kSize, turned.second);
  } else {
    turned.first_element = turned.second_element = part * kVector;
    float values[kVector];
    float cosines[kVector / 2];
    float sines[kVector / 2];
    const int pair = part * (kVector / 2);
    decode_vector(load_vector<Config::kElement, kVector>(head + turned.first_element * kSize),
                  values);
    decode_vector(load_vector<Config::kAngles, kVector / 2>(cos_sin + pair * kAngleSize), cosines);
    decode_vector(load_vector<Config::kAngles, kVector / 2>(cos_sin + (half + pair) * kAngleSize),
                  sines);
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      rotate(cosines[i], sines[i], values[2 * i], values[2 * i + 1]);
    }
    turned.first = turned.second = encode_vector<Config::kElement>(values);
  }
  store_vector(head + turned.first_element * kSize, turned.first);
  return turned;
}

/// Addresses of a token's head, and of the row of angles of its position.
template <class Config>
__device__ __forceinline__ char* query_head(const RopeParams& p, i64 token, int head) {
  return static_cast<char*>(p.query) +
         (token * p.query_token_stride + head * p.query_head_stride) * size_of(Config::kElement);
}
template <class Config>
__device__ __forceinline__ char* key_head(const RopeParams& p, i64 token, int head) {
  return static_cast<char*>(p.key) +
         (token * p.key_token_stride + head * p.key_head_stride) * size_of(Config::kElement);
}
template <class Config>
__device__ __forceinline__ const char* angles_of(const RopeParams& p, i64 token) {
  return static_cast<const char*>(p.cos_sin_cache) +
         p.positions[token] * p.rotary_dim * size_of(Config::kAngles);
}

/// All heads of queries and keys, a part a thread.
/// Why one part a thread: with two or four, fewer threads fit on a multiprocessor; measured slower.
/// Config: Element kElement, kAngles (of the cos-sin cache); bool kNeox; int kVector (elements of a
/// load; 1 = no alignment is needed), kParts (of a head), kThreads. Grid: cdiv(T * heads of queries
/// and keys * kParts, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) rope(const __grid_constant__ RopeParams p) {
  constexpr unsigned kParts = Config::kParts;
  const unsigned token_parts =
      static_cast<unsigned>(p.num_heads + (p.key == nullptr ? 0 : p.num_kv_heads)) * kParts;
  // Why token by token and not by flat index: offsets pass 2^32, quotients of 32 bits do not.
  const i64 first = static_cast<i64>(blockIdx.x) * Config::kThreads;
  const i64 first_token = quotient(first, token_parts);
  const unsigned index = static_cast<unsigned>(first - first_token * token_parts) + threadIdx.x;
  const i64 token = first_token + index / token_parts;
  if (token >= p.num_tokens) return;
  const int head = static_cast<int>(index % token_parts / kParts);
  char* const elements = head < p.num_heads ? query_head<Config>(p, token, head)
                                            : key_head<Config>(p, token, head - p.num_heads);
  turn_part<Config>(p, elements, angles_of<Config>(p, token), static_cast<int>(index % kParts));
}

/// Stores a vector of a key or value in the cell of its slot and head.
template <class Config>
__device__ __forceinline__ void store_in_cell(
    const CacheWriteParams& write, const WriteSide& side, i64 cell, int head, int element,
    const ElementVector<Config::kElement, Config::kVector>& vector) {
  const i64 at = cell + head * write.head_stride + element;
  store_vector(side.cache + at * size_of(Config::kCache),
               cache_vector<Config::kElement, Config::kCache>(vector, side.scale, head));
}

/// A CTA does one token: first all rotations, with the cache write of rotated keys, then what is
/// left of the keys and the values. Tokens without a slot are rotated and not stored. Config: as of
/// rope without kParts, and Element kCache. The keys of `p` are those of `write`. Grid: T.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    rope_write(const __grid_constant__ RopeParams p,
               const __grid_constant__ CacheWriteParams write) {
  constexpr int kVector = Config::kVector;
  const i64 token = blockIdx.x;
  const char* const cos_sin = angles_of<Config>(p, token);
  const i64 slot = token < write.num_slots ? write.slot_mapping[token] : -1;
  const SlotPlace place = place_of_slot(slot < 0 ? 0 : slot, write.block_size);
  const i64 cell = place.block * write.block_stride + place.offset * write.slot_stride;
  const int parts = num_parts<Config>(p.rotary_dim);
  const int num_query_parts = p.num_heads * parts;
  const int num_key_parts = p.num_kv_heads * parts;
  const WriteSide keys = write_side(write, false);
  for (int i = threadIdx.x; i < num_query_parts + num_key_parts; i += Config::kThreads) {
    if (i < num_query_parts) {
      turn_part<Config>(p, query_head<Config>(p, token, i / parts), cos_sin, i % parts);
      continue;
    }
    const int head = (i - num_query_parts) / parts;
    const RotatedPart<Config> turned = turn_part<Config>(p, key_head<Config>(p, token, head),
                                                         cos_sin, (i - num_query_parts) % parts);
    if (slot < 0) continue;
    store_in_cell<Config>(write, keys, cell, head, turned.first_element, turned.first);
    if constexpr (kHasSecond<Config>) {
      store_in_cell<Config>(write, keys, cell, head, turned.second_element, turned.second);
    }
  }
  if (slot < 0) return;
  // The rest of the keys, which does not rotate, and the values.
  const WriteSide values = write_side(write, true);
  const int rest_vectors = (keys.width - p.rotary_dim) / kVector;
  const int value_vectors = values.width / kVector;
  const int num_rest = p.num_kv_heads * rest_vectors;
  const int num_values = p.num_kv_heads * value_vectors;
  for (int i = threadIdx.x; i < num_rest + num_values; i += Config::kThreads) {
    const bool is_value = i >= num_rest;
    const WriteSide& side = is_value ? values : keys;
    const int vectors = is_value ? value_vectors : rest_vectors;
    const int index = is_value ? i - num_rest : i;
    const int head = index / vectors;
    const int element = index % vectors * kVector + (is_value ? 0 : p.rotary_dim);
    const i64 source = token * side.token_stride + static_cast<i64>(head) * side.width + element;
    store_in_cell<Config>(
        write, side, cell, head, element,
        load_vector<Config::kElement, kVector>(side.source + source * size_of(Config::kElement)));
  }
}

}  // namespace attn
