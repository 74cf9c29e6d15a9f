// Shared memory of the Hopper prefill kernel, and how its operands lie there; known to host and
// device. All of it is a function of a handful of sizes, so that the host chooses a tile that fits
// and describes the same boxes to the copy engine that the products read.
#pragma once

#include "kernels/common/platform.cuh"
#include "kernels/ptx/matrix_operand.cuh"

namespace attn {

/// What a tile of the kernel is made of.
struct HopperTile {
  int head_size;    // D, a multiple of 8, over pages of 16
  int v_head_size;  // Dv, the same
  int tile_n;       // keys, a multiple of 16
  int stages;       // of the rings of keys and of values
  int consumers;    // warpgroups that compute, of 64 query rows each
  int block_size;   // of a paged cache; 0: ragged
};

constexpr int kConsumerRows = 64;

/// Columns of a row in shared memory. Products take 16 at a time: what a row has not is filled up
/// with zeros, by which the products stay as they are.
ATTN_FN constexpr int padded_columns(int columns) { return (columns + 15) / 16 * 16; }

/// Bytes of a line: the longest span that the rows of 16-bit elements consist of.
ATTN_FN constexpr int operand_span(int columns) {
  return columns % 64 == 0 ? 128 : (columns % 32 == 0 ? 64 : 32);
}
ATTN_FN constexpr int operand_chunks(int columns) { return columns * 2 / operand_span(columns); }

/// A tile of `rows` rows as one box of the copy engine brings it, chunk behind chunk: [chunk][row]
/// [line]. Query rows of a warpgroup and ragged keys lie like that.
ATTN_FN constexpr OperandLayout chunked_layout(int columns, int rows) {
  const int span = operand_span(columns);
  return {span, rows * span, 8 * span};
}
/// A tile that boxes of fewer rows make up, as pages are: [row / 8][chunk][row % 8][line], so that
/// every box is a piece of its own, whatever its rows are.
ATTN_FN constexpr OperandLayout grouped_layout(int columns) {
  const int span = operand_span(columns);
  return {span, 8 * span, operand_chunks(columns) * 8 * span};
}
ATTN_FN constexpr OperandLayout side_layout(const HopperTile& tile, int columns) {
  return tile.block_size == 0 ? chunked_layout(columns, tile.tile_n) : grouped_layout(columns);
}

/// Rows of a box of keys: those of a tile, or of pages the most that divide tile and page.
ATTN_FN constexpr int box_rows(const HopperTile& tile) {
  int a = tile.tile_n;
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

/// Byte offsets from the first multiple of kHopperAlignment in the dynamic shared memory.
struct HopperLayout {
  int query;        // of a warpgroup [64, D], and later its output [64, Dv]
  int query_bytes;  // from warpgroup to warpgroup
  int key;          // [tile_n, D] a stage
  int key_bytes;    // from stage to stage
  int value;        // [tile_n, Dv] a stage
  int value_bytes;
  int rows;      // Row [64 * consumers]
  int tiles;     // RowTile of each consumer warp
  int barriers;  // full and empty of every stage of keys, then of values
  int total;     // with what the alignment may take
};

ATTN_FN constexpr int aligned_bytes(int bytes) {
  return (bytes + kHopperAlignment - 1) / kHopperAlignment * kHopperAlignment;
}

/// The 16 and 32 bytes are a Row and a RowTile.
ATTN_FN constexpr HopperLayout hopper_layout(const HopperTile& tile) {
  HopperLayout layout{};
  const int columns = padded_columns(tile.head_size);
  const int v_columns = padded_columns(tile.v_head_size);
  layout.query_bytes =
      aligned_bytes(kConsumerRows * (columns > v_columns ? columns : v_columns) * 2);
  layout.key_bytes = aligned_bytes(tile.tile_n * columns * 2);
  layout.value_bytes = aligned_bytes(tile.tile_n * v_columns * 2);
  layout.key = layout.query + tile.consumers * layout.query_bytes;
  layout.value = layout.key + tile.stages * layout.key_bytes;
  layout.rows = layout.value + tile.stages * layout.value_bytes;
  layout.tiles = layout.rows + tile.consumers * kConsumerRows * 16;
  layout.barriers = layout.tiles + tile.consumers * 4 * 32;
  layout.total = layout.barriers + 4 * tile.stages * 8 + kHopperAlignment;
  return layout;
}

/// Registers of a thread once the roles have parted. Why these: 64 K registers for 128 threads that
/// copy and the others, in steps of 8.
ATTN_FN constexpr int producer_registers(int consumers) { return consumers == 3 ? 32 : 40; }
ATTN_FN constexpr int consumer_registers(int consumers) { return consumers == 3 ? 160 : 232; }

}  // namespace attn
