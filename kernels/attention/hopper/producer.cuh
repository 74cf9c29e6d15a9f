// The producer of the Hopper prefill kernel: one warp brings keys, another values, each tile as
// soon as all consumers have left its stage. Over pages a lane brings a box, and reads its page
// table entry one tile ahead. Why: what limits a producer is the time to issue a box after its
// entry has come. Measured (one NVIDIA H200, 2026-11-22, pages of 16, D128, causal, 16k): one lane
// for all boxes 739 TFLOP/s, with entries ahead 782, a lane a box 805, keys and values in warps of
// their own 816, contiguous keys 827.
//
// Beside them, the two warps that follow the same items: who hands row tiles to the consumers
// (HopperDispatcher), and who looks over values (HopperChecker).
#pragma once

#include "kernels/attention/hopper/work.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/packed.cuh"

namespace attn {

template <class Config, bool kIsKey>
struct HopperProducer {
  using Shape = HopperShape<Config>;
  /// Codes that others make the stage of the products from come to a ring of their own.
  static constexpr bool kStaged =
      kIsKey ? Shape::kConverts : Shape::kTransposes || Shape::kConvertsValues;
  static constexpr bool kScales = kIsKey && Shape::kInt8;
  static constexpr int kStages = kStaged ? kCodeStages : Config::kStages;
  static constexpr int kHeadSize = kIsKey ? Config::kHeadSize : Config::kVHeadSize;
  static constexpr int kElementBytes = kIsKey ? Shape::kStoredBytes : Shape::kValueStored;
  static constexpr int kColumns = stored_columns(Shape::kTile, kHeadSize, kElementBytes);
  /// A box brings a tile; else one span of its columns, past the last of which it reads zeros.
  static constexpr bool kWhole = kColumns == kHeadSize;
  static constexpr int kBytes = Config::kTileN * kColumns * kElementBytes;
  static constexpr int kBoxRows = box_rows(Shape::kTile);
  static constexpr int kElements =
      side_span(Shape::kTile, kHeadSize, kElementBytes) / kElementBytes;  // of a line
  static constexpr int kBoxes = Shape::kPaged ? Shape::kBoxes : (kWhole ? 1 : kColumns / kElements);
  /// Columns of the stage that a second box brings, from where they lie for all heads.
  static constexpr int kRope = kIsKey ? rope_columns<Config>() : 0;
  static_assert(kRope == 0 || (!Shape::kPaged && kWhole && kElementBytes == 2));
  static_assert(kRope % kElements == 0 && kRope < kHeadSize);

  const Shape& shape;
  const TensorMap& map;
  int lane;
  Ring<kStages> ring{0, 1};
  Ring<kCodeStages> scales{0, 1};

  /// Entry of the page that this lane's box of tile `n` lies in. Why cut to the last key: entries
  /// past the request's end are not its own. What its last page holds behind the end is masked.
  __device__ __forceinline__ int entry_of(const HopperItem& item, const int* table, int n) const {
    int key = item.keys.origin + n * Config::kTileN + lane * kBoxRows;
    // The first tile may begin before the first key; whatever is brought there is masked.
    if constexpr (Config::kFitTiles) key = larger(key, 0);
    return table[smaller(key, item.tile.seq_len - 1) / larger(Config::kBlockSize, 1)];
  }

  __device__ __forceinline__ u32 full() const {
    if constexpr (kStaged) return shape.code_barrier(kIsKey ? 0 : 2, ring.stage);
    return kIsKey ? shape.key_full(ring.stage) : shape.value_full(ring.stage);
  }
  __device__ __forceinline__ u32 empty() const {
    if constexpr (kStaged) return shape.code_barrier(kIsKey ? 1 : 3, ring.stage);
    return kIsKey ? shape.key_empty(ring.stage) : shape.value_empty(ring.stage);
  }
  /// Waits until the stage is empty, and announces the bytes of all boxes. Returns where it lies.
  __device__ __forceinline__ u32 open_stage() const {
    await(empty(), ring.parity);
    if (lane == 0) arrive_expecting(full(), kBytes);
    if constexpr (kStaged) {
      return kIsKey ? shape.code_key(ring.stage) : shape.code_value(ring.stage);
    }
    return kIsKey ? shape.key(ring.stage) : shape.value(ring.stage);
  }

