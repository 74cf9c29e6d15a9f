// Arguments of every operation, shared by host and device: plain structs with a shape on every
// pointer. Strides are in elements; all offsets are computed in 64 bits.
#pragma once

#include "kernels/common/platform.cuh"

namespace attn {

using i64 = long long;

/// Element types as the kernels see them; the order is that of attnbench::Dtype.
enum class Element : unsigned char { kF32, kF16, kBF16, kF64, kE4M3, kE5M2, kI8, kI32, kI64, kU8 };

enum class Alibi : unsigned char { kNone, kKeyIndex, kContextRelative, kDistance, kSqrt };

/// Masks and score transforms (semantics §3), one per launch.
struct ScoreParams {
  float softmax_scale;  // q_scale (and k_scale where it is folded) included
  float soft_cap;       // 0 = off
  int window_left;      // -1 = unlimited
  int window_right;     // -1 = unlimited; 0 when causal
  Alibi alibi;
  const float* alibi_slopes;  // [H] or null
  const float* sinks;         // [H] or null
  const int* mm_ranges;       // [B, R, 2] inclusive, (0,0) = none; or null
  int num_mm_ranges;          // R
};

/// K and V, either paged (block_table set) or ragged (kv_start_loc set).
struct KvParams {
  Element element;
  const void* key;       // paged: [NB, bs, Hk, D] by the strides below; ragged: [S, Hk, D]
  const void* value;     // the same with Dv; its own base, the same strides if paged
  i64 block_stride;      // paged only
  i64 token_stride_key;  // slot stride when paged
  i64 token_stride_value;
  i64 head_stride_key;
  i64 head_stride_value;
  const int* block_table;  // [B, block_table_stride]; entries past seq_lens are never read
  i64 block_table_stride;
  int block_size;
  const i64* kv_start_loc;  // [B+1] or null
  const float* k_scale;     // [Hk] or null; per-tensor scales are expanded
  const float* v_scale;     // [Hk] or null
  const float* key_scales;  // per-token-head: scale of slot (block, s, head) at
  const float*
      value_scales;  //   block*scale_block_stride + s*scale_slot_stride + head*scale_head_stride
  i64 scale_block_stride;  // in floats
  i64 scale_slot_stride;
  i64 scale_head_stride;
  int round_dequantized;  // 1: k_scale*code is rounded to the query element (§4.4 mode 1)
};

/// int8 queries and keys (semantics §11.4): s = (softmax_scale * (q_s * k_s)) * S with the exact
/// integer S = q . k; k_s is KvParams::key_scales. Off when query_scale is null.
struct Int8ScoreParams {
  const float* query_scale;          // (token, head) by the strides below; or null
  i64 query_scale_token_stride;      // [T, H]: H; transposed [H, T]: 1
  i64 query_scale_head_stride;       // [T, H]: 1; transposed [H, T]: T
  Element value_element;             // kI8 at level 1; the 16-bit element of V at level 2
  const float* value_channel_scale;  // [Hk, Dv] at level 1; or null
};

/// 2^8, so that small probabilities keep their mantissa in e4m3; 256 is far from its limit.
constexpr float kE4M3ProbabilityShift = 256.0f;

struct AttendParams {
  Element query_element;
  Element output_element;
  const void* query;  // [T, H, D]
  i64 query_token_stride;
  i64 query_head_stride;
  void* output;  // [T, H, Dv]; rows >= T are never written
  i64 output_token_stride;
  i64 output_head_stride;
  float* lse;  // [H, lse_stride] natural log, -inf for an empty row; or null
  i64 lse_stride;
  float output_scale;          // > 0: the e4m3 output is o * (1 / output_scale), saturated; else 0
  const int* query_start_loc;  // [B+1]
  const int* seq_lens;         // [B]
  int first_request;           // requests [first_request, first_request + num_requests) are done
  int num_requests;
  int num_heads;     // H
  int num_kv_heads;  // Hk
  int head_size;     // D
  int v_head_size;   // Dv
  ScoreParams score;
  KvParams kv;
  Int8ScoreParams int8;  // attend, attend_splits and combine_splits honour it
  int batch_invariant;   // 1: which kernel runs may not depend on the other requests
  /// No request of this call has more query rows; what launches on a GPU are sized by. CPU
  /// realisations do not look at it.
  int max_query_len;
  int e4m3_probability;  // 1: e^(s - m) * kE4M3ProbabilityShift is rounded to e4m3 for P V (§10.5);
};                       //   the sum of the row is of the values before it

/// Keys of a request are dealt to splits in whole tiles of this many.
constexpr int kSplitTile = 64;

/// Split-KV (flash decoding): split g of a request covers its g-th run of
/// cdiv(cdiv(seq_len, kSplitTile), num_splits) tiles; partials are normalised outputs with an LSE.
/// The sink counts in split 0 alone.
struct SplitParams {
  int num_splits;
  i64 num_tokens;         // T
  float* partial_output;  // [num_splits, T, H, Dv] f32, normalised; 0 when the split is empty
  float* partial_lse;     // [num_splits, H, T]; -inf when the split is empty
};

/// Triton's 3D segments (semantics §4.3): unnormalised partials.
struct SegmentParams {
  int num_segments;       // NSEG
  int tile;               // TILE
  float* segment_output;  // [T, H, NSEG, Dv]; acc_g
  float* segment_max;     // [T, H, NSEG]; m_g
  float* segment_expsum;  // [T, H, NSEG]; l_g
};

/// merge_attn_states (semantics §6.3). Rows t >= num_merged copy the suffix.
struct MergeParams {
  Element element;  // of prefix and suffix
  Element output_element;
  void* output;               // [T, H, D]
  float* output_lse;          // [H, output_lse_stride] or null
  i64 output_lse_stride;      // >= T
  const void* prefix_output;  // [T, H, D]
  const float* prefix_lse;    // [H, T]
  const void* suffix_output;  // [T, H, D]
  const float* suffix_lse;    // [H, T]
  i64 num_tokens;
  i64 num_merged;  // prefill_tokens_with_context, or num_tokens
  int num_heads;
  int head_size;
  i64 prefix_head_stride;  // >= head_size; token stride is num_heads * head stride
  float output_scale;      // > 0: the e4m3 output is o * (1 / output_scale), saturated; else 0
};

/// reshape_and_cache_flash and the per-token-head write (semantics §5.1, §5.5).
struct CacheWriteParams {
  Element source_element;
  Element cache_element;
  const void* key;    // [num_slots, Hk, D]
  const void* value;  // [num_slots, Hk, Dv]
  i64 key_token_stride;
  i64 value_token_stride;
  void* key_cache;  // element (block, slot, head, d) by the strides below
  void* value_cache;
  i64 block_stride;
  i64 slot_stride;
  i64 head_stride;
  const i64* slot_mapping;  // [num_slots]; negative = skip
  i64 num_slots;
  int block_size;
  int num_kv_heads;
  int head_size;
  int v_head_size;
  int quantise;          // 0: bit copy; 1: per-tensor / per-head fp8; 2: per-token-head
  const float* k_scale;  // [Hk]
  const float* v_scale;  // [Hk]
  float* key_scales;     // per-token-head scale views, strides in floats
  float* value_scales;
  i64 scale_block_stride;
  i64 scale_slot_stride;
  i64 scale_head_stride;
  int int8_truncate;  // legacy rounding of per-token-head int8
};

}  // namespace attn
