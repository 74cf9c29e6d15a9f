// Arguments of every operation, shared by host and device: plain structs with a shape on every
// pointer. The host fills one in, the CPU operations read it directly, and a kernel receives it by
// value as its __grid_constant__ parameter.
//
// Letters of the shapes, here and in the other params_*.h: T tokens of the batch, B requests, H
// query heads, Hk KV heads, G = H / Hk, D head size, Dv value head size, NB blocks of the cache, bs
// tokens of a block. Strides are in elements unless a comment says otherwise, the innermost stride
// is always 1, and all offsets are computed in 64 bits. Pointers are device pointers for kernels
// and host pointers for the CPU operations. Flags are int, and there is no long or
// size_t: host and device code come from different compilers, which must agree on the layout.
#pragma once

#include "kernels/common/platform.cuh"

namespace attn {

using i64 = long long;

/// Element types as the kernels see them; the order is that of attnbench::Dtype, and the host
/// converts between the two by value.
enum class Element : unsigned char { kF32, kF16, kBF16, kF64, kE4M3, kE5M2, kI8, kI32, kI64, kU8 };

/// Form of the ALiBi bias added to the score of key j for the row at position p (semantics §3.4):
/// slope * j, slope * (j - context_len), -slope * |p - j|, -slope * sqrt(max(p - j, 0)). A bias
/// that is the same for all keys of a row changes its LSE and the weight of a sink, so the forms
/// differ. The last three are those of the same names for calls whose rows and keys stand elsewhere
/// in their sequence than in the call: by ScoreParams::positions.
enum class Alibi : unsigned char {
  kNone,
  kKeyIndex,
  kContextRelative,
  kDistance,
  kSqrt,
  kGlobalKeyIndex,
  kGlobalDistance,
  kGlobalSqrt
};
ATTN_FN constexpr bool is_global(Alibi form) { return form >= Alibi::kGlobalKeyIndex; }
/// The form of the bias, wherever its positions come from.
ATTN_FN constexpr Alibi local_form(Alibi form) {
  if (form == Alibi::kGlobalKeyIndex) return Alibi::kKeyIndex;
  if (form == Alibi::kGlobalDistance) return Alibi::kDistance;
  return form == Alibi::kGlobalSqrt ? Alibi::kSqrt : form;
}
/// The form with the same bias by global positions; there is none of kContextRelative.
ATTN_FN constexpr Alibi global_form(Alibi form) {
  if (form == Alibi::kKeyIndex) return Alibi::kGlobalKeyIndex;
  if (form == Alibi::kDistance) return Alibi::kGlobalDistance;
  return form == Alibi::kSqrt ? Alibi::kGlobalSqrt : form;
}

/// Where rows and keys of a call stand in their sequences (semantics §7.1): those of one rank of a
/// group that stripes its tokens in runs of `interleave`. Only biases go by them; masks go by the
/// positions in the call.
struct GlobalPositions {
  const int* first_rows;  // [B] of the first row of the request; null: positions are the call's
  const int* first_keys;  // [B] index on the rank of the first key; or null: 0
  int interleave;         // I
  int world_size;         // W; 1: keys follow each other from first_keys on
  int rank;
};
/// Of the key with this index on the rank.
ATTN_FN constexpr int global_key(const GlobalPositions& of, int index) {
  return index / of.interleave * of.interleave * of.world_size + of.rank * of.interleave +
         index % of.interleave;
}

/// Masks and score transforms (semantics §3), one per launch.
struct ScoreParams {
  float softmax_scale;  // q_scale (and k_scale where it is folded) included
  float soft_cap;       // 0 = off
  int window_left;      // -1 = unlimited
  int window_right;     // -1 = unlimited; 0 when causal
  Alibi alibi;
  const float* alibi_slopes;  // [H] or null; natural units, not multiplied by softmax_scale
  const float* sinks;         // [H] or null; score of a key without a value (semantics §3.5)
  const int* mm_ranges;       // [B, R, 2] positions, inclusive, (0,0) = none; or null
  int num_mm_ranges;          // R
  GlobalPositions positions;  // of the global forms of `alibi`
};

/// How a cache holds its numbers. In the packed ones a byte has two codes, the even column in the
/// low nibble; their element is kU8, so that their strides are bytes.
enum class KvCoding : unsigned char {
  kElements,  // numbers of KvParams::element
  kInt4,      // 0 to 15 less a zero point, which lies in the low 4 bits of the f32 scale (§5.6)
  kNvfp4,     // e2m1 times the e4m3 scale of its block of 16 columns (§5.7)
  // Slots that a key and its value share (§5.8, slot_codes.cuh): KvParams::key and ::value are the
  // two parts of the first slot. Named by the bits of a key's and of a value's codes.
  kSlotK8V4,
  kSlotK4V4,
  kSlotK3V4,
  kSlotK3V3
};
ATTN_FN constexpr bool shares_slots(KvCoding coding) { return coding >= KvCoding::kSlotK8V4; }
/// 8: keys in e4m3; fewer: indices of centroids of rotated keys.
ATTN_FN constexpr int slot_key_bits(KvCoding coding) {
  return coding == KvCoding::kSlotK8V4 ? 8 : (coding == KvCoding::kSlotK4V4 ? 4 : 3);
}
ATTN_FN constexpr int slot_value_bits(KvCoding coding) {
  return coding == KvCoding::kSlotK3V3 ? 3 : 4;
}
ATTN_FN constexpr bool has_rotated_keys(KvCoding coding) {
  return shares_slots(coding) && slot_key_bits(coding) < 8;
}
/// Columns that share a scale of kNvfp4, and what its head sizes are multiples of: the scales of
/// values are swizzled by groups of four.
constexpr int kKvScaleBlock = 16;
constexpr int kKvSwizzledHead = 64;

/// Where the block scales of a page lie that stand behind its codes (semantics §5.7): that of the
/// columns 16 g and on of (block, slot, head) at block * block_stride + slot * slot_stride + head *
/// head_stride + g, those of the values swizzled within four slots. In bytes.
struct BlockScales {
  unsigned char* key;  // null where there are none
  unsigned char* value;
  i64 block_stride;
  i64 slot_stride;
  i64 head_stride;
};

/// K and V, either paged (block_table set) or ragged (kv_start_loc set). Slots of the cache that
/// belong to no key of the batch, and their scales, may hold anything, NaN included: what is read
/// of them on the way (the rest of a vector or of a sector) never reaches a result.
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
  const i64* kv_start_loc;  // [B+1] or null; keys of request b are rows kv_start_loc[b] and on
  const float* k_scale;     // [Hk] or null: 1; per-tensor scales are expanded; one-byte K only
  const float* v_scale;     // [Hk] or null: 1; one-byte V only
  const float* key_scales;  // per-token-head, else null: scale of slot (block, s, head) at
  const float*
      value_scales;  //   block*scale_block_stride + s*scale_slot_stride + head*scale_head_stride
  i64 scale_block_stride;  // in floats
  i64 scale_slot_stride;
  i64 scale_head_stride;
  int round_dequantized;  // 1: k_scale*code is rounded to the query element (§4.4 mode 1)
  KvCoding coding;
  BlockScales block_scales;  // kNvfp4; k_scale and v_scale multiply on top
  const float* centroids;    // [2^bits] ascending, of rotated keys; else null
  /// The last columns of every key where all heads share them and they have a place of their own:
  /// [S, R] of `element`, key s of the batch at s * rope_token_stride. The columns before them are
  /// then `key` [S, Hk, D - R]. Ragged keys of KvCoding::kElements only. Null: keys are whole.
  const void* rope;
  i64 rope_token_stride;  // in elements
  int rope_size;          // R < D; read where there is a rope
  /// Paged codes of one byte whose values have become f16, number for number, in pages of their
  /// own: `value` points at these, and the scales of values are still to be applied. Entries as in
  /// block_table, in rows of as many columns. Null: values have the pages and the type of keys.
  const int* value_block_table;
  i64 value_block_stride;
};

