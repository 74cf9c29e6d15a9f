// Shared memory of the Hopper prefill kernel, and how its operands lie there; known to host and
// device. All of it is a function of a handful of sizes, so that the host chooses a tile that fits
// and describes the same boxes to the copy engine that the products read.
#pragma once

#include "kernels/common/platform.cuh"
#include "kernels/params_tiles.h"
#include "kernels/ptx/matrix_operand.cuh"

namespace attn {

/// What a tile of the kernel is made of.
struct HopperTile {
  int head_size;          // D, a multiple of 8, over pages of 16; of codes 16 and 32
  int v_head_size;        // Dv, the same
  int tile_n;             // keys, a multiple of 16, where products take codes of 32
  int stages;             // of the rings of keys and of values
  int consumers;          // warpgroups that compute, of 64 query rows each
  int block_size;         // of a paged cache; 0: ragged
  bool ahead = false;     // queries of the next row tile come while one is in work
  int operand_bytes = 2;  // of an element that the products take: 1 for e4m3, else 2
  int stored_bytes = 2;   // of a key or value in memory
  int line = 0;  // least bytes of a line of ragged keys and values of 16 bits, 64 or 128, to whole
                 // ones of which their rows are filled up; 0: the longest span that they consist of
  int int8_values = 0;  // of int8 scores, whose keys have scales: bytes of a value in memory, 1 or
                        // 2; its products take 2. 0: other scores
  int beside = 0;       // of a list whose tiles of few rows are done by warps beside the consumers
                        // (beside.cuh): stages of each of these; 0: there are none
  bool wide_values = false;     // of e4m3 scores: weights keep 16 bits, and so values become f16
  bool slope_products = false;  // ALiBi is a product of slopes and distances: kDistanceRows
  bool values_apart = false;    // values are f16 in memory, beside keys of one byte
};

ATTN_FN constexpr int value_operand_bytes(const HopperTile& tile) {
  return tile.int8_values != 0 || tile.wide_values ? 2 : tile.operand_bytes;
}
ATTN_FN constexpr int value_stored_bytes(const HopperTile& tile) {
  if (tile.values_apart) return 2;
  return tile.int8_values != 0 ? tile.int8_values : tile.stored_bytes;
}

/// Codes of one byte do not go into the products as they lie in memory: values of e4m3 products are
/// transposed, and codes beside queries of 16 bits become numbers of 16 bits, as do values whose
/// weights keep 16 bits: those of int8 (semantics §11.4), and of e4m3 where P is not rounded
/// (§10.5).
ATTN_FN constexpr bool transposes_values(const HopperTile& tile) {
  return value_operand_bytes(tile) == 1;
}
ATTN_FN constexpr bool converts_values(const HopperTile& tile) {
  return value_stored_bytes(tile) < value_operand_bytes(tile);
}
/// Of keys.
ATTN_FN constexpr bool converts_codes(const HopperTile& tile) {
  return tile.stored_bytes < tile.operand_bytes;
}

constexpr int kConsumerRows = 64;

/// Columns of a row in shared memory, of elements that have `bytes` bytes. Products take 32 bytes
/// at a time: what a row has not is filled up with zeros, by which the products stay as they are.
ATTN_FN constexpr int padded_columns(int columns, int bytes = 2) {
  const int step = 32 / bytes;
  return (columns + step - 1) / step * step;
}

/// Bytes of a line: the longest span that rows of so many elements consist of.
ATTN_FN constexpr int operand_span(int columns, int bytes = 2) {
  return columns * bytes % 128 == 0 ? 128 : (columns * bytes % 64 == 0 ? 64 : 32);
}
ATTN_FN constexpr int operand_chunks(int columns, int bytes = 2) {
  return columns * bytes / operand_span(columns, bytes);
}

/// Bytes of a line of keys or values. Why longer ones than their columns need, with zeros behind
/// them: the copy engine takes its time by lines, and 80 columns are five of 32 bytes but two of
/// 128. Products read the columns that there are, so that zeros cost shared memory alone.
ATTN_FN constexpr int side_span(const HopperTile& tile, int columns, int bytes) {
  const int span = operand_span(padded_columns(columns, bytes), bytes);
  return tile.block_size == 0 && bytes == 2 && tile.line > span ? tile.line : span;
}
/// Columns of a row of keys or values as it comes to shared memory: whole lines.
ATTN_FN constexpr int stored_columns(const HopperTile& tile, int columns, int bytes) {
  const int elements = side_span(tile, columns, bytes) / bytes;
  return (padded_columns(columns, bytes) + elements - 1) / elements * elements;
}

/// A tile of `rows` rows as one box of the copy engine brings it, chunk behind chunk: [chunk][row]
/// [line]. Query rows of a warpgroup and ragged keys lie like that.
ATTN_FN constexpr OperandLayout lines_layout(int span, int rows) {
  return {span, rows * span, 8 * span};
}
ATTN_FN constexpr OperandLayout chunked_layout(int columns, int rows, int bytes = 2) {
  return lines_layout(operand_span(columns, bytes), rows);
}
/// A tile that boxes of fewer rows make up, as pages are: [row / 8][chunk][row % 8][line], so that
/// every box is a piece of its own, whatever its rows are.
ATTN_FN constexpr OperandLayout grouped_layout(int columns, int bytes = 2) {
  const int span = operand_span(columns, bytes);
  return {span, 8 * span, operand_chunks(columns, bytes) * 8 * span};
}
/// Keys or values of a tile as boxes bring them.
ATTN_FN constexpr OperandLayout side_layout(const HopperTile& tile, int columns, int bytes) {
  return tile.block_size == 0 ? lines_layout(side_span(tile, columns, bytes), tile.tile_n)
                              : grouped_layout(columns, bytes);
}
/// Keys as the products read them.
ATTN_FN constexpr OperandLayout key_layout(const HopperTile& tile, int columns) {
  return converts_codes(tile) ? chunked_layout(columns, tile.tile_n)
                              : side_layout(tile, columns, tile.stored_bytes);
}
/// Values as the products read them. Transposed: a row a column of the values, whose keys are in
/// the order of code_place(); rows of 16 in that of code_row().
ATTN_FN constexpr OperandLayout value_layout(const HopperTile& tile, int columns) {
  if (transposes_values(tile)) return chunked_layout(tile.tile_n, columns, 1);
  return converts_values(tile) ? chunked_layout(columns, tile.tile_n)
                               : side_layout(tile, columns, value_stored_bytes(tile));
}

/// Where byte `offset` from the start of row `row` is stored, of a matrix that starts on a multiple
/// of eight lines.
template <int kSpan>
ATTN_FN constexpr u32 operand_place(const OperandLayout& layout, int row, int offset) {
  return swizzled<kSpan>(static_cast<u32>(row / 8 * layout.group_stride + row % 8 * kSpan +
                                          offset / kSpan * layout.chunk_stride + offset % kSpan));
}

/// e4m3 products take weights as accumulators of scores lie, four codes a register: thread t of the
/// four that share a row has keys 2t, 2t + 1, 2t + 8 and 2t + 9 of each 16, where the left operand
/// has columns 4t to 4t + 3. Since a sum does not depend on the order of its terms, the values of
/// those keys come at these places: the place of key `key` in a row of transposed values.
ATTN_FN constexpr int code_place(int key) {
  return key / 16 * 16 + key % 8 / 2 * 4 + key / 8 % 2 * 2 + key % 2;
}
/// Row of transposed values that has column `column`: of each 16 the even ones, then the odd ones,
/// as pairs of columns come apart. So column block 2m of the output has columns 16m + 2i and block
/// 2m + 1 columns 16m + 2i + 1: a thread's four of both are neighbours.
ATTN_FN constexpr int code_row(int column) {
  return column / 16 * 16 + column % 2 * 8 + column % 16 / 2;
}

/// Keys of a stage of the warps beside the consumers (beside.cuh).
constexpr int kBesideKeys = 16;

/// Rows of a box of keys: those of a tile, or of pages the most that divide tile and page.
ATTN_FN constexpr int box_rows(const HopperTile& tile) {
  int a = tile.beside > 0 ? kBesideKeys : tile.tile_n;
  int b = tile.block_size == 0 ? tile.tile_n : tile.block_size;
  while (b != 0) {
    const int rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/// Where every repetition of the widest swizzle starts, and so every operand.
constexpr int kHopperAlignment = 1024;

/// Where the producer leaves a row tile for the consumers (HandedItem), where it works ahead.
constexpr int kItemBytes = 128;

/// The right operand by which slopes of ALiBi get into the scores, bf16, as many columns as a tile
/// has keys. The first kSlopeTerms rows are distances of keys from the tile's last one, for the
/// terms that add up to a slope; the others are zero, since a step is 16 deep. Why the last one: a
/// slope takes weight from keys that are far away, so that what large sums lose counts for little.
constexpr int kDistanceRows = 16;
constexpr int kSlopeTerms = 3;  // of bf16: 24 bits
/// In boxes of 16 columns, as values lie that the products read across their lines.
ATTN_FN constexpr OperandLayout distance_layout() { return lines_layout(32, kDistanceRows); }
ATTN_FN constexpr int key_distance(int key, int tile_n) { return key - (tile_n - 1); }

/// Bundles of a list that are announced and not yet read by all.
constexpr int kQueueStages = 2;

/// Byte offsets from the first multiple of kHopperAlignment in the dynamic shared memory.
struct HopperLayout {
  int query_stages;  // row tiles whose queries are there at a time
  int query;         // of a warpgroup [64, D], and later its output [64, Dv]
  int query_bytes;   // from warpgroup to warpgroup
  int key;           // [tile_n, D] a stage
  int key_bytes;     // from stage to stage
  int value;         // [tile_n, Dv] a stage, or transposed
  int value_bytes;
  int code_key;  // codes as they come from memory, where the products take them otherwise: a stage
  int code_key_bytes;
  int code_value;
  int code_value_bytes;
  int staging;        // of a consumer warp, one after another: 16 rows of a span of the output on
  int staging_bytes;  // their way to memory, where queries have one place; 0: by way of that place
  int beside;         // [kBesideWarps][beside stages] keys and values of kBesideKeys
  int beside_bytes;   // from stage to stage
  int distances;      // of ALiBi by products, [kDistanceRows, tile_n]
  int key_scales;     // of int8 scores, f32 [tile_n] a stage of codes
  int rows;           // Row [64 * consumers]
  int tiles;          // RowTile of each consumer warp
  int items;          // kItemBytes a query stage
  int barriers;       // full and empty of every stage of keys, of values, of queries, and of codes;
                      // checked of every stage of values
  int found;          // u32 a stage of values: whether a value of it is NaN or infinite
  int queue;          // where the producer works ahead: full and empty of kQueueStages bundles of a
                      // list, then their numbers, int
  int beside_sums;    // f32 [kBesideWarps][kMostFewRows][Dv]
  int beside_rows;    // Row [kBesideWarps][16]
  int beside_states;  // float2 [kBesideWarps][kMostFewRows]
  int beside_barriers;  // [kBesideWarps][beside stages] full of keys and of values
  int beside_next;      // int: the tile that is drawn
  int total;            // with what the alignment may take
};

ATTN_FN constexpr int aligned_bytes(int bytes) {
  return (bytes + kHopperAlignment - 1) / kHopperAlignment * kHopperAlignment;
}

/// Stages of the rings of codes: one that is brought while another is transposed or converted.
constexpr int kCodeStages = 2;

/// What a CTA of SM 9.0 may have.
constexpr int kHopperSharedBytes = 232448;

/// The 16 and 32 bytes are a Row and a RowTile.
ATTN_FN constexpr HopperLayout hopper_layout_of(const HopperTile& tile, int query_stages,
                                                bool is_staged = false) {
  HopperLayout layout{};
  layout.query_stages = query_stages;
  const int columns = padded_columns(tile.head_size, tile.stored_bytes);
  const int v_stored = value_stored_bytes(tile);
  const int v_columns = padded_columns(tile.v_head_size, v_stored);
  const int query_line = columns * tile.operand_bytes;
  const int output_line = v_columns * 2;
  layout.query_bytes =
      aligned_bytes(kConsumerRows * (query_line > output_line ? query_line : output_line));
  layout.key_bytes = aligned_bytes(tile.tile_n * stored_columns(tile, columns, tile.stored_bytes) *
                                   tile.operand_bytes);
  layout.value_bytes = aligned_bytes(tile.tile_n * stored_columns(tile, v_columns, v_stored) *
                                     value_operand_bytes(tile));
  layout.code_key_bytes = converts_codes(tile) ? aligned_bytes(tile.tile_n * columns) : 0;
  layout.code_value_bytes = v_stored == 1 ? aligned_bytes(tile.tile_n * v_columns) : 0;
  layout.key = layout.query + layout.query_stages * tile.consumers * layout.query_bytes;
  layout.value = layout.key + tile.stages * layout.key_bytes;
  layout.code_key = layout.value + tile.stages * layout.value_bytes;
  layout.code_value = layout.code_key + kCodeStages * layout.code_key_bytes;
  layout.staging = layout.code_value + kCodeStages * layout.code_value_bytes;
  layout.staging_bytes = is_staged ? 16 * operand_span(v_columns) : 0;
  layout.beside = layout.staging + tile.consumers * 4 * aligned_bytes(layout.staging_bytes);
  layout.beside_bytes =
      tile.beside > 0 ? kBesideKeys * (columns + v_columns) * tile.operand_bytes : 0;
  layout.distances =
      aligned_bytes(layout.beside + kBesideWarps * tile.beside * layout.beside_bytes);
  layout.key_scales =
      layout.distances + (tile.slope_products ? kDistanceRows * tile.tile_n * 2 : 0);
  layout.rows = layout.key_scales + (tile.int8_values != 0 ? kCodeStages * tile.tile_n * 4 : 0);
  layout.tiles = layout.rows + tile.consumers * kConsumerRows * 16;
  layout.items = layout.tiles + tile.consumers * 4 * 32;
  layout.barriers = layout.items + layout.query_stages * kItemBytes;
  const int barriers =
      5 * tile.stages + 2 * layout.query_stages + (tile.stored_bytes == 1 ? 4 * kCodeStages : 0);
  layout.found = layout.barriers + barriers * 8;
  layout.queue = (layout.found + tile.stages * 4 + 7) / 8 * 8;
  layout.beside_sums = (layout.queue + (tile.ahead ? kQueueStages * 20 : 0) + 15) / 16 * 16;
  const int has_beside = tile.beside > 0 ? 1 : 0;
  layout.beside_rows =
      layout.beside_sums + has_beside * kBesideWarps * kMostFewRows * tile.v_head_size * 4;
  layout.beside_states = layout.beside_rows + has_beside * kBesideWarps * 16 * 16;
  layout.beside_barriers = layout.beside_states + has_beside * kBesideWarps * kMostFewRows * 8;
  layout.beside_next = layout.beside_barriers + kBesideWarps * tile.beside * 2 * 8;
  layout.total = layout.beside_next + has_beside * 4 + kHopperAlignment;
  return layout;
}

/// Where queries of two row tiles have no room beside keys and values, those of the next one come
/// when the last scores of this one are there, if its output can go another way; or else when that
/// has left.
ATTN_FN constexpr HopperLayout hopper_layout(const HopperTile& tile) {
  const HopperLayout two = hopper_layout_of(tile, 2);
  if (tile.ahead && two.total <= kHopperSharedBytes) return two;
  const HopperLayout staged = hopper_layout_of(tile, 1, true);
  return tile.ahead && staged.total <= kHopperSharedBytes ? staged : hopper_layout_of(tile, 1);
}

/// CTAs that share a multiprocessor. Those of one consumer are for short sequences, whose time goes
/// into waiting for the first tiles, and for the memory to take the output: several of them wait at
/// the same time. Three where O, S of 64 keys and P leave room in 128 registers a thread.
ATTN_FN constexpr int hopper_ctas(const HopperTile& tile) {
  if (tile.consumers != 1) return 1;
  if (tile.v_head_size > 192) return 1;  // a product names more registers than two leave at launch
  return tile.tile_n == 64 && tile.v_head_size <= 96 ? 3 : 2;
}

/// Registers of a thread once the roles have parted. Why these: 64 K registers for `ctas` times 128
/// threads that copy and the others, in steps of 8.
ATTN_FN constexpr int producer_registers(int consumers, int ctas) {
  if (consumers == 1) return ctas == 3 ? 32 : (ctas == 2 ? 40 : 56);
  return consumers == 3 ? 32 : 40;
}
ATTN_FN constexpr int consumer_registers(int consumers, int ctas) {
  if (consumers == 1) return ctas == 3 ? 128 : (ctas == 2 ? 216 : 240);
  return consumers == 3 ? 160 : 232;
}
/// With warps beside two consumers. S and P of a consumer take three quarters of a register a key.
ATTN_FN constexpr int producer_registers_beside() { return 32; }
ATTN_FN constexpr int consumer_registers_beside(int tile_n) { return 128 + tile_n / 16 * 8; }
ATTN_FN constexpr int beside_registers(int tile_n) {
  return 512 - producer_registers_beside() - 2 * consumer_registers_beside(tile_n);
}

}  // namespace attn
