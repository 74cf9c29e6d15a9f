// What the warpgroups of the Hopper prefill kernel share: sizes, places in shared memory, rings of
// stages, and the row tile in work, which each of them works out for itself from the same numbers.
#pragma once

#include "kernels/attention/hopper/layout.cuh"
#include "kernels/attention/hopper/schedule.cuh"
#include "kernels/attention/rows.cuh"
#include "kernels/params_int8.h"
#include "kernels/params_tiles.h"
#include "kernels/ptx/arrivals.cuh"
#include "kernels/ptx/element_vector.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/packed.cuh"
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
  // Of a list of tiles (hopper/tiles.cuh):
  unsigned short part = 0;  // of the rows' keys
  unsigned short turn = 0;  // the consumer that does a tile of few rows
};
/// Of an item and 64 of its rows, which one consumer does.
struct HopperShare {
  KeyInterval seen;  // tiles that it computes
  KeyInterval core;  // keys that all of its rows see
};
/// An item as it is handed over, with what each consumer would otherwise work out in every warp.
struct HandedItem {
  HopperItem item;
  alignas(16) HopperShare shares[3];
  KeyInterval unmasked;  // tiles that no row of the CTA masks
};
static_assert(sizeof(HandedItem) <= kItemBytes);

/// Whether the items of a Config come from a list (kTileList; kParts: their results are parts).
template <class Config>
ATTN_FN constexpr bool has_tile_list() {
  return requires { Config::kTileList; };
}
template <class Config>
ATTN_FN constexpr bool has_parts() {
  if constexpr (has_tile_list<Config>()) {
    return Config::kParts;
  } else {
    return false;
  }
}

/// Stages of the warps beside the consumers (HopperTile::beside).
template <class Config>
ATTN_FN constexpr int beside_stages() {
  if constexpr (has_tile_list<Config>()) {
    return Config::kBeside;
  } else {
    return 0;
  }
}

/// Columns of keys that all heads share and that lie in a place of their own (KvParams::rope),
/// behind those of each head in a stage; 0 where keys are whole.
template <class Config>
ATTN_FN constexpr int rope_columns() {
  if constexpr (requires { Config::kRopeColumns; }) {
    return Config::kRopeColumns;
  } else {
    return 0;
  }
}

/// Whether values lie as f16 in pages of their own (KvParams::value_block_table; kValuesApart).
template <class Config>
ATTN_FN constexpr bool has_values_apart() {
  return requires { Config::kValuesApart; };
}

/// Query heads of a KV head, where the Config has them as a constant (kGroup): divisions by it are
/// shifts then, or products. Short prompts have a row tile every few microseconds, and every warp
/// divides.
template <class Config>
__device__ __forceinline__ int group_of(int group) {
  if constexpr (requires { Config::kGroup; }) {
    return Config::kGroup;
  } else {
    return group;
  }
}
template <class Config>
__device__ __forceinline__ RowTile with_group(const RowTile& tile) {
  RowTile same = tile;
  same.group = group_of<Config>(tile.group);
  return same;
}