/// int8 queries and keys (semantics §11.4): s = (softmax_scale * (q_s * k_s)) * S with the exact
/// integer S = q . k; k_s is KvParams::key_scales. Off when query_scale is null.
struct Int8ScoreParams {
  const float* query_scale;          // >= 0, (token, head) by the strides below; or null
  i64 query_scale_token_stride;      // [T, H]: H; transposed [H, T]: 1
  i64 query_scale_head_stride;       // [T, H]: 1; transposed [H, T]: T
  Element value_element;             // kI8 at level 1; the 16-bit element of V at level 2
  const float* value_channel_scale;  // [Hk, Dv] at level 1; or null
};

/// Factor of the probabilities before they are rounded to e4m3, divided out of the output. e4m3 has
/// its least normal number at 2^-6, so that without a shift every probability below 1/64 would lose
/// bits; with 2^8 that starts at 2^-14, and the largest one, 256, is still below the limit of 448.
constexpr float kE4M3ProbabilityShift = 256.0f;

/// Attention (semantics §3): for every query row the softmax over the keys that it may see, times
/// their values. Requests are independent of each other. The rows of request b are tokens
/// [query_start_loc[b], query_start_loc[b+1]), aligned with the end of its keys: row i has position
/// seq_lens[b] - query_len + i. Only rows of the requests named by first_request and num_requests
/// are written; a row that sees no key and has no sink becomes 0 with LSE -inf.
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
  const int* query_start_loc;  // [B+1] tokens; non-decreasing, from 0 to T
  const int* seq_lens;         // [B] keys of a request, those of its new tokens included
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
                         //   the sum of the row is of the values before it
  int fast_fp8_sums;  // 1: sums of e4m3 products may keep what the matrix units keep (§10.5)
  /// No request of this call has more keys, as far as the caller knows when it launches; 0 where it
  /// does not. Only the time depends on it.
  int max_seq_len;
  i64 num_query_tokens;  // T, likewise
};

/// Keys of a request are dealt to splits in whole tiles of this many, so that the splits of all
/// realisations have the same bounds and partial results can be compared between them.
constexpr int kSplitTile = 64;

