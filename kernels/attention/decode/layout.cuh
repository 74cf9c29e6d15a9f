// Shared memory of the decode kernels, known to host and device. Most of it is for the rings:
// kStages steps of 16 keys and values for every warp, as many as hide the latency of device memory.
#pragma once

#include "kernels/common/lines.cuh"
#include "kernels/common/platform.cuh"

namespace attn {

/// Of the scale behind the codes of a cell (cells.cuh).
constexpr int kCellScaleBytes = 4;

/// Bytes between rows of a tile of keys or values of `element_bytes` each, 2, or 1 for codes;
/// `cells`: rows are those of cells.cuh, 4 bytes of a scale behind the codes of each of `heads`
/// heads, and bytes before them, no more than 32 in all. Why whole sectors of 32 bytes: the L2
/// sends a sector twice if its halves go to different 32 bytes of shared memory, which costs more
/// than the bank conflicts of two rows at a time do. Measured on one NVIDIA H200, 2026-11-21, 32/8
/// heads, D128, B64 S8192, GB/s with rows an odd number of 16 bytes apart and with these: bf16 4132
/// and 4313, e4m3 3830 and 4028, e4m3 with a scale per token and head 3061 and 3277. Why an odd
/// number: four rows then lie in different banks. Rows of 16-bit elements that are whole lines lie
/// next to each other: tile_offset() (products.cuh) puts their pieces in different banks, and an
/// eighth of the memory is saved.
ATTN_FN constexpr int decode_pitch(int columns, int element_bytes, bool cells, int heads = 1) {
  columns *= heads;
  if (element_bytes == 2 && columns * 2 % kLineBytes == 0) return columns * 2;
  const int sectors = (columns * element_bytes + (cells ? 32 : 0) + 31) / 32;
  return (sectors | 1) * 32;
}

/// Why: a line of the L2 that goes to one line of shared memory is requested once, not twice.
constexpr int kRingAlignment = 128;

/// Byte offsets; every part starts on 16 bytes, the rings on kRingAlignment.
struct DecodeLayout {
  int rows;          // Row [row_blocks * 16]
  int sinks;         // f32 [row_blocks * 16]
  int factors;       // f32 [row_blocks * 16] of the query rows; codes only
  int query;         // 16-bit [row_blocks * 16, pitch]
  int rings;         // per warp and stage: 16 keys, then 16 values; at the end the warps' outputs
  int value;         // of the values within a stage
  int scales;        // of f32 [2, 16], scales of keys and values, within a stage; codes outside
                     // cells only
  int stage_bytes;   // of one stage of one warp
  int output_pitch;  // bytes of one row of a warp's output, f32
  int total;
};

/// `element_bytes` of a key: 2, or 1 for codes; `value_bytes` the same of a value; `cells`: rows
/// are those of cells.cuh; `warps` that have a ring, in which a row has the cells of `heads` heads,
/// and `row_blocks` of all of them.
ATTN_FN constexpr DecodeLayout decode_layout(int warps, int row_blocks, int stages, int head_size,
                                             int v_head_size, int element_bytes, int value_bytes,
                                             bool cells, int heads = 1) {
  const int query_pitch = (head_size + 15) / 16 * 32 + 16;
  const int pitch = decode_pitch(head_size, element_bytes, cells, heads);
  const int value_pitch = decode_pitch(v_head_size, value_bytes, cells, heads);
  DecodeLayout layout{};
  layout.sinks = layout.rows + row_blocks * 16 * 16;
  layout.factors = layout.sinks + row_blocks * 16 * 4;
  layout.query = layout.factors + (element_bytes == 1 ? row_blocks * 16 * 4 : 0);
  layout.rings = (layout.query + row_blocks * 16 * query_pitch + kRingAlignment - 1) /
                 kRingAlignment * kRingAlignment;
  layout.value = 16 * pitch;
  layout.scales = layout.value + 16 * value_pitch;
  layout.stage_bytes = layout.scales + (element_bytes == 1 && !cells ? 128 : 0);
  layout.output_pitch = (v_head_size + 31) / 32 * 128 + 16;
  const int ring_bytes = warps * stages * layout.stage_bytes;
  // Reads of the last row of codes run on to the next multiple of 32 columns: over its scales.
  const int output_bytes = warps * row_blocks * 16 * layout.output_pitch;
  layout.total = layout.rings + (ring_bytes > output_bytes ? ring_bytes : output_bytes);
  return layout;
}

/// Bytes of what the CTAs of a cluster of `parts` send to each of them (ClusterInbox, join.cuh),
/// behind the others: a barrier, the states of up to `rows` rows, and a share of their columns.
ATTN_FN constexpr int inbox_bytes(int rows, int v_head_size, int parts) {
  const int share = (rows * (v_head_size / 4) + parts - 1) / parts;
  return 16 + parts * (rows + share) * 16;
}

/// f32 of the weights of `splits` splits of so many rows in shared memory, on whole 16 bytes, and
/// the bytes that join_splits() (join.cuh) needs with them: of the rings, which nobody needs any
/// more.
ATTN_FN constexpr int join_weights(int rows, int splits) { return (rows * splits + 3) / 4 * 4; }
ATTN_FN constexpr int join_bytes(int rows, int splits, int threads) {
  return (join_weights(rows, splits) + threads * 4) * 4;
}

}  // namespace attn
