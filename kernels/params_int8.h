// Arguments of the operations that only int8 attention needs (semantics §11): quantising its inputs
// and writing its caches. The attention itself is attend() with AttendParams::int8 set.
//
// Levels of the int8 backend: at level 1 keys and values are int8, at level 2 values keep their 16
// bits. Keys have a scale for every slot and head, values at level 1 one for every head and column.
#pragma once

#include "kernels/params.h"

namespace attn {

/// The modes of scaled_int8_quant_for_attn (semantics §11.2).
enum class Int8Granularity : unsigned char {
  kTokenHead,       // mode 2: s = max_d|x| / 127, code = rn_i8(x * (127 / max_d|x|))
  kChannelDynamic,  // mode 0: s = max_t|x| / 127, code = rn_i8(x / s)
  kChannelStatic    // mode 0 with given scales: code = rn_i8(x / s)
};

/// Quantises a [T, h, D] tensor; which elements share a scale is the granularity. A vector of zeros
/// gets scale 0 and codes 0. NaN takes no part in a maximum and becomes code 0.
struct Int8QuantiseParams {
  Element source_element;  // f16, bf16 or f32
  const void* source;      // [T, h, D]
  i64 source_token_stride;
  i64 source_head_stride;
  signed char* codes;  // [T, h, D]
  i64 code_token_stride;
  i64 code_head_stride;
  Int8Granularity granularity;
  float* scale;            // kTokenHead: (token, head) by the strides below; else [h, D],
                           // which kChannelStatic reads (finite, > 0) and never writes
  i64 scale_token_stride;  // [T, h]: h; transposed [h, T]: 1
  i64 scale_head_stride;   // [T, h]: 1; transposed [h, T]: T
  i64 num_tokens;          // T; with 0 the channel scales become 0
  int num_heads;           // h
  int head_size;           // D
};

/// reshape_and_cache_flash_int8 and _mix, and the save arguments of paged decode (semantics
/// §11.6): bits are copied, the key scales go to the cache of scales. Scales of values are static
/// and not stored per token.
struct Int8CacheWriteParams {
  const signed char* key;  // [T, Hk, D]
  i64 key_token_stride;
  i64 key_head_stride;
  const float* key_scale;      // (token, head) by the strides below
  i64 key_scale_token_stride;  // [T, Hk]: Hk; transposed [Hk, T]: 1
  i64 key_scale_head_stride;   // [T, Hk]: 1; transposed [Hk, T]: T
  Element value_element;       // kI8 at level 1; kF16 or kBF16 at level 2
  const void* value;           // [T, Hk, D]
  i64 value_token_stride;
  i64 value_head_stride;
  signed char* key_cache;  // [NB, Hk, bs, D] by the strides below
  void* value_cache;       // the same, in elements of V: level 2 has it in planes 1 and 2
  i64 block_stride;
  i64 slot_stride;
  i64 head_stride;
  float* key_scale_cache;  // [NB, Hk, bs] by the strides below
  i64 scale_block_stride;
  i64 scale_slot_stride;
  i64 scale_head_stride;
  i64 num_tokens;  // T
  int block_size;
  int num_kv_heads;
  int head_size;

  // Where token t goes: to slot_mapping[t], or, when that is null, through the block table to
  // position seq_len - query_len + i of its request (requests with seq_len 0 save nothing).
  const i64* slot_mapping;  // [T]; negative = skip; or null
  const int* block_table;   // [B, block_table_stride]
  i64 block_table_stride;
  const int* query_start_loc;  // [B+1]
  const int* seq_lens;         // [B], the new tokens included
  int num_requests;            // B
};

}  // namespace attn
