// Tiles of at most 8 rows of a list, by a warpgroup beside the consumers of the Hopper kernel:
// while these multiply the tiles of many rows, its four warps read the keys of decodes, so that a
// multiprocessor uses its tensor cores and its share of the memory at the same time.
//
// Each warp brings what it computes by itself, through a ring of its own in stages of 16 keys, and
// multiplies by mma.sync with keys in place of rows (attention/transposed.cuh): a product of wgmma
// has 64 rows, of which a decode fills four. Warps that share a tile take its blocks of 16 keys in
// turn, and put their sums together at the end.
//
// Why not by consumers in turn with tiles of many rows: a decode of 4,096 keys then kept a
// multiprocessor for 43 us, at 48 GB/s, in which its tensor cores had nothing to do (one NVIDIA
// H200, 2026-11-28).
#pragma once

#include "kernels/attention/hopper/few_rows.cuh"

namespace attn {

/// One of these warps. Config: as of hopper_tiles, with kBeside and kSharing.
template <class Config>
struct HopperBeside {
  using Shape = HopperShape<Config>;
  using Few = HopperFew<Config>;
  using Query = typename Few::Query;
  using Sums = typename Few::Sums;
  using Order = KeysByRows;

  static constexpr int kSteps = Few::kSteps;
  static constexpr int kStages = Shape::kBeside;
  /// Warps that share a tile, kBesideWarps or 1.
  static constexpr int kSharing = Config::kSharing;
  static constexpr int kDescribedRows = Few::kDescribedRows;
  static constexpr int kLine = Few::kLine;
  static constexpr int kNone = -1;  // no tile
  static_assert(kSharing == 1 || kSharing == kBesideWarps);
  static_assert(can_take_few_rows<Config>() && Shape::kBytes == 2 && Shape::kDraws);
  static_assert(box_rows(Shape::kTile) == kBesideKeys);

  /// Blocks that a step computes, where the tile has so many. Why two: of one alone nearly every
  /// instruction waits for the one before it (60q1s4k_4q1ks3k 424 us, by one block 434). Why one of
  /// short tiles, whose keys are waited for: 128 requests with 128 keys behind a shared prefix take
  /// 50 us, by two blocks 52 (one NVIDIA H200, 2026-11-28).
  static constexpr int kMostBlocks = kSharing > 1 && kStages > 1 ? 2 : 1;

  /// Whether a tile's query is loaded when its first keys are asked for. Where two blocks are
  /// computed at a time there are no registers for it.
  static constexpr bool kLoadsAhead = kMostBlocks == 1;

  /// What this warp brings next: blocks n, n - kSharing, ... down to `first` of a tile. Each lane
  /// holds the page table's entry of one of 32 blocks.
  struct Source {
    const int* table = nullptr;
    int kv_head = 0;
    int origin = 0;
    int n = 0;
    int first = 1;
    int entries = 0;
    int used = 0;  // of the entries
    __device__ __forceinline__ bool has_block() const { return n >= first; }
  };
  /// A block to bring.
  struct Place {
    bool is_there;
    int kv_head;
    int slot;
    int page;
  };

  const Shape& shape;
  const TensorMap& key_map;
  const TensorMap& value_map;
  int thread;                // in the warpgroup
  Ring<kStages> ring{0, 0};  // of what is computed next
  int brought = 0;           // blocks that are in the ring or on their way
  Source source{};
  bool is_ahead = false;  // the source is the next tile, not the one in work
  Query coming{};         // of the source

  __device__ __forceinline__ int lane() const { return thread % 32; }
  __device__ __forceinline__ int warp() const { return thread / 32; }
  __device__ __forceinline__ int share() const { return kSharing == 1 ? 0 : warp(); }
  __device__ __forceinline__ u32 key(int stage) const {
    return shape.base + Shape::kLayout.beside +
           (warp() * kStages + stage) * Shape::kLayout.beside_bytes;
  }
  __device__ __forceinline__ u32 value(int stage) const {
    return key(stage) + Shape::kBesideKeyBytes;
  }
  __device__ __forceinline__ u32 key_full(int stage) const {
    return shape.beside_barrier(warp(), stage, 0);
  }
  __device__ __forceinline__ u32 value_full(int stage) const {
    return shape.beside_barrier(warp(), stage, 1);
  }
  __device__ __forceinline__ Row* rows() const {
    return reinterpret_cast<Row*>(shape.memory + Shape::kLayout.beside_rows) +
           warp() * kDescribedRows;
  }
  __device__ __forceinline__ FewPlace place_of_warp(int of_warp) const {
    return {reinterpret_cast<float*>(shape.memory + Shape::kLayout.beside_sums) +
                of_warp * kMostFewRows * Config::kVHeadSize,
            reinterpret_cast<float2*>(shape.memory + Shape::kLayout.beside_states) +
                of_warp * kMostFewRows};
  }
  /// Those that share a tile meet.
  __device__ __forceinline__ void meet() const {
    if constexpr (kSharing == 1) {
      __syncwarp();
    } else {
      sync_threads_of(kBesideBarrier, kBesideWarps * 32);
    }
  }

