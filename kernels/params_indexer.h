// Arguments of the indexer of sparse MLA (semantics §8.10). A small attention of its own, without
// values, says for every token which keys of its request matter: its keys lie in a cache beside
// that of the latents, in e4m3, and have no heads; its queries, e4m3 too, have many. What comes out
// are the slots that SparseParams (params_mla.h) takes.
#pragma once

#include "kernels/common/platform.cuh"
#include "kernels/params.h"

namespace attn {

constexpr int kIndexKey = 128;  // elements of a query and of a key
/// Of a token in a block: its codes, and the f32 scale that lies behind the codes of all tokens.
constexpr int kIndexEntryBytes = kIndexKey + 4;

/// Where the parts of key `offset` of a block of `block_size` keys lie, in bytes.
ATTN_FN constexpr i64 index_codes_at(i64 offset) { return offset * kIndexKey; }
ATTN_FN constexpr i64 index_scale_at(int block_size, i64 offset) {
  return i64{kIndexKey} * block_size + offset * 4;
}

/// Keys into slots: scale s = max(amax, 1e-4) / 448, code = rn_e4m3(key / s), a division. Bytes of
/// other slots are not touched.
struct IndexCacheWriteParams {
  Element source_element;  // f32, f16 or bf16
  const void* key;         // [num_slots, 128]
  i64 key_token_stride;
  unsigned char* cache;     // [NB, block_size * 132], on multiples of 4 bytes
  i64 block_stride;         // bytes, a multiple of 4
  const i64* slot_mapping;  // [num_slots]; negative = skip
  i64 num_slots;
  int block_size;
  int ue8m0;  // 1: s rounded up to a power of two
};

/// logits[t, j] = s_j * sum over h of w[t, h] * max(0, q[t, h] . k_j) for the keys j that token t
/// sees, j <= its position; -inf in the columns behind them. The codes are multiplied as they are:
/// scales of queries belong into the weights. Sums in f32.
struct IndexLogitsParams {
  const unsigned char* query;  // e4m3 [T, H, 128], on multiples of 16 bytes
  i64 query_token_stride;      // a multiple of 16, as that of heads
  i64 query_head_stride;
  const float* weights;  // [T, H]
  i64 weights_token_stride;
  const unsigned char* cache;  // as IndexCacheWriteParams has it, on multiples of 16 bytes
  i64 block_stride;            // a multiple of 16
  int block_size;
  const int* block_table;  // [B, block_table_stride]; entries past what is seen are never read
  i64 block_table_stride;
  const int* query_start_loc;  // [B+1]
  const int* seq_lens;         // [B]
  int num_requests;
  int num_heads;
  i64 num_tokens;
  float* logits;  // [T, num_columns]
  i64 logits_stride;
  i64 num_columns;  // at least the longest of seq_lens
};

/// The min(topk, keys that token t sees) keys with the largest logits, in ascending order of their
/// positions, then -1. Of keys with equal logits those come first that lie first; a NaN
/// counts as -inf. -0 and 0 are equal.
struct IndexTopkParams {
  const float* logits;  // [T, at least the keys that t sees]
  i64 logits_stride;
  const int* query_start_loc;  // [B+1]
  const int* seq_lens;         // [B]
  int num_requests;
  i64 num_tokens;
  int topk;
  const int* block_table;  // [B, block_table_stride]
  i64 block_table_stride;
  int block_size;
  const int* workspace_starts;  // [B] or null: >= 0, the request's keys are rows from there on
  int* indices;                 // [T, topk] positions, or null
  int* slots;                   // [T, topk]: block * block_size + offset, or null
};

}  // namespace attn
