// What the warpgroups of the Hopper prefill kernel share: sizes, places in shared memory, rings of
// stages, and the row tile in work, which each of them works out for itself from the same numbers.
#pragma once

#include "kernels/attention/hopper/layout.cuh"
#include "kernels/attention/hopper/schedule.cuh"
#include "kernels/attention/rows.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/warpgroup.cuh"

namespace attn {

/// Stages that are filled and emptied in turn. Whoever fills starts with parity 1: the wait for the
/// phase before the first returns at once.
template <int kStages>
struct Ring {
  int stage = 0;
  u32 parity;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// A row tile and the tiles of keys that it goes through, from the last back.
struct HopperItem {
  RowTile tile;
  TileBounds bounds;  // of all of its rows
  KeyTiles keys;      // none where no row sees a key, or there is no row
};

/// Bounds of rows [first, first + count) of a tile of which some exist; whole warps.
template <class Config>
__device__ __forceinline__ TileBounds bounds_of(const AttendParams& params, const RowTile& tile,
                                                int first, int count) {
  const int last = smaller(first + count, tile.num_rows) - 1;
  if (last < first) return no_rows();
  if constexpr (Config::kRanges) {
    TileBounds bounds = no_rows();
    for (int r = first + static_cast<int>(threadIdx.x % 32); r <= last; r += 32) {
      bounds = add_row(bounds, describe_row(params, tile, {0, tile.seq_len}, r).keys);
    }
    return join_lanes(bounds);
  } else {
    const int first_position = tile.context_len + (tile.first_row + first) / tile.group;
    const int last_position = tile.context_len + (tile.first_row + last) / tile.group;
    return window_bounds(first_position, last_position, tile.seq_len, params.score.window_left,
                         params.score.window_right);
  }
}

/// Config: kQuery (also of keys and values), kOutput (Element) · kHeadSize, kVHeadSize · kBlockSize
/// (0 = ragged) · kConsumers, kTileN, kStages (HopperTile) · kPingPong (warpgroups take turns at
/// the tensor cores) · kPersistent (a CTA does every gridDim.x-th item, else one) · kFixedBase ·
/// kLeft (rows do not see the first keys of a tile: a left window, ragged keys) · kRanges
/// (mm_ranges) · kWideStores (output rows of 16 bits on 16 bytes) · kScaleFirst, kSoftCap, kAlibi
/// as of prefill.cuh
template <class Config>
struct HopperShape {
  static constexpr bool kPaged = Config::kBlockSize != 0;
  static constexpr HopperTile kTile{Config::kHeadSize, Config::kVHeadSize, Config::kTileN,
                                    Config::kStages,   Config::kConsumers, Config::kBlockSize};
  static constexpr int kColumns = padded_columns(Config::kHeadSize);
  static constexpr int kVColumns = padded_columns(Config::kVHeadSize);
  static constexpr HopperLayout kLayout = hopper_layout(kTile);
  static constexpr OperandLayout kQueryLayout = chunked_layout(kColumns, kConsumerRows);
  static constexpr OperandLayout kKeyLayout = side_layout(kTile, kColumns);
  static constexpr OperandLayout kValueLayout = side_layout(kTile, kVColumns);
  static constexpr OperandLayout kOutputLayout = chunked_layout(kVColumns, kConsumerRows);
  static constexpr int kTileM = Config::kConsumers * kConsumerRows;
  static constexpr int kConsumerThreads = Config::kConsumers * kWarpgroupThreads;
  static constexpr int kThreads = kConsumerThreads + kWarpgroupThreads;
  static constexpr int kBoxes = Config::kTileN / box_rows(kTile);
  static constexpr int kKeyBytes = Config::kTileN * kColumns * 2;
  static constexpr int kValueBytes = Config::kTileN * kVColumns * 2;
  static_assert(kBoxes <= 32 && box_rows(kTile) % 8 == 0);
  static_assert(!kPaged || (kColumns == Config::kHeadSize && kVColumns == Config::kVHeadSize));

  const AttendParams& params;
  const HopperGrid& grid;
  unsigned char* memory;  // on a multiple of kHopperAlignment in shared memory
  u32 base;               // its address there

  __device__ __forceinline__ u32 query(int consumer) const {
    return base + kLayout.query + consumer * kLayout.query_bytes;
  }
  __device__ __forceinline__ u32 key(int stage) const {
    return base + kLayout.key + stage * kLayout.key_bytes;
  }
  __device__ __forceinline__ u32 value(int stage) const {
    return base + kLayout.value + stage * kLayout.value_bytes;
  }
  __device__ __forceinline__ u32 barrier(int index, int stage) const {
    return base + kLayout.barriers + (index * Config::kStages + stage) * 8;
  }
  __device__ __forceinline__ u32 key_full(int stage) const { return barrier(0, stage); }
  __device__ __forceinline__ u32 key_empty(int stage) const { return barrier(1, stage); }
  __device__ __forceinline__ u32 value_full(int stage) const { return barrier(2, stage); }
  __device__ __forceinline__ u32 value_empty(int stage) const { return barrier(3, stage); }

  /// By one thread, before a barrier of all. A stage is full when its bytes have come, and empty
  /// when every consumer warp has said so.
  __device__ void init_barriers() const {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      init_barrier(key_full(stage), 1);
      init_barrier(value_full(stage), 1);
      init_barrier(key_empty(stage), Config::kConsumers * 4);
      init_barrier(value_empty(stage), Config::kConsumers * 4);
    }
    publish_barriers();
    publish_shared_writes();
  }

  /// Item `index` of the grid; whole warps. Without rows num_rows is 0 or less.
  __device__ HopperItem item(int index) const {
    const HopperWork work = hopper_work(index, grid);
    const int request = params.first_request + work.unit / params.num_kv_heads;
    const int query_len = params.query_start_loc[request + 1] - params.query_start_loc[request];
    const int num_rows = query_len * (params.num_heads / params.num_kv_heads);
    const int row_tile_index = row_tile_of(work, (num_rows + kTileM - 1) / kTileM);
    HopperItem item;
    item.tile = row_tile(params, request, work.unit % params.num_kv_heads,
                         larger(row_tile_index, 0) * kTileM, kTileM);
    if (row_tile_index < 0) item.tile.num_rows = 0;
    item.bounds = bounds_of<Config>(params, item.tile, 0, kTileM);
    item.keys = key_tiles(item.bounds.hull, Config::kTileN, !kPaged);
    return item;
  }

  /// Calls work(item) for every item of this CTA.
  template <class Work>
  __device__ __forceinline__ void for_each_item(const Work& work) const {
    const int items = hopper_work_items(grid);
    for (int i = static_cast<int>(blockIdx.x); i < items; i += static_cast<int>(gridDim.x)) {
      const HopperItem it = item(i);
      if (it.tile.num_rows > 0) work(it);
      if constexpr (!Config::kPersistent) return;
    }
  }
};

}  // namespace attn