  // ---- Which tiles.

  /// Units are warps that share tiles: how many the grid has, and which this is. Why those of the
  /// CTAs in turn: where there are fewer tiles than warps, every multiprocessor has some.
  __device__ __forceinline__ int units() const {
    return static_cast<int>(gridDim.x) * (kBesideWarps / kSharing);
  }
  __device__ __forceinline__ int unit() const {
    return static_cast<int>(blockIdx.x + (kSharing == 1 ? warp() * gridDim.x : 0));
  }
  __device__ __forceinline__ bool is_drawer() const {
    return kSharing == 1 ? lane() == 0 : thread == 0;
  }
  /// Number of a tile in the list, or kNone; by one thread. Every unit has its first two tiles
  /// without a draw, and one that has a second draws until there is none left: so the last draw is
  /// that of this number.
  __device__ __forceinline__ int draw() const {
    const TileListParams& list = *shape.list;
    const int drawn = draw_number(list.drawn + 1);
    if (drawn + 1 == list.num_beside - units()) list.drawn[1] = 0;
    return tile_of(drawn + 2 * units());
  }
  __device__ __forceinline__ int tile_of(int nth) const {
    const TileListParams& list = *shape.list;
    return nth < list.num_beside ? list.num_tiles - list.num_beside + nth : kNone;
  }
  /// What the drawer has drawn, to all who share it: between two meetings.
  __device__ __forceinline__ void announce(int drawn) const {
    if constexpr (kSharing > 1) {
      if (is_drawer()) *next_place() = drawn;
    }
  }
  __device__ __forceinline__ int announced(int drawn) const {
    if constexpr (kSharing > 1) return *next_place();
    return __shfl_sync(0xFFFFFFFFu, drawn, 0);
  }
  __device__ __forceinline__ int* next_place() const {
    return reinterpret_cast<int*>(shape.memory + Shape::kLayout.beside_next);
  }

  // ---- Bringing.

  __device__ __forceinline__ void open(int tile) {
    const HopperItem item = shape.template listed_item<kBesideKeys>(tile, 0);
    const KvParams& kv = shape.params.kv;
    source.table = kv.block_table + item.tile.request * kv.block_table_stride;
    source.kv_head = item.tile.kv_head;
    source.origin = item.keys.origin;
    source.n = item.keys.end - 1 - share();
    source.first = item.keys.first;
    // Before its keys are asked for: at the start of a kernel all multiprocessors ask for as many
    // as they have room for, and what comes behind them waits for all of these.
    if constexpr (kLoadsAhead) Few::load_query(shape.params, item.tile, coming);
    if (source.has_block()) load_entries();
  }
  __device__ __forceinline__ void load_entries() {
    const int block = larger(source.n - lane() * kSharing, source.first);
    source.entries = source.table[(source.origin + block * kBesideKeys) / Config::kBlockSize];
    source.used = 0;
  }
  template <bool kIsKey>
  __device__ __forceinline__ void bring(int stage, const Place& from) const {
    if (!from.is_there || lane() != 0) return;
    const KvParams& kv = shape.params.kv;
    const i64 head_stride = kIsKey ? kv.head_stride_key : kv.head_stride_value;
    const int chunk = from.kv_head * static_cast<int>(head_stride / (kLine / 2));
    const u32 full = kIsKey ? key_full(stage) : value_full(stage);
    arrive_expecting(full, kIsKey ? Shape::kBesideKeyBytes : Shape::kBesideValueBytes);
    load_box<5>(kIsKey ? key(stage) : value(stage), kIsKey ? key_map : value_map,
                {{0, 0, chunk, from.slot / 8, from.page}}, full, kEvictFirst);
  }
  /// The next block to bring; where the tile has no other, one of `next`.
  __device__ __forceinline__ Place take_block(int next) {
    if (!source.has_block()) return {false, 0, 0, 0};
    const Place place{true, source.kv_head,
                      (source.origin + source.n * kBesideKeys) % Config::kBlockSize,
                      __shfl_sync(0xFFFFFFFFu, source.entries, source.used)};
    source.n -= kSharing;
    if (!source.has_block()) {
      open_next(next);
    } else if (++source.used == 32) {
      load_entries();
    }
    return place;
  }
  __device__ __forceinline__ void open_next(int next) {
    if (source.has_block() || is_ahead || next == kNone) return;
    is_ahead = true;
    open(next);
  }
  /// As many blocks as the ring holds, of the tile in work and the next one.
  __device__ void fill(int next) {
    open_next(next);
#pragma unroll 1
    while (brought < kStages && source.has_block()) {
      const int stage = (ring.stage + brought) % kStages;
      const Place place = take_block(next);
      bring<true>(stage, place);
      bring<false>(stage, place);
      ++brought;
    }
  }

  // ---- Computing.