  /// Scales of the keys of tile `n`, by all lanes, and zeros behind the last key. Why by copies
  /// that arrive by themselves: a lane that waited for what it reads would keep the next boxes
  /// waiting.
  __device__ __forceinline__ void bring_scales(const HopperItem& item, const int* table, int n) {
    const KvParams& kv = shape.params.kv;
    const float* const from = kv.key_scales + item.tile.kv_head * kv.scale_head_stride;
    await(shape.code_barrier(1, scales.stage), scales.parity);
#pragma unroll 1
    for (int i = lane; i < Config::kTileN; i += 32) {
      const int key = n * Config::kTileN + i;
      const int at = smaller(key, item.tile.seq_len - 1);
      const i64 block = table[at / larger(Config::kBlockSize, 1)];
      const i64 slot = at % larger(Config::kBlockSize, 1);
      copy_async<4>(shape.key_scale(scales.stage) + i * 4,
                    from + block * kv.scale_block_stride + slot * kv.scale_slot_stride,
                    key < item.tile.seq_len);
    }
    arrive_when_copied(shape.code_barrier(0, scales.stage));
    scales.advance();
  }

  /// Stores the new keys with their scales, or the new values, of the item's request and KV head
  /// (semantics §11.6): token i of the request at position seq_len - query_len + i. What they lie
  /// beside in the cache is other items'.
  __device__ void save_new(const HopperItem& item) const {
    constexpr int kVector = 16 / kElementBytes;
    const Int8CacheWriteParams& save = *shape.save;
    const int* table = save.block_table + item.tile.request * save.block_table_stride;
    const int head = item.tile.kv_head;
    const auto* const source =
        static_cast<const unsigned char*>(kIsKey ? save.key : static_cast<const void*>(save.value));
    auto* const cache =
        static_cast<unsigned char*>(kIsKey ? save.key_cache : static_cast<void*>(save.value_cache));
    const i64 token_stride = kIsKey ? save.key_token_stride : save.value_token_stride;
    const i64 head_stride = kIsKey ? save.key_head_stride : save.value_head_stride;
#pragma unroll 1
    for (int position = larger(item.tile.context_len, 0); position < item.tile.seq_len;
         ++position) {
      const i64 token = item.tile.first_token + position - item.tile.context_len;
      const i64 block = table[position / larger(Config::kBlockSize, 1)];
      const i64 slot = position % larger(Config::kBlockSize, 1);
      const i64 cell =
          block * save.block_stride + slot * save.slot_stride + head * save.head_stride;
      const i64 from = token * token_stride + head * head_stride;
      for (int i = lane; i < kHeadSize / kVector; i += 32) {
        *reinterpret_cast<uint4*>(cache + (cell + i * kVector) * kElementBytes) =
            *reinterpret_cast<const uint4*>(source + (from + i * kVector) * kElementBytes);
      }
      if (kIsKey && lane == 0) {
        save.key_scale_cache[block * save.scale_block_stride + slot * save.scale_slot_stride +
                             head * save.scale_head_stride] =
            save.key_scale[token * save.key_scale_token_stride + head * save.key_scale_head_stride];
      }
    }
    publish_global_writes();
    __syncwarp();
  }

