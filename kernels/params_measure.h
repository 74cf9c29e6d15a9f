// Arguments of the kernels that measure the device and the referee, not attention: the reads behind
// the bandwidth ceiling, the faults planted to test that one broken kernel costs one case, the
// screening that compares every row of an output with attention in float64, and other inputs for
// every timed sample.
#pragma once

#include "kernels/params.h"

namespace attn {

/// A pass over `data` that combines all of its words, so that the compiler cannot drop the loads.
struct ReadParams {
  const void* data;  // [num_vectors] of 16 bytes
  i64 num_vectors;
  unsigned int* sink;  // [1]; written only if a word of the data has its highest bit set
};

/// The target is not checked: for an overrun it lies past the end of a buffer, for a crash in a
/// page that no process has.
struct PlantedFaultParams {
  unsigned int* target;  // [1]; where a planted write goes, or what a planted hang waits for
};

/// Tiles of screen.cuh, which the host plans its work by.
constexpr int kScreenThreads = 256;
constexpr int kScreenLanes = 16;  // threads that share a row: half a warp
constexpr int kScreenKeys = 64;   // of a tile

/// Sets of types, by which kernels leave out what reads the other ones: to compile the loads of a
/// type takes as long as all the rest of a tile.
template <Element kElement>
constexpr unsigned kScreenBit = 1u << static_cast<unsigned>(kElement);
/// What operands may be stored in, and outputs.
constexpr unsigned kScreenOperandElements = kScreenBit<Element::kF32> | kScreenBit<Element::kF16> |
                                            kScreenBit<Element::kBF16> | kScreenBit<Element::kF64>;
constexpr unsigned kScreenOutputElements = kScreenBit<Element::kF32> | kScreenBit<Element::kF16> |
                                           kScreenBit<Element::kBF16> | kScreenBit<Element::kE4M3>;

/// One (row, head) of an output `a` beside the float64 attention `r`, over some columns of V.
struct ScreenRecord {
  double error_squares;      // sum of (a - r)^2 over the columns that are finite in both
  double reference_squares;  // sum of r^2 over these
  double spread_squares;     // sum over the keys of p^2 |v|^2: the size of what was summed
  double largest_error;      // of |a - r|
  double lse;                // natural logarithm, of r; -inf for a row that sees nothing
  i64 misplaced;             // columns with NaN or an infinity where r has none, or the reverse
};

/// Some rows of one request that share a KV head, some of their keys and some columns of V: the
/// work of one CTA. Rows count (token of the request) * G + head of the group.
struct ScreenItem {
  i64 first_key;    // row of the request's first key in key and value
  int first_token;  // of the request
  int query_len;
  int seq_len;
  int kv_head;
  int first_row;
  int num_rows;
  int key_begin;  // keys [key_begin, key_end) of the request
  int key_end;
  int chunk;       // columns from chunk * columns of a CTA on
  int partial;     // first of its partial results; -1 = the keys are all that its rows see
  int num_splits;  // partial results that belong together; 0 where partial is -1
};

/// Rows of a dense tensor, in the type that they are stored in: f32, f16, bf16 or f64, of an output
/// also e4m3. Strides and the place of the first column are in elements.
struct ScreenOperand {
  Element element;
  const void* data;
  i64 row_stride;   // of a query row (token * H + head), of a key, of a row of a product
  i64 head_stride;  // of a KV head, of a head of a product
  i64 first;        // of the first column of row 0
  int width;        // columns; 0 = there is no such part
};

/// An output that is compared, [T, H, Dv].
struct ScreenOutputParams {
  Element element;
  const void* data;
  double scale;  // what a stored element is multiplied by
  double limit;  // the largest value that the output can hold, scale included
  /// 1: e4m3 codes, whose limit stands for all beyond it, and whose errors are the least that a
  /// value before it was rounded can have had. 0: beyond the limit come infinities.
  int saturates;
};

/// Scores are softmax_scale * (query . key + query_rope . key_rope): the second part of latent
/// attention lies in tensors of its own.
struct ScreenParams {
  ScreenOperand query;
  ScreenOperand key;
  ScreenOperand query_rope;
  ScreenOperand key_rope;
  ScreenOperand value;
  /// Rows of key and value in the order that requests see them, or null: in the order of the rows.
  const int* key_index;
  ScreenOutputParams output;
  int num_heads;     // H of query and output
  int first_head;    // of those that KV head 0 serves
  int group;         // heads that share a KV head
  int num_kv_heads;  // of key and value
  int v_head_size;
  int num_chunks;            // of the columns of V
  i64 num_keys;              // rows of key and value
  const int* visible_begin;  // [T]: the row sees keys [begin, end) of its request
  const int* visible_end;    // [T]
  double softmax_scale;
  double soft_cap;  // 0 = off
  Alibi alibi;
  const float* alibi_slopes;  // [H] or null
  const float* sinks;         // [H] or null
  /// [num_keys, Hk, chunks]: sum of v^2 over the finite columns of the chunk, or -1 - that sum
  /// where a column is not finite.
  double* value_squares;
  const ScreenItem* items;
  double* partial_sums;    // [partials, rows of a CTA, columns of a CTA]
  double* partial_states;  // [partials, rows of a CTA, 3]: largest score, sum, spread
  /// [T, H, Dv], of kernels that write rows here and do not compare them: `output` is not read.
  double* rows;
  i64 first_row;          // rows[0] is that of row first_row, which counts token * H + head
  ScreenRecord* records;  // [T, H, chunks]
};

/// product[row, head, column] = sum over depth of left[row, head, :] * right[head, :, column].
struct ScreenProductParams {
  ScreenOperand left;   // row_stride, head_stride; width = the depth
  ScreenOperand right;  // row_stride of the depth, head_stride; width = columns
  i64 column_stride;    // of `right`
  double* product;      // [rows, heads, columns]
  i64 num_rows;
  int num_heads;
};

/// Rows of attention that lie in memory beside an output, some columns of V at a time.
struct ScreenRowsParams {
  ScreenOutputParams output;
  const double* rows;         // [T, H, Dv]
  const ScreenRecord* sizes;  // [T, H, chunks] as ScreenParams::rows leaves them
  int v_head_size;
  int num_chunks;
  int chunk_columns;
  i64 num_rows;           // T * H
  ScreenRecord* records;  // [T, H, chunks]
};

/// Tiles of a product: rows and columns of a CTA.
constexpr int kScreenProductTile = 64;

/// Rows of latent attention, projected, beside an output; the sizes of the rows grow with the
/// weights that they were projected by.
struct ScreenCompareParams {
  ScreenOutputParams output;
  const double* rows;    // [num_rows, Dv], from row first_row on, which counts token * H + head
  const double* growth;  // [H]: how the weights of a head make vectors grow on average
  const ScreenRecord* latents;  // [T, H, chunks] of the latents
  int num_chunks;
  int num_heads;
  int v_head_size;
  i64 first_row;
  i64 num_rows;
  ScreenRecord* records;  // [T, H]
};

using u64 = unsigned long long;

/// Fresh signs for elements that lie side by side in the source and in the target.
struct RedrawParams {
  const void* source;  // [num_rows, row_elements] as the case has them
  void* target;        // the same shape; what a kernel reads
  u64 nonce;           // of the redraw; 0 = signs stay
  i64 num_rows;
  i64 row_elements;
  i64 first_index;   // of the first element in the tensor that signs are drawn for
  i64 index_stride;  // of a row there
};

/// One copy of bytes; source and target do not overlap.
struct BlockMove {
  const void* source;
  void* target;
  i64 bytes;
};

struct MoveParams {
  const BlockMove* moves;  // [the grid's height]; no target is another one's source or target
};

/// What is kept of an output.
struct SampleDigest {
  u64 hash;    // of bytes and places
  u64 poison;  // elements that are 0xFF in each of their bytes
  u64 nans;    // elements, poison among them
};

struct DigestParams {
  const void* data;  // on 16 bytes
  i64 bytes;
  Element element;  // poison and NaN are looked for in floating-point types
  u64 salt;         // makes equal bytes of two tensors differ in the hash
  SampleDigest* sums;
};

/// Memory that nobody may have written: bytes of a word that goes by addresses.
struct GuardedZone {
  const unsigned char* begin;
  i64 num_bytes;
};

/// A pass over zones.
struct ZoneScanParams {
  const GuardedZone* zones;  // [zones]
  unsigned int* broken;      // [zones]; set to 1 where a byte is another, else left as it is
  unsigned int word;         // what every address holds that is a multiple of 4
};

/// A reading of the clocks of one multiprocessor.
struct alignas(16) ClockReading {
  unsigned long long cycles;       // of the multiprocessor's clock
  unsigned long long nanoseconds;  // of the device's timer
};

struct ReadClocksParams {
  ClockReading* readings;  // [num_sms]; each written by a CTA on that multiprocessor
  unsigned int num_sms;
};

}  // namespace attn