/// Split-KV (flash decoding): split g of a request covers its g-th run of
/// cdiv(cdiv(seq_len, kSplitTile), num_splits) tiles; partials are normalised outputs with an LSE.
/// Split 0 includes the sink, no other split does: it must count once in the combined row.
struct SplitParams {
  int num_splits;
  i64 num_tokens;         // T
  float* partial_output;  // [num_splits, T, H, Dv] f32, normalised; 0 when the split is empty
  float* partial_lse;     // [num_splits, H, T]; -inf when the split is empty
  /// [num_arrivals()] zeros, or null. Where there are any, attend_splits() makes output and LSE
  /// too, as combine_splits() would, and leaves zeros again; partial results are then its own
  /// affair.
  int* arrivals = nullptr;
};

/// Rows of one KV head that whoever joins splits waits for together, at least.
constexpr int kArrivalRows = 16;
/// Counters that SplitParams::arrivals needs: one for each request, KV head and kArrivalRows rows.
ATTN_FN constexpr i64 num_arrivals(int num_requests, int num_heads, int num_kv_heads,
                                   int max_query_len) {
  const i64 rows = static_cast<i64>(max_query_len) * (num_heads / num_kv_heads);
  return (rows + kArrivalRows - 1) / kArrivalRows * num_requests * num_kv_heads;
}

/// Triton's 3D segments (semantics §4.3): unnormalised partials. With m_g the largest score of a
/// row in segment g, acc_g = sum of e^(s - m_g) v and l_g = sum of e^(s - m_g). A kernel may store
/// another m_g near the largest score, as long as acc_g and l_g belong to it. Segments past the
/// active ones of a request are never read and need not be written.
struct SegmentParams {
  int num_segments;       // NSEG
  int tile;               // TILE
  float* segment_output;  // [T, H, NSEG, Dv]; acc_g
  float* segment_max;     // [T, H, NSEG]; m_g, natural units; -inf when no key is visible
  float* segment_expsum;  // [T, H, NSEG]; l_g
};

/// merge_attn_states (semantics §6.3): two partial results of the same rows over different keys,
/// prefix (p) and suffix (s), become one. With LSE = ln(e^p + e^s) the output is
/// prefix * e^(p - LSE) + suffix * e^(s - LSE). An LSE of either infinity means that no key was
/// seen; such a side contributes exactly 0, whatever it holds. Rows t >= num_merged copy the
/// suffix; their prefix is not read and may be garbage.
struct MergeParams {
  Element element;  // of prefix and suffix
  Element output_element;
  void* output;               // [T, H, D]
  float* output_lse;          // [H, output_lse_stride] or null
  i64 output_lse_stride;      // >= T
  const void* prefix_output;  // [T, H, D], heads prefix_head_stride apart
  const float* prefix_lse;    // [H, T] natural log
  const void* suffix_output;  // [T, H, D] contiguous
  const float* suffix_lse;    // [H, T] natural log
  i64 num_tokens;
  i64 num_merged;  // prefill_tokens_with_context, or num_tokens
  int num_heads;
  int head_size;
  i64 prefix_head_stride;  // >= head_size; token stride is num_heads * head stride
  float output_scale;      // > 0: the e4m3 output is o * (1 / output_scale), saturated; else 0
};

/// reshape_and_cache_flash and the per-token-head write (semantics §5.1, §5.5): new keys and values
/// are scattered into the paged cache. Token t goes to slot_mapping[t]; no two tokens may share a
/// slot, since the order of their writes is open. Nothing else of the cache is written.
struct CacheWriteParams {
  Element source_element;
  Element cache_element;
  const void* key;    // [num_slots, Hk, D]; heads are contiguous within a token
  const void* value;  // [num_slots, Hk, Dv]; the same
  i64 key_token_stride;
  i64 value_token_stride;
  void* key_cache;  // element (block, slot, head, d) by the strides below
  void* value_cache;
  i64 block_stride;
  i64 slot_stride;
  i64 head_stride;
  const i64* slot_mapping;  // [num_slots]; slot = block * block_size + s; negative = skip
  i64 num_slots;
  int block_size;
  int num_kv_heads;
  int head_size;
  int v_head_size;
  int quantise;  // 0: bit copy; 1: per-tensor / per-head fp8; 2: per-token-head; 3: kInt4, which
                 // rotates each vector first; 4: kNvfp4; 5: slots that keys and values share
  const float* k_scale;  // [Hk], > 0, divide the source; read when quantise is 1 or 4
  const float* v_scale;  // [Hk], the same
  float* key_scales;     // written when quantise is 2 or 3: scale views, strides in floats
  float* value_scales;
  i64 scale_block_stride;
  i64 scale_slot_stride;
  i64 scale_head_stride;
  int int8_truncate;         // legacy rounding of per-token-head int8
  BlockScales block_scales;  // written when quantise is 4
  KvCoding coding;           // read when quantise is 5
  const float* centroids;    // [2^bits] ascending, where that has rotated keys; else null
};

}  // namespace attn