  /// Where the tiles of an item lie in pages, with this lane's entries of the tile that is brought
  /// next and of the one behind it. Who converts between two tiles needs no second one, and has no
  /// register for it.
  static constexpr int kEntriesAhead = Shape::kConverts ? 1 : 2;
  struct Pages {
    const int* table;
    int chunk;
    unsigned long long policy;
    int entry;
    int next;
  };
  __device__ __forceinline__ Pages open_pages(const HopperItem& item) const {
    const AttendParams& params = shape.params;
    const i64 head_stride = kIsKey ? params.kv.head_stride_key : params.kv.head_stride_value;
    Pages pages;
    pages.chunk = item.tile.kv_head * static_cast<int>(head_stride / kElements);
    const int* table = params.kv.block_table;
    if constexpr (!kIsKey && has_values_apart<Config>()) table = params.kv.value_block_table;
    pages.table = table + item.tile.request * params.kv.block_table_stride;
    // Why first out: one tile reads the keys of a decode, several the keys of a prefill.
    const bool read_once = has_tile_list<Config>() && item.tile.num_rows <= kConsumerRows;
    pages.policy = read_once ? kEvictFirst : kEvictLast;
    pages.entry = entry_from(item, pages, item.keys.end - 1);
    pages.next = entry_from(item, pages, item.keys.end - 2);
    return pages;
  }
  __device__ __forceinline__ int entry_from(const HopperItem& item, const Pages& pages,
                                            int n) const {
    return entry_of(item, pages.table, larger(n, item.keys.first));
  }
  /// Tile `n`, which follows n + 1.
  __device__ __forceinline__ void bring(const HopperItem& item, Pages& pages, int n) {
    const int after = entry_from(item, pages, n - kEntriesAhead);
    const int slot =
        (item.keys.origin + n * Config::kTileN + lane * kBoxRows) % larger(Config::kBlockSize, 1);
    const u32 to = open_stage() + lane * (kBoxRows * kColumns * kElementBytes);
    if (!kScales || lane < kBoxes) {
      load_box<5>(to, map, {{0, 0, pages.chunk, slot / 8, pages.entry}}, full(), pages.policy);
    }
    if constexpr (kScales) bring_scales(item, pages.table, n);
    ring.advance();
    pages.entry = kEntriesAhead == 2 ? pages.next : after;
    pages.next = after;
  }

  /// `begins(n)` is called before tile `n` is brought.
  template <class Begins>
  __device__ void bring_pages(const HopperItem& item, const Begins& begins) {
    if (item.keys.first >= item.keys.end) return;  // the table may have no entry for the request
    Pages pages = open_pages(item);
#pragma unroll 1
    for (int n = item.keys.end - 1; n >= item.keys.first; --n) {
      begins(n);
      bring(item, pages, n);
    }
  }

  /// Where the tiles of an item lie in contiguous rows.
  struct Rows {
    int row;
  };
  __device__ __forceinline__ Rows open_rows(const HopperItem& item) const {
    return {static_cast<int>(shape.params.kv.kv_start_loc[item.tile.request]) + item.keys.origin};
  }
  __device__ __forceinline__ void bring(const HopperItem& item, const Rows& rows, int n) {
    const u32 to = open_stage();
    const int first = rows.row + n * Config::kTileN;
    constexpr OperandLayout kLayout = side_layout(Shape::kTile, kHeadSize, kElementBytes);
    if constexpr (kWhole) {
      load_box<4>(to, map, {{0, first, 0, item.tile.kv_head}}, full(), kEvictLast);
      if constexpr (kRope > 0) {
        constexpr int kChunk = (kHeadSize - kRope) / kElements;
        load_box<4>(to + kChunk * kLayout.chunk_stride, *shape.ropes, {{0, first, 0, 0}}, full(),
                    kEvictLast);
      }
    } else {
      load_box<3>(to + lane * kLayout.chunk_stride, map,
                  {{lane * kElements, first, item.tile.kv_head}}, full(), kEvictLast);
    }
    ring.advance();
  }

  __device__ void bring_rows(const HopperItem& item) {
    const Rows rows = open_rows(item);
#pragma unroll 1
    for (int n = item.keys.end - 1; n >= item.keys.first; --n) bring(item, rows, n);
  }

  /// Of either, for whoever brings tiles as its own work goes on.
  __device__ __forceinline__ auto open(const HopperItem& item) const {
    if constexpr (Shape::kPaged) {
      return open_pages(item);
    } else {
      return open_rows(item);
    }
  }

