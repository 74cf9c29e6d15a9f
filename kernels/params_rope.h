// Arguments of the rotary position embedding, RoPE (semantics §12.1). A pair (x, y) of elements of
// a head is a point of the plane that is turned by an angle proportional to the position of its
// token; dot products of turned queries and keys then depend on the distance of their positions
// only. The angles come as a table of cosines and sines, whose construction is the caller's.
#pragma once

#include "kernels/params.h"

namespace attn {

/// Rotates elements [0, rotary_dim) of every head in place: x' = x cos - y sin, y' = y cos + x sin,
/// each operation rounded to f32, the result to the element. Elements from rotary_dim on are
/// neither read nor written. MLA passes q_pe and k_pe: pointers to the first rotated element of
/// each head, key heads 1.
///
/// rope_write (semantics §12.2) does the same and stores the keys and the values of the tokens in
/// the cache that a CacheWriteParams describes. Its bytes must equal those of this operation and a
/// cache write in a row, so keys are rounded to `element` before they are quantised.
struct RopeParams {
  Element element;        // of query and key
  Element cache_element;  // f32 or `element`
  // Rows of the table are chosen by the absolute position of a token in its request, not by its
  // index in the batch. Angles may have another element than the heads: they are read as f32 either
  // way.
  const i64* positions;       // [T], in [0, max_position)
  const void* cos_sin_cache;  // [max_position, rotary_dim]: rotary_dim / 2 cosines, then sines
  // In place: what lies between heads and tokens by the strides is not touched.
  void* query;  // [T, H, D]
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

// ---- The rotation of heads by signs and the matrix of Hadamard (semantics §5.6), which spreads
// the large elements of a vector over all of it, so that 4 bits a column serve it.

/// Head sizes are powers of two up to this: the signs are a table of so many bits.
constexpr int kMaxRotatedHead = 512;

/// output = H (signs * x) for each token and head, or signs * (H x) / D when inverse, with the
/// matrix H of Walsh and Hadamard, H H = D. Sums are f32, in log2 D passes: of columns 1, 2, 4, ...
/// apart the lower becomes a + b and the upper a - b; the result is rounded once. Rows past
/// num_tokens are neither read nor written.
struct RotateHeadsParams {
  Element element;     // of source and output: f32, f16 or bf16
  const void* source;  // [T, H, D]
  i64 source_token_stride;
  i64 source_head_stride;
  void* output;  // [T, H, D]
  i64 output_token_stride;
  i64 output_head_stride;
  i64 num_tokens;
  int num_heads;
  int head_size;  // a power of two from 8 to kMaxRotatedHead
  int inverse;
};

}  // namespace attn
