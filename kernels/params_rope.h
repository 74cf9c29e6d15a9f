// Arguments of the rotary position embedding (semantics §12.1).
#pragma once

#include "kernels/params.h"

namespace attn {

/// Rotates elements [0, rotary_dim) of every head in place: x' = x cos - y sin, y' = y cos + x sin,
/// each operation rounded to f32, the result to the element. MLA passes q_pe and k_pe: pointers to
/// the first rotated element of each head, key heads 1.
struct RopeParams {
  Element element;            // of query and key
  Element cache_element;      // f32 or `element`
  const i64* positions;       // [T], in [0, max_position)
  const void* cos_sin_cache;  // [max_position, rotary_dim]: cosines, then sines
  void* query;                // [T, H, D]
  i64 query_token_stride;
  i64 query_head_stride;
  void* key;  // [T, Hk, D]; or null
  i64 key_token_stride;
  i64 key_head_stride;
  i64 num_tokens;    // T
  int num_heads;     // H
  int num_kv_heads;  // Hk
  int rotary_dim;    // even, at most D
  int is_neox;       // 1: pairs (k, k + rotary_dim / 2); 0, GPT-J: (2k, 2k + 1)
};

}  // namespace attn