  /// Says to the others which bundle comes next; by one lane.
  __device__ __forceinline__ void announce(Ring<kQueueStages>& queue, int bundle) const {
    await(shape.queue_empty(queue.stage), queue.parity);
    *shape.queue_number(queue.stage) = bundle;
    arrive(shape.queue_full(queue.stage));
    queue.advance();
  }
  /// Goes through the bundles of a list that it draws. Each draw comes a few tiles before it is
  /// needed, and no sooner: what one CTA has drawn no other can do, however long it is idle.
  __device__ void lead() {
    constexpr int kLastTiles = 4;
    constexpr int kUndrawn = -2;
    const TileListParams& list = *shape.list;
    Ring<kQueueStages> queue{0, 1};
    int bundle = shape.first_bundle();
    while (bundle != Shape::kNoBundle) {
      const int end = list.bundles[bundle + 1];
      int next = kUndrawn;  // of lane 0
      for (int i = list.bundles[bundle]; i < end; ++i) {
        const HopperItem item = shape.listed_item(i, 0);
        const bool draws = lane == 0 && end - i <= 2;
        if (lane < kBoxes) {
          bring_pages(item, [&](int n) {
            if (!draws || next != kUndrawn || n - item.keys.first >= kLastTiles) return;
            next = shape.draw_bundle();
          });
        }
        __syncwarp();
      }
      if (lane == 0) {
        if (next == kUndrawn) next = shape.draw_bundle();
        announce(queue, next);
      }
      bundle = __shfl_sync(0xFFFFFFFFu, next, 0);
    }
  }

  /// By the lanes that have a box. `begins(item)` is called by all lanes before an item is brought.
  template <class Begins>
  __device__ void run(const Begins& begins) {
    // Why whole warps up to here: the bounds of an item may be worked out by all lanes together.
    shape.for_each_item([&](const HopperItem& item) {
      begins(item);
      if constexpr (Shape::kInt8) {
        if (shape.save != nullptr) save_new(item);
      }
      if (kScales || lane < kBoxes) {
        if constexpr (Shape::kPaged) {
          bring_pages(item, [](int) {});
        } else {
          bring_rows(item);
        }
      }
      __syncwarp();
    });
  }
  __device__ void run() {
    if constexpr (kIsKey && Shape::kDraws) {
      lead();
    } else {
      run([](const HopperItem&) {});
    }
  }
};

/// With kAhead: the warp that works out the row tiles for the consumers, and has their queries
/// brought, one tile ahead of what they do.
template <class Config>
struct HopperDispatcher {
  using Shape = HopperShape<Config>;
  const Shape& shape;
  const TensorMap& map;
  int lane;
  Ring<Shape::kQueryStages> ring{0, 1};

  /// Only queries of consumers whose 64 rows the request has; the others copy theirs, since a box
  /// would reach past what the batch has. Of parts all who have rows (HopperShape::kCountsTokens).
  __device__ static int boxes_of(const HopperItem& item) {
    const int rows = item.tile.num_rows + (Shape::kCountsTokens ? kConsumerRows - 1 : 0);
    return smaller(rows / kConsumerRows, Config::kConsumers);
  }
  /// The shares of the consumers, each in the lane of its number.
  __device__ __forceinline__ HopperShare share(const HopperItem& item) const {
    if constexpr (!Config::kRanges) {
      return shape.share_of(item, smaller(lane, Config::kConsumers - 1) * kConsumerRows);
    } else {
      HopperShare mine{};
      for (int i = 0; i < Config::kConsumers; ++i) {
        const HopperShare of = shape.share_of(item, i * kConsumerRows);
        if (lane == i) mine = of;
      }
      return mine;
    }
  }
  /// An item without rows ends the consumers' work.
  __device__ __forceinline__ void hand_over(const HopperItem& item) {
    // Of a list from where the item is handed over: there are no registers to keep it beside.
    constexpr bool kFromPlace = has_tile_list<Config>();
    HopperShare mine{};
    if constexpr (Shape::kIsShort && !kFromPlace) mine = share(item);
    HandedItem* const to = shape.item_place(ring.stage);
    if (lane == 0) {
      await(shape.query_empty(ring.stage), ring.parity);
      to->item = item;
      to->unmasked = unmasked_tiles(item.keys, item.bounds.core, Config::kTileN);
    }
    __syncwarp();
    if constexpr (Shape::kIsShort) {
      if constexpr (kFromPlace) mine = share(to->item);
      if (lane < Config::kConsumers) to->shares[lane] = mine;
      __syncwarp();
    }
    if (lane == 0) {
      const u32 full = shape.query_full(ring.stage);
      const int boxes = boxes_of(item);
      const RowTile tile = with_group<Config>(item.tile);
      arrive_expecting(full, static_cast<u32>(boxes * Shape::kQueryBytes));
      for (int i = 0; i < boxes; ++i) {
        load_box<4>(
            shape.query(
                has_tile_list<Config>() && item.tile.num_rows <= kConsumerRows ? item.turn : i,
                ring.stage),
            map, {{0, tile.kv_head * tile.group, token_of(tile, i * kConsumerRows), 0}}, full,
            kEvictFirst);
      }
    }
    ring.advance();
    __syncwarp();
  }

