// Arguments of the operations that multi-head latent attention (MLA) adds (semantics §8): products
// with the split weights, its cache and the ways out of it, rearranging, sparse and planned decode.
//
// MLA stores one entry per token for all heads: a latent kv_c of Lkv numbers, from which keys and
// values of every head follow by matrix products, and k_pe, R numbers that carry the rotary
// position. Attention on the entries directly is attend() with one KV head, D = Lkv + R and
// Dv = Lkv: a value is the first columns of its key.
#pragma once

#include "kernels/params.h"
#include "kernels/params_quant.h"

namespace attn {

/// C[b] = A[b] B[b], products and sums in f32, each sum rounded once to the element of C. A row of
/// C depends on its own row of A only, NaN and infinity included.
struct MatmulParams {
  Element element;         // of A and B: f32, f16 or bf16
  Element output_element;  // of C
  const void* a;           // [num_batches, m, k]
  i64 a_batch_stride;
  i64 a_row_stride;
  const void* b;       // [num_batches, k, n]; stored [num_batches, n, k] when b_transposed
  i64 b_batch_stride;  // 0: the same B for every batch
  i64 b_row_stride;
  int b_transposed;
  void* c;  // [num_batches, m, n]
  i64 c_batch_stride;
  i64 c_row_stride;
  i64 num_batches;
  i64 m;
  i64 n;
  i64 k;                // 0: C becomes 0
  int batch_invariant;  // the bytes of a row of C depend on neither m nor num_batches
};

/// What an entry of an MLA cache looks like.
enum class MlaEntry : unsigned char {
  kCopy,   // [kv_c | k_pe] in the element of the source
  kE4M3,   // [kv_c | k_pe] in e4m3, rn_e4m3(x / k_scale)
  kDsMla,  // kDsMlaEntryBytes bytes: semantics §8.4.3
  kModel1  // kModel1EntryBytes bytes, the last of them behind the block: semantics §8.4.6
};

/// Layout of an "fp8_ds_mla" entry: bytes [0, 512) are kv_c in e4m3, [512, 528) four f32 scales,
/// one for each tile of 128 codes, [528, 656) k_pe, 64 bf16 that are not quantised.
constexpr int kDsMlaLatent = 512;
constexpr int kDsMlaTile = 128;
constexpr int kDsMlaRope = 64;
constexpr int kDsMlaEntryBytes = 656;

/// Layout of a block of "fp8_model1_mla", FlashMLA's MODEL1_FP8Sparse: for each of its bs slots 576
/// bytes, of which [0, 448) are kv_c in e4m3 and [448, 576) k_pe, 64 bf16 that are not quantised;
/// then, from byte 576 bs on, 8 bytes for each slot: the ue8m0 scales of its 7 tiles of 64 codes
/// and a 0. Strides are bytes, slot_stride is 576, and a block starts on 16 bytes.
constexpr int kModel1Latent = 448;
constexpr int kModel1Tile = 64;
constexpr int kModel1Rope = 64;
constexpr int kModel1DataBytes = 576;
constexpr int kModel1ScaleBytes = 8;
constexpr int kModel1EntryBytes = kModel1DataBytes + kModel1ScaleBytes;

/// concat_and_cache_mla (semantics §8.4.1, §8.4.3): the entry of token t goes to slot_mapping[t].
struct MlaCacheWriteParams {
  MlaEntry format;
  Element source_element;  // f32, f16 or bf16; bf16 with kDsMla
  const void* kv_c;        // [num_slots, Lkv]
  i64 kv_c_token_stride;
  const void* k_pe;  // [num_slots, R]
  i64 k_pe_token_stride;
  void* cache;       // entry (block, slot) by the strides below, in elements of the cache;
  i64 block_stride;  //   those of kDsMla and kModel1 are bytes; entries of kDsMla start on 4
  i64 slot_stride;
  const i64* slot_mapping;  // [num_slots]; negative = skip
  i64 num_slots;
  int block_size;
  int kv_lora_rank;      // Lkv; 512 with kDsMla, 448 with kModel1
  int rope_head_dim;     // R; 64 with kDsMla and kModel1
  const float* k_scale;  // [1], kE4M3 only
};

/// Entries of a paged cache as requests see them.
struct MlaEntries {
  Element element;    // kU8 for fp8_ds_mla
  const void* cache;  // entry (block, slot) by the strides below
  i64 block_stride;   // in elements
  i64 slot_stride;
  const int* block_table;  // [B, block_table_stride]; entries past what is gathered are never read
  i64 block_table_stride;
  int block_size;
  int entry_size;  // elements: Lkv + R, or 656
};

/// gather_and_maybe_dequant_cache (semantics §8.4.2): row t is the entry at position
/// t - cu_seq_lens[b] + seq_starts[b] of request b = token_to_seq[t], times k_scale for a one-byte
/// element, rounded to the output element. Rows t >= cu_seq_lens[b+1] are not written.
struct MlaGatherParams {
  MlaEntries entries;  // any element but kU8
  Element output_element;
  void* output;  // [num_tokens, entry_size]
  i64 output_token_stride;
  const int* cu_seq_lens;   // [B+1]
  const int* token_to_seq;  // [num_tokens]
  const int* seq_starts;    // [B] or null: 0
  i64 num_tokens;
  const float* k_scale;  // [1] or null: 1
};

/// cp_gather_cache (semantics §8.4.4): bit copies of the entries from position seq_starts[b] on.
struct CpGatherParams {
  MlaEntries entries;
  void* output;  // [>= cu_seq_lens[B], entry_size], of the element of the cache
  i64 output_token_stride;
  const int* cu_seq_lens;  // [B+1]
  const int* seq_starts;   // [B] or null: 0; need not be multiples of the block size
  int num_requests;        // B
  i64 num_tokens;          // cu_seq_lens[B]
};

/// cp_gather_and_upconvert_fp8_kv_cache (semantics §8.4.3): rows workspace_starts[b] +
/// [0, seq_lens[b]) are positions 0.. of request b; other rows are not written.
struct DsMlaUpconvertParams {
  MlaEntries entries;  // kU8, 656
  void* output;        // bf16 [num_rows, 576]: code * tile scale rounded once, then k_pe
  i64 output_token_stride;
  const int* seq_lens;          // [B]
  const int* workspace_starts;  // [B] ascending
  int num_requests;             // B
  i64 num_rows;
  int is_model1;  // 1: entries of kModel1, output [num_rows, 512]
};

/// output[t, h] = [first[t, h] | second[t, h]], bits copied. Keys are k_nope and k_pe, which all
/// heads share by a head stride of 0; queries are ql_nope and q_pe. Without a second part its
/// columns become 0: that pads V to the width of K or, when all heads of a token are passed as one
/// row, adds heads of zeros.
struct ConcatParams {
  Element element;
  const void* first;  // [T, H, first_size]
  i64 first_token_stride;
  i64 first_head_stride;
  const void* second;  // [T, H, second_size] or null: zeros
  i64 second_token_stride;
  i64 second_head_stride;  // 0: the same for every head
  void* output;            // [T, H, first_size + second_size]
  i64 output_token_stride;
  i64 output_head_stride;
  i64 num_tokens;
  int num_heads;
  int first_size;
  int second_size;
};

/// What comes before the attention of an MLA decode, all in one (semantics §8.4, §8.7): the
/// products of the heads; `join`, whose first part they are; codes of the joined query, if
/// quantise.codes is given; heads of zeros behind the others; and new entries of the cache, if
/// write.cache is given. The same bytes as matmul(), concat(), quantise_fp8(), concat() and
/// write_mla_cache() one after the other, but for the order of the products' sums. D is the size of
/// a joined head.
///
/// `next_waits` is for kernels that wait for the query themselves (kernels/ptx/dependents.cuh). A
/// kernel of others may be launched in the same way and not wait: it would read what the query was.
struct LatentQueryParams {
  MatmulParams project;  // [m, heads, n], 16 bits; c may be left unwritten
  ConcatParams join;     // first: c, second: rope parts; output: [m, padded heads, D] in 16 bits,
                         // which may be left unwritten where codes are made
  StaticQuantiseParams quantise;  // codes: [m, padded heads, D], saturated ones are not counted
  ConcatParams pad;  // num_heads heads of zeros, or none: the same rows as the codes, or else the
                     // query, behind the heads of `join`; no first part
  MlaCacheWriteParams write;
  int next_waits;  // 1: the kernel behind it on the stream may start before the query is there
};

/// Codes that project_values() makes of its output.
enum class OutputCodes { kNone, kScale, kGroups, kBlocks };

/// What comes behind the attention of an MLA decode, all in one (semantics §8.7, §9): the products
/// of the heads side by side in rows, and codes of these rows for the next layer, by the one of the
/// three whose codes are given, if one is. The same bytes as matmul(), concat() and quantise_fp8(),
/// quantise_fp8_groups() or quantise_nvfp4() one after the other, but for the order of the
/// products' sums. What runs before it on the stream may write `project.a`, and nothing else that
/// it reads.
struct ValueOutputParams {
  MatmulParams project;           // c: [m, heads, n], 16 bits
  StaticQuantiseParams by_scale;  // of c, as are the others; saturated elements are not counted
  GroupQuantiseParams by_groups;  // likewise
  ConcatParams clear;             // zeros in all scales of by_blocks, or num_tokens 0
  Nvfp4QuantiseParams by_blocks;

