// The producer of the Hopper prefill kernel: one warp brings keys, another values, each tile as
// soon as all consumers have left its stage. Over pages a lane brings a box, and reads its page
// table entry one tile ahead. Why: what limits a producer is the time to issue a box after its
// entry has come. Measured (one NVIDIA H200, 2026-11-22, pages of 16, D128, causal, 16k): one lane
// for all boxes 739 TFLOP/s, with entries ahead 782, a lane a box 805, keys and values in warps of
// their own 816, contiguous keys 827.
#pragma once

#include "kernels/attention/hopper/work.cuh"

namespace attn {

template <class Config, bool kIsKey>
struct HopperProducer {
  using Shape = HopperShape<Config>;
  static constexpr int kColumns = kIsKey ? Shape::kColumns : Shape::kVColumns;
  /// A box brings a tile; else one span of its columns, past the last of which it reads zeros.
  static constexpr bool kWhole = kColumns == (kIsKey ? Config::kHeadSize : Config::kVHeadSize);
  static constexpr int kBytes = kIsKey ? Shape::kKeyBytes : Shape::kValueBytes;
  static constexpr int kBoxRows = box_rows(Shape::kTile);
  static constexpr int kElements = operand_span(kColumns) / 2;  // of a line
  static constexpr int kBoxes =
      Shape::kPaged ? Shape::kBoxes : (kWhole ? 1 : operand_chunks(kColumns));

  const Shape& shape;
  const TensorMap& map;
  int lane;
  Ring<Config::kStages> ring{0, 1};

  /// Entry of the page that this lane's box of tile `n` lies in. Why cut to the last key: entries
  /// past the request's end are not its own. What its last page holds behind the end is masked.
  __device__ __forceinline__ int entry_of(const HopperItem& item, const int* table, int n) const {
    const int key = n * Config::kTileN + lane * kBoxRows;
    return table[smaller(key, item.tile.seq_len - 1) / larger(Config::kBlockSize, 1)];
  }

  __device__ __forceinline__ u32 full() const {
    return kIsKey ? shape.key_full(ring.stage) : shape.value_full(ring.stage);
  }
  /// Waits until the stage is empty, and announces the bytes of all boxes. Returns where it lies.
  __device__ __forceinline__ u32 open_stage() const {
    await(kIsKey ? shape.key_empty(ring.stage) : shape.value_empty(ring.stage), ring.parity);
    if (lane == 0) arrive_expecting(full(), kBytes);
    return kIsKey ? shape.key(ring.stage) : shape.value(ring.stage);
  }

  __device__ void bring_pages(const HopperItem& item) {
    if (item.keys.first >= item.keys.end) return;  // the table may have no entry for the request
    const AttendParams& params = shape.params;
    const i64 head_stride = kIsKey ? params.kv.head_stride_key : params.kv.head_stride_value;
    const int chunk = item.tile.kv_head * static_cast<int>(head_stride / kElements);
    const int* table = params.kv.block_table + item.tile.request * params.kv.block_table_stride;
    const int first = item.keys.first;
    const auto entry_from = [&](int n) { return entry_of(item, table, larger(n, first)); };
    int entry = entry_from(item.keys.end - 1);
    int next = entry_from(item.keys.end - 2);
#pragma unroll 1
    for (int n = item.keys.end - 1; n >= first; --n) {
      const int after_next = entry_from(n - 2);
      const int slot = (n * Config::kTileN + lane * kBoxRows) % larger(Config::kBlockSize, 1);
      const u32 to = open_stage() + lane * (kBoxRows * kColumns * 2);
      load_box<5>(to, map, {{0, 0, chunk, slot / 8, entry}}, full(), kEvictLast);
      ring.advance();
      entry = next;
      next = after_next;
    }
  }

  __device__ void bring_rows(const HopperItem& item) {
    const int row =
        static_cast<int>(shape.params.kv.kv_start_loc[item.tile.request]) + item.keys.origin;
#pragma unroll 1
    for (int n = item.keys.end - 1; n >= item.keys.first; --n) {
      const u32 to = open_stage();
      const int first = row + n * Config::kTileN;
      if constexpr (kWhole) {
        load_box<4>(to, map, {{0, first, 0, item.tile.kv_head}}, full(), kEvictLast);
      } else {
        constexpr OperandLayout kLayout = chunked_layout(kColumns, Config::kTileN);
        load_box<3>(to + lane * kLayout.chunk_stride, map,
                    {{lane * kElements, first, item.tile.kv_head}}, full(), kEvictLast);
      }
      ring.advance();
    }
  }

  /// By the lanes that have a box.
  __device__ void run() {
    // Why whole warps up to here: the bounds of an item may be worked out by all lanes together.
    shape.for_each_item([&](const HopperItem& item) {
      if (lane < kBoxes) {
        if constexpr (Shape::kPaged) {
          bring_pages(item);
        } else {
          bring_rows(item);
        }
      }
      __syncwarp();
    });
  }
};

}  // namespace attn