/// Bounds of rows [first, first + count) of a tile of which some exist; whole warps.
template <class Config>
__device__ __forceinline__ TileBounds bounds_of(const AttendParams& params, const RowTile& of,
                                                int first, int count) {
  const RowTile tile = with_group<Config>(of);
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

/// Config: kQuery (also of the products), kKeyValue (that, or e4m3), kOutput (Element) ·
/// kInt8Value (where kQuery is int8: the values in memory, int8 or of 16 bits) · kWideValues, where
/// there is one (kQuery is e4m3, weights keep 16 bits) · kValuesApart, where there is one:
/// has_values_apart(), with kWideValues or where kInt8Value is f16 · kHeadSize,
/// kVHeadSize · kOutputColumns (of them, multiples of 8) · kBlockSize (0 = ragged) ·
/// kRoundDequantized (codes are scaled and rounded before the products, not scores and outputs
/// after them) · kPromote (of e4m3 products: tiles whose sums may stay in the tensor cores, 0 =
/// all, SumPieces) · kConsumers, kTileN, kStages, kLine (HopperTile) · kPingPong (warpgroups take
/// turns at the tensor cores) · kPersistent (a CTA does one item a round, else one) · kAhead
/// (persistent, and the producer brings the queries of the next item, by boxes of a group's heads;
/// not of codes) · kLateOutput (with kAhead, where the next queries have a place of their own: an
/// output is stored while the next item has begun) · kFixedBase · kLeft (rows do not see the first
/// keys of a tile: a left window, ragged keys) · kRanges (mm_ranges) · kWideStores (output rows of
/// 16 bits on 16 bytes) · kScaleFirst, kSoftCap, kAlibi as of prefill.cuh · kCap, kSlopes
/// (HopperPlan), each of which replaces kScaleFirst · kFitTiles, kBounds, kOrdered, kSums
/// (HopperPlan::fits_tiles, bounds, ordered, sums) · kGroup, where there is one: group_of() ·
/// kRopeColumns, where there is one: rope_columns(), of contiguous keys of 16 bits ·
/// kSlopeProducts, where there is one (with kSlopes): HopperTile::slope_products
template <class Config>
struct HopperShape {
  static constexpr bool kPaged = Config::kBlockSize != 0;
  static constexpr int kBytes = size_of(Config::kQuery);  // of an element in the products
  static constexpr int kStoredBytes = size_of(Config::kKeyValue);
  /// Scores are products of int8 codes with scales of their own (semantics §11.4).
  static constexpr bool kInt8 = Config::kQuery == Element::kI8;
  static constexpr int kInt8Values = kInt8 ? size_of(Config::kInt8Value) : 0;
  /// Scores are products of e4m3 codes, but weights keep 16 bits (semantics §10.5).
  static constexpr bool kWideValues = requires { Config::kWideValues; };
  /// Of weights and values in their products. f16 holds every code of one byte.
  static constexpr Element kProbability =
      kWideValues || (kInt8 && Config::kInt8Value == Element::kI8) ? Element::kF16
      : kInt8                                                      ? Config::kInt8Value
                                                                   : Config::kQuery;
  /// Scores get what ALiBi adds from the tensor cores, along a tile: HopperPlan::slopes.
  static constexpr bool kSlopeProducts = requires { Config::kSlopeProducts; };
  static_assert(!kSlopeProducts || Config::kSlopes > 0);
  static constexpr HopperTile kTile{Config::kHeadSize,
                                    Config::kVHeadSize,
                                    Config::kTileN,
                                    Config::kStages,
                                    Config::kConsumers,
                                    Config::kBlockSize,
                                    Config::kAhead,
                                    kBytes,
                                    kStoredBytes,
                                    Config::kLine,
                                    kInt8Values,
                                    beside_stages<Config>(),
                                    kWideValues,
                                    kSlopeProducts,
                                    has_values_apart<Config>()};
  static constexpr int kValueStored = value_stored_bytes(kTile);
  /// Values are int8 codes, or the numbers of such: all finite, with a scale for each column.
  static constexpr bool kInt8Numbers = kInt8 && (kInt8Values == 1 || has_values_apart<Config>());
  static constexpr bool kTransposes = transposes_values(kTile);
  static constexpr bool kConverts = converts_codes(kTile);
  static constexpr bool kConvertsValues = converts_values(kTile);
  static constexpr bool kCodes = kStoredBytes == 1;
  /// A warp of the producers looks for NaN and infinities among masked values (HopperChecker).
  /// Those of codes are all at work; and what transforms scores, or stores narrow outputs, would
  /// spill.
  static constexpr bool kChecks = !kCodes && Config::kWideStores && !Config::kScaleFirst;
  static constexpr HopperLayout kLayout = hopper_layout(kTile);
  /// The queries' only place is left when an item's last scores are there, and its output goes by
  /// way of the warps' staging.
  static constexpr bool kLeavesEarly =
      kLayout.staging_bytes > 0 && Config::kWideStores && !has_tile_list<Config>();
  /// Forms that have registers to spare at the start and the end of a row tile.
  static constexpr bool kIsPlain =
      Config::kWideStores && Config::kCap == 0 && (Config::kSlopes == 0 || kSlopeProducts) &&
      !Config::kScaleFirst && (!Config::kAhead || Config::kTileN <= 96);
  /// Whether these are as short as they can be: what consumers do of a tile is worked out by the
  /// dispatcher, masks are bits, outputs are cleared behind the first weights. Where a CTA does one
  /// row tile it would spill.
  static constexpr bool kIsShort = Config::kAhead && kIsPlain;
  /// The last row tiles are cut into pieces, each of which the first consumer does by itself.
  static constexpr bool kTail = requires { Config::kTail; };
  static_assert(!kTail || !(Config::kPersistent || Config::kPingPong || has_tile_list<Config>()));
  /// Output rows leave shared memory by the copy engine, 16 of a warp at a time.
  static constexpr bool kStoresBoxes =
      Config::kAhead && Config::kWideStores && !has_parts<Config>() && !kLeavesEarly &&
      Config::kOutputColumns == padded_columns(Config::kVHeadSize, 2);
  static constexpr int kColumns = padded_columns(Config::kHeadSize, kStoredBytes);
  static constexpr int kVColumns = padded_columns(Config::kVHeadSize, kValueStored);
  static constexpr OperandLayout kQueryLayout = chunked_layout(kColumns, kConsumerRows, kBytes);
  static constexpr OperandLayout kKeyLayout = key_layout(kTile, kColumns);
  static constexpr OperandLayout kValueLayout = value_layout(kTile, kVColumns);
  static constexpr OperandLayout kStoredKeyLayout = side_layout(kTile, kColumns, kStoredBytes);
  static constexpr OperandLayout kStoredValueLayout = side_layout(kTile, kVColumns, kValueStored);
  static constexpr OperandLayout kOutputLayout = chunked_layout(kVColumns, kConsumerRows);
  static constexpr int kTileM = Config::kConsumers * kConsumerRows;
  static constexpr int kConsumerThreads = Config::kConsumers * kWarpgroupThreads;
  static constexpr int kBeside = kTile.beside;
  static constexpr int kThreads =
      kConsumerThreads + kWarpgroupThreads + (kBeside > 0 ? kBesideWarps * 32 : 0);
  static constexpr int kCtas = hopper_ctas(kTile);
  static constexpr int kBoxes = Config::kTileN / box_rows(kTile);
  /// What the last tile of keys of an item ends on a multiple of.
  static constexpr int kTileStep =
      !kPaged ? 1 : (Config::kFitTiles ? box_rows(kTile) : Config::kTileN);
  static_assert(!Config::kFitTiles || (Config::kLeft && !has_tile_list<Config>()));
  static constexpr int kValueBytes =
      Config::kTileN * stored_columns(kTile, kVColumns, kValueStored) * value_operand_bytes(kTile);
  /// Warps that fill stages of keys and of values from codes.
  static constexpr int kKeyWorkers = kConverts ? 2 : 0;
  static constexpr int kValueWorkers = kTransposes || kConvertsValues ? 2 : 0;
  static_assert(kBoxes <= 32 && box_rows(kTile) % 8 == 0);
  /// With kAhead the warp that brings values hands over the items too: of codes two others are at
  /// work. It comes to an item when all values of the one before are on their way, which is some
  /// tiles before the consumers do.
  static constexpr bool kHandsOverByValues = Config::kAhead && kCodes;
  /// Whether the map of queries ends with the batch. Then every consumer that has rows gets its
  /// queries by a box: most tiles of a shared prefix have few rows, and their queries would be
  /// waited for one tile after the other. Behind the rows are those of other requests, or zeros;
  /// what becomes of them is not stored.
  static constexpr bool kCountsTokens = Config::kAhead && has_parts<Config>();
  static constexpr int kBesideKeyBytes = kBesideKeys * kColumns * kBytes;
  static constexpr int kBesideValueBytes = kBesideKeys * kVColumns * kBytes;
  static constexpr int kQueryStages = kLayout.query_stages;
  static constexpr int kQueryBytes = kConsumerRows * kColumns * kBytes;  // of a box
  static_assert(!kPaged || (kColumns == Config::kHeadSize && kVColumns == Config::kVHeadSize));
  static_assert(!Config::kAhead || (Config::kPersistent && kColumns == Config::kHeadSize));
  static_assert(!Config::kAhead || !kConverts);
  /// CTAs draw bundles of a list: the warp that brings keys does, and says which to the others that
  /// go through the tiles by themselves.
  static constexpr bool kDraws = has_tile_list<Config>() && Config::kPersistent;
  static constexpr int kFollowers = kChecks ? 3 : 2;  // values, dispatcher, checker
  static_assert(!kDraws || Config::kAhead);
  static_assert(!Config::kLateOutput || (Config::kAhead && Config::kWideStores &&
                                         kQueryStages > 1 && !has_tile_list<Config>()));
  static_assert(kBytes == 2 || Config::kQuery == Element::kE4M3 || kInt8);
  static_assert(kInt8 || Config::kKeyValue == (kCodes ? Element::kE4M3 : Config::kQuery));
  static_assert(!kInt8 || (kPaged && Config::kKeyValue == Element::kI8));
  static_assert(!kWideValues || Config::kQuery == Element::kE4M3);
  static_assert(!has_values_apart<Config>() ||
                (kPaged && (kInt8 || kWideValues) && kProbability == Element::kF16 &&
                 kValueStored == 2 && !has_tile_list<Config>()));
  static_assert(Config::kCap == 0 || (Config::kSoftCap && !Config::kScaleFirst && !kCodes));
  static_assert(Config::kSlopes == 0 || (!Config::kSoftCap && !Config::kScaleFirst && !kCodes));
  static_assert(!kTransposes || (Config::kTileN % 32 == 0 && Config::kVHeadSize % 16 == 0));

  const AttendParams& params;
  const HopperGrid& grid;
  unsigned char* memory;  // on a multiple of kHopperAlignment in shared memory
  u32 base;               // its address there
  /// New keys and values, which the producer of their request and KV head stores before it brings
  /// any; only of int8 scores, and where every unit is one item. Null: there are none to store.
  const Int8CacheWriteParams* save = nullptr;
  const TileListParams* list = nullptr;  // with has_tile_list()
  const TensorMap* outputs = nullptr;    // with kStoresBoxes; where parameters lie
  const TensorMap* ropes = nullptr;      // with rope_columns(); likewise

  __device__ __forceinline__ static u32 query_offset(int consumer, int stage) {
    return kLayout.query + (stage * Config::kConsumers + consumer) * kLayout.query_bytes;
  }
  __device__ __forceinline__ u32 query(int consumer, int stage) const {
    return base + query_offset(consumer, stage);
  }
  /// Where the item of a query stage lies.
  __device__ __forceinline__ HandedItem* item_place(int stage) const {
    return reinterpret_cast<HandedItem*>(memory + kLayout.items + stage * kItemBytes);
  }
  __device__ __forceinline__ u32 key(int stage) const {
    return base + kLayout.key + stage * kLayout.key_bytes;
  }
  __device__ __forceinline__ u32 value(int stage) const {
    return base + kLayout.value + stage * kLayout.value_bytes;
  }
  __device__ __forceinline__ u32 code_key(int stage) const {
    return base + kLayout.code_key + stage * kLayout.code_key_bytes;
  }
  __device__ __forceinline__ u32 code_value(int stage) const {
    return base + kLayout.code_value + stage * kLayout.code_value_bytes;
  }
  __device__ __forceinline__ u32 barrier(int index, int stage) const {
    return base + kLayout.barriers + (index * Config::kStages + stage) * 8;
  }
  __device__ __forceinline__ u32 key_full(int stage) const { return barrier(0, stage); }
  __device__ __forceinline__ u32 key_empty(int stage) const { return barrier(1, stage); }
  __device__ __forceinline__ u32 value_full(int stage) const { return barrier(2, stage); }
  __device__ __forceinline__ u32 value_empty(int stage) const { return barrier(3, stage); }
  __device__ __forceinline__ u32 key_scale(int stage) const {
    return base + kLayout.key_scales + stage * Config::kTileN * 4;
  }
  __device__ __forceinline__ u32 value_checked(int stage) const { return barrier(4, stage); }
  /// Whether a value of the stage is NaN or infinite, once it is checked.
  __device__ __forceinline__ u32* found(int stage) const {
    return reinterpret_cast<u32*>(memory + kLayout.found) + stage;
  }
  __device__ __forceinline__ u32 query_full(int stage) const { return barrier(5, 0) + stage * 8; }
  __device__ __forceinline__ u32 query_empty(int stage) const {
    return barrier(5, 0) + (kQueryStages + stage) * 8;
  }
  /// Of the codes of keys, or of int8 scores the scales of keys (index 0: full, 1: empty), and of
  /// the codes of values (2, 3).
  __device__ __forceinline__ u32 code_barrier(int index, int stage) const {
    return barrier(5, 0) + (2 * kQueryStages + index * kCodeStages + stage) * 8;
  }

  /// Of stage `stage` of a warp beside the consumers: its keys (0) or values (1) are there.
  __device__ __forceinline__ u32 beside_barrier(int warp, int stage, int side) const {
    return base + kLayout.beside_barriers + ((warp * kBeside + stage) * 2 + side) * 8;
  }
  __device__ __forceinline__ u32 queue_full(int stage) const {
    return base + kLayout.queue + stage * 8;
  }
  __device__ __forceinline__ u32 queue_empty(int stage) const {
    return base + kLayout.queue + (kQueueStages + stage) * 8;
  }
  __device__ __forceinline__ int* queue_number(int stage) const {
    return reinterpret_cast<int*>(memory + kLayout.queue + 2 * kQueueStages * 8) + stage;
  }

  /// By one thread, before a barrier of all. A stage is full when its bytes have come, or the warps
  /// that fill it have said so, and empty when every warp that reads it has.
  __device__ void init_barriers() const {
    if constexpr (kCodes) {
      for (int stage = 0; stage < kCodeStages; ++stage) {
        init_barrier(code_barrier(0, stage), kInt8 ? 32 : 1);  // scales: every lane brings some
        init_barrier(code_barrier(1, stage),
                     kInt8 ? Config::kConsumers * 4 : larger(kKeyWorkers, 1));
        init_barrier(code_barrier(2, stage), 1);
        init_barrier(code_barrier(3, stage), larger(kValueWorkers, 1));
      }
    }
    for (int stage = 0; stage < Config::kStages; ++stage) {
      init_barrier(key_full(stage), larger(kKeyWorkers, 1));
      init_barrier(value_full(stage), larger(kValueWorkers, 1));
      init_barrier(key_empty(stage), Config::kConsumers * 4);
      init_barrier(value_empty(stage), Config::kConsumers * 4 + (kChecks ? 1 : 0));
      init_barrier(value_checked(stage), 1);
    }
    for (int stage = 0; stage < kQueryStages; ++stage) {
      init_barrier(query_full(stage), 1);
      init_barrier(query_empty(stage), Config::kConsumers * 4);
    }
    if constexpr (kDraws) {
      for (int stage = 0; stage < kQueueStages; ++stage) {
        init_barrier(queue_full(stage), 1);
        init_barrier(queue_empty(stage), kFollowers);
      }
    }
    for (int i = 0; i < kBesideWarps * kBeside; ++i) {
      init_barrier(beside_barrier(0, i, 0), 1);
      init_barrier(beside_barrier(0, i, 1), 1);
    }
    publish_barriers();
    publish_shared_writes();
  }

  /// What no tile changes of the operands, by all threads, before a barrier of all.
  __device__ void fill_constants() const {
    if constexpr (kSlopeProducts) {
      constexpr int kPairs = Config::kTileN / 2;  // of a row
      for (int i = static_cast<int>(threadIdx.x); i < kDistanceRows * kPairs; i += kThreads) {
        const int row = i / kPairs;
        const int key = i % kPairs * 2;
        u32 pair = 0;
        if (row < kSlopeTerms) {
          pair = pack<Element::kBF16>(static_cast<float>(key_distance(key, Config::kTileN)),
                                      static_cast<float>(key_distance(key + 1, Config::kTileN)));
        }
        *reinterpret_cast<u32*>(memory + kLayout.distances +
                                operand_place<32>(distance_layout(), row, key * 2)) = pair;
      }
      publish_shared_writes();
    }
  }

  /// Item `index` of the grid; whole warps. Without rows num_rows is 0 or less.
  __device__ HopperItem item(int index) const {
    HopperPiece at{index, -1};
    if constexpr (kTail) at = piece_of(index, grid.num_whole, Config::kConsumers);
    const HopperWork work = hopper_work(at.tile, grid);
    const int in_grid = grid.by_heads.quotient(work.unit);
    const int request = params.first_request + in_grid;
    const int begin = params.query_start_loc[request];
    const int end = params.query_start_loc[request + 1];
    const int row_tile_index =
        row_tile_of(work, ((end - begin) * grid.heads + kTileM - 1) / kTileM);
    HopperItem item;
    item.tile =
        row_tile(grid.heads, request, work.unit - in_grid * params.num_kv_heads,
                 larger(row_tile_index, 0) * kTileM + larger(at.piece, 0) * kConsumerRows,
                 at.piece < 0 ? kTileM : kConsumerRows, begin, end, params.seq_lens[request]);
    if (row_tile_index < 0) item.tile.num_rows = 0;
    item.bounds = bounds_of<Config>(params, item.tile, 0, kTileM);
    item.keys = key_tiles(item.bounds.hull, Config::kTileN, kTileStep);
    return item;
  }

  /// Rows [first, first + 64) of an item; whole warps with kRanges, else a lane for each.
  __device__ __forceinline__ HopperShare share_of(const HopperItem& item, int first) const {
    const TileBounds mine =
        cut_to(bounds_of<Config>(params, item.tile, first, kConsumerRows), first_key(item));
    // Why all of them in turns: every warpgroup has to take as many.
    return {Config::kPingPong ? KeyInterval{item.keys.first, item.keys.end}
                              : seen_tiles(item.keys, mine.hull, Config::kTileN),
            mine.core};
  }

  /// The first key that an item's rows may see: of a list, where its run begins.
  __device__ __forceinline__ static int first_key(const HopperItem& item) {
    return has_tile_list<Config>() ? item.keys.origin : 0;
  }
  /// A number of the next bundle, or kNoBundle; by one thread. The draw that ends the last CTA is
  /// the last of all: every CTA that has started, one for each of the first bundles, draws until
  /// there is none left.
  static constexpr int kNoBundle = -1;
  __device__ __forceinline__ int draw_bundle() const {
    const int drawn = draw_number(list->drawn);
    if (drawn + 1 == list->num_bundles) *list->drawn = 0;
    const int bundle = drawn + static_cast<int>(gridDim.x);
    return bundle < list->num_bundles ? bundle : kNoBundle;
  }
  /// Which is not drawn. A CTA without one is there for what is done beside.
  __device__ __forceinline__ int first_bundle() const {
    const int cta = static_cast<int>(blockIdx.x);
    return cta < list->num_bundles ? cta : kNoBundle;
  }
  /// Calls work(item) for every item of the first bundle, which needs no announcement, and of those
  /// that are announced; whole warps.
  template <class Work>
  __device__ __forceinline__ void follow(const Work& work) const {
    Ring<kQueueStages> ring{0, 0};
    int bundle = first_bundle();
    for (int nth = 0; bundle != kNoBundle;) {
      const int end = list->bundles[bundle + 1];
      for (int i = list->bundles[bundle]; i < end; ++i) work(listed_item(i, nth++));
      await(queue_full(ring.stage), ring.parity);
      bundle = *queue_number(ring.stage);
      __syncwarp();
      if (threadIdx.x % 32 == 0) arrive(queue_empty(ring.stage));
      ring.advance();
    }
  }

  /// A tile of the list, the `nth` of this CTA, by runs of kKeys keys; whole warps.
  template <int kKeys = Config::kTileN>
  __device__ HopperItem listed_item(int index, int nth) const {
    const AttendTile from = list->tiles[index];  // two loads
    HopperItem item;
    const int group = group_of<Config>(params.num_heads / params.num_kv_heads);
    item.tile = {from.table_row,   from.kv_head,     group,       from.first_row, from.num_rows,
                 from.first_token, from.context_len, from.key_end};
    item.part = from.part;
    item.turn = static_cast<unsigned short>(nth % Config::kConsumers);
    item.bounds = cut_to(bounds_of<Config>(params, item.tile, 0, kTileM), from.key_begin);
    item.keys = key_tiles_from(item.bounds.hull, kKeys, from.key_begin);
    return item;
  }

  /// Calls work(item) for every item of this CTA.
  template <class Work>
  __device__ __forceinline__ void for_each_item(const Work& work) const {
    if constexpr (has_tile_list<Config>()) {
      if constexpr (Config::kPersistent) {
        follow(work);
      } else {
        work(listed_item(static_cast<int>(blockIdx.x), 0));
      }
      return;
    }
    int items = hopper_work_items(grid);
    if constexpr (kTail) items += (items - grid.num_whole) * (Config::kConsumers - 1);
    const int cta = static_cast<int>(blockIdx.x);
    const int num_ctas = static_cast<int>(gridDim.x);
    for (int round = 0; round * num_ctas < items; ++round) {
      const int index = item_of_round(cta, num_ctas, round);
      if (index < items) {
        const HopperItem it = item(index);
        if (it.tile.num_rows > 0) work(it);
      }
      if constexpr (!Config::kPersistent) return;
    }
  }
};

}  // namespace attn