  ATTN_FN OutputCodes codes() const {
    if (by_scale.codes != nullptr) return OutputCodes::kScale;
    if (by_groups.codes != nullptr) return OutputCodes::kGroups;
    return by_blocks.packed != nullptr ? OutputCodes::kBlocks : OutputCodes::kNone;
  }
};

/// output[i] = source[rows[i]], bits copied: reorg_kvcache with the rows of reorg_source_rows()
/// (semantics §8.6).
struct GatherRowsParams {
  Element element;
  const void* source;  // [*, width]
  i64 source_row_stride;
  void* output;  // [num_rows, width]
  i64 output_row_stride;
  const i64* rows;  // [num_rows], >= 0
  i64 num_rows;
  int width;
};

/// output[i, j, k, :] = source[i, j, k, :], each by its own strides: the transposes around the
/// collectives, and the one rounding from f32 when the elements differ. Source and output may not
/// overlap.
struct CopyParams {
  Element source_element;
  Element output_element;
  const void* source;  // [i, j, k, width] by source_strides
  i64 source_strides[3];
  void* output;  // [i, j, k, width] by output_strides
  i64 output_strides[3];
  i64 extents[3];
  i64 width;  // contiguous elements
};

/// Keys of a sparse row (semantics §8.9) are the entries at the listed slots of the cache in
/// AttendParams::kv (key, block_stride, token_stride_key, block_size). A slot that is listed twice
/// counts twice, and no causal test is made: whoever chose the slots has done that. The value of a
/// key is the first v_head_size elements of its entry. kv.value, block_table and seq_lens are never
/// read, nor are masks, ALiBi, soft-cap and sinks.
struct SparseParams {
  MlaEntry format;   // kCopy: kv.element, f32, f16 or bf16; kE4M3: codes times kv.k_scale[0]
                     // (1 when null); kDsMla: rounded to bf16, strides in bytes, D 576 and
                     // Dv 512; kModel1: the same with D 512 and Dv 448 or 512
  const int* slots;  // [T, slots_stride]: block * block_size + slot of the keys of a token
  i64 slots_stride;  // >= topk
  int topk;
  const int* topk_length;  // [T] leftmost entries that count, or null: topk
  i64 num_slots;           // slots < 0 or >= num_slots are no keys
};

/// Keys of a block of a decode plan, which is its unit of work (not a block of the cache).
constexpr int kPlanBlock = 64;
/// int32 of a part's record: begin_req, end_req (both inclusive, relative to first_request; none
/// when begin > end), begin_block of the first request, end_block (exclusive) of the last one,
/// begin_split (the number that the first request's split has), then three that no kernel reads.
constexpr int kPlanRecord = 8;

/// Decode by a plan (semantics §8.8) that deals the key blocks of all requests evenly to parts, one
/// CTA or a few each. A request that lies in one part is finished by attend_plan; the others leave
/// partials, a split for each part that has a share of them, which combine_plan makes into output
/// and LSE. Split g of token i of request b has the partial row
/// partial_start_loc[b] + g * query_len_b + i.
struct PlanParams {
  int num_parts;
  const int* parts;              // [num_parts, kPlanRecord]
  const int* num_splits;         // [num_requests + 1] cumulative
  const i64* partial_start_loc;  // [num_requests + 1]; a request with one split has no rows
  float* partial_output;         // [R, H, Dv], normalised; 0 when the split is empty
  float* partial_lse;            // [R, H]; -inf when the split is empty
};

/// What a plan is made of where the lengths are known on the device only (semantics §8.8, dense):
/// the same numbers as plan_decode() on the host gives, for PlanParams.
struct MakePlanParams {
  const int* query_start_loc;  // [B+1], as AttendParams has them
  const int* seq_lens;         // [B], >= 0
  int first_request;
  int num_requests;  // at most kMostPlanRequests
  int num_parts;     // >= 1
  int fixed_overhead;
  int* parts;              // [num_parts, kPlanRecord]
  int* num_splits;         // [num_requests + 1]
  i64* partial_start_loc;  // [num_requests + 1]
};
/// One CTA makes a plan, and has the requests in its shared memory.
constexpr int kMostPlanRequests = 8192;

}  // namespace attn