  __device__ void end() { hand_over(HopperItem{}); }
  __device__ void run() {
    shape.for_each_item([&](const HopperItem& item) { hand_over(item); });
    end();
  }
};

/// The warp that looks for NaN and infinities among the values of tiles whose keys are masked for
/// some rows, since masked keys have weight 0 in the products, and 0 times NaN is NaN. It follows
/// the producers, so that its word is there when the consumers come to the tile; these look after a
/// tile themselves only where something was found. Why not the consumers: all of them had to meet
/// at every masked tile, of which a short prompt has two in four, and could not do different things
/// at a time.
template <class Config>
struct HopperChecker {
  using Shape = HopperShape<Config>;
  static constexpr int kWords = Shape::kValueBytes / 16;
  /// Loads that are under way together; there are few registers.
  static constexpr int kUnroll = 4;

  const Shape& shape;
  int lane;
  Ring<Config::kStages> values{0, 0};

  /// Whether a value of the current stage is NaN or infinite; whole warps. Bytes between the rows
  /// and behind the keys of a request count too: products read them.
  __device__ __forceinline__ bool has_nonfinite() const {
    constexpr Element kElement = Shape::kProbability;
    const auto* const words = reinterpret_cast<const uint4*>(
        shape.memory + Shape::kLayout.value + values.stage * Shape::kLayout.value_bytes);
    u32 seen[2] = {};
#pragma unroll kUnroll
    for (int i = lane; i < kWords; i += 32) {
      const uint4 four = words[i];
      seen[0] = mark_nonfinite<kElement>(four.x, seen[0]);
      seen[1] = mark_nonfinite<kElement>(four.y, seen[1]);
      seen[0] = mark_nonfinite<kElement>(four.z, seen[0]);
      seen[1] = mark_nonfinite<kElement>(four.w, seen[1]);
    }
    const u32 found = nonfinite_halves<kElement>(seen[0]) | nonfinite_halves<kElement>(seen[1]);
    return __any_sync(0xFFFFFFFFu, found != 0) != 0;
  }

  /// Every stage waits for the checker too, masked or not: else the ring might come round twice
  /// while it looks at one.
  __device__ void run() {
    shape.for_each_item([&](const HopperItem& item) {
      const KeyInterval unmasked = unmasked_tiles(item.keys, item.bounds.core, Config::kTileN);
#pragma unroll 1
      for (int n = item.keys.end - 1; n >= item.keys.first; --n) {
        await(shape.value_full(values.stage), values.parity);
        const bool masked = n < unmasked.begin || n >= unmasked.end;
        const bool found = masked && has_nonfinite();
        __syncwarp();  // all lanes have seen the stage full (HopperPlace::leave_unread())
        if (lane == 0) {
          *shape.found(values.stage) = found ? 1 : 0;
          arrive(shape.value_checked(values.stage));
          arrive(shape.value_empty(values.stage));
        }
        __syncwarp();
        values.advance();
      }
    });
  }
};

}  // namespace attn