  /// Blocks n and, where kCount is 2, n - kSharing. A stage is brought anew as soon as its keys,
  /// and then its values, are read. Where there is more to bring, the ring is full.
  template <int kCount>
  __device__ __forceinline__ void step(const Query& query, int origin, int n, bool masked, int next,
                                       Sums& sums) {
    const ScoreParams& score = shape.params.score;
    const float factor = score.softmax_scale * kLog2E;
    Ring<kStages> at = ring;
    int stages[kCount];
    int first_keys[kCount];
    float s[1][kCount][4];
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      stages[b] = at.stage;
      first_keys[b] = origin + (n - b * kSharing) * kBesideKeys;
      await(key_full(at.stage), at.parity);
      at.advance();
    }
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      multiply_keys<Config::kQuery, kSteps>(query, Few::keys_at(key(stages[b])), s[0][b]);
    }
    __syncwarp();
    Place coming[kCount];
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      coming[b] = take_block(next);
      bring<true>(stages[b], coming[b]);
    }
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      float(&block)[1][1][4] = reinterpret_cast<float(&)[1][1][4]>(s[0][b]);
      if constexpr (Config::kScaleFirst) {
        transform_scores<Config, Order>(block, rows(), first_keys[b], {factor, score.soft_cap});
      }
      if (masked) mask_keys<Order>(block, rows(), first_keys[b], kNegInf);
    }
    fold_scores<false, Order>(s, SameFactor{Config::kScaleFirst ? 1.0f : factor}, sums.state,
                              sums.o);
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      await(value_full(ring.stage), ring.parity);
      ring.advance();
      if (masked) {
        const auto offset = static_cast<int>(value(stages[b]) - shape.base);
        Few::template settle<1>(shape, offset, rows(), first_keys[b], sums);
      }
    }
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      accumulate_columns<Config::kQuery>(s[0][b], Few::values_at(value(stages[b])), sums.o[0]);
    }
    __syncwarp();
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      bring<false>(stages[b], coming[b]);
      if (!coming[b].is_there) --brought;
    }
  }

  /// A tile of the list; whole groups of those who share it. `next`: the one behind it. Returns the
  /// one behind that, which it draws near the end: what is drawn no other can do, however long it
  /// is idle.
  __device__ int attend(int index, int next, Query& query) {
    constexpr int kLastBlocks = 4;
    const HopperItem item = shape.template listed_item<kBesideKeys>(index, 0);
    const RowTile tile = item.tile;
    const KeyTiles blocks = item.keys;
    const KeyInterval unmasked = unmasked_tiles(blocks, item.bounds.core, kBesideKeys);
    const int part = item.part;
    if constexpr (!kLoadsAhead) Few::load_query(shape.params, tile, query);
    Few::keep_rows(tile.num_rows, query);
    if (lane() < kDescribedRows) {
      rows()[lane()] =
          describe_row<Config::kRanges>(shape.params, tile, {blocks.origin, tile.seq_len}, lane());
    }
    __syncwarp();
    Sums sums{};
    reset_state(sums.state);
    bool draws = next != kNone && is_drawer();
    int drawn = kNone;
    int n = blocks.end - 1 - share();
    const auto draw_near_end = [&] {
      if (!draws || n - blocks.first >= kLastBlocks * kSharing) return;
      drawn = draw();
      draws = false;
    };
    const auto is_masked = [&](int last) { return last < unmasked.begin || n >= unmasked.end; };
#pragma unroll 1
    for (int last = n - (kMostBlocks - 1) * kSharing; last >= blocks.first;
         last -= kMostBlocks * kSharing) {
      draw_near_end();
      step<kMostBlocks>(query, blocks.origin, n, is_masked(last), next, sums);
      n -= kMostBlocks * kSharing;
    }
    if (kMostBlocks > 1 && n >= blocks.first) {
      draw_near_end();
      step<1>(query, blocks.origin, n, is_masked(n), next, sums);
    }
    if (draws) drawn = draw();
    Few::publish(tile, sums, place_of_warp(warp()));
    announce(drawn);
    meet();
    constexpr int kQuads = Config::kVHeadSize / 4;
#pragma unroll 2
    for (int i = kSharing == 1 ? lane() : thread; i < tile.num_rows * kQuads; i += kSharing * 32) {
      Few::template join<kSharing>(
          shape, tile, rows(), part, i / kQuads, i % kQuads * 4,
          [this](int w) { return place_of_warp(kSharing == 1 ? warp() : w); });
    }
    const int after = announced(drawn);
    meet();  // before the next sums, and the next draw, come there
    return after;
  }

  __device__ void run() {
    int tile = tile_of(unit());
    if (tile == kNone) return;
    int next = tile_of(unit() + units());
    open(tile);
#pragma unroll 1
    while (tile != kNone) {
      fill(kNone);
      Query query;
      if constexpr (kLoadsAhead) query = coming;  // before the source is the next tile
      fill(next);
      const int after = attend(tile, next, query);
      tile = next;
      next = after;
      is_ahead = false;  // where there is a next tile, its blocks came behind those of this one
    }
  }
};

}  // namespace attn
