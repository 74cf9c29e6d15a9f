// Tiles of at most 8 rows of a list, by a warpgroup beside the consumers of the Hopper kernel: while
// these multiply the tiles of many rows, its four warps read the keys of decodes, so that a
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

#include "kernels/attention/hopper/consumer_products.cuh"
#include "kernels/attention/transposed.cuh"

namespace attn {

/// Right operands of the scores from a stage of keys as pages come (grouped_layout()), by lines of
/// 128 bytes. `address`: this lane's of columns 0 to 15, in the order of columns_first_address().
template <int kChunkStride>
struct GroupedKeys {
  u32 address;
  __device__ __forceinline__ void load(int k, int, u32 (&b)[2][2]) const {
    u32 matrices[4];
    load_matrices((address ^ k * 32 % 128) + k * 32 / 128 * kChunkStride, matrices);
    b[0][0] = matrices[0];
    b[0][1] = matrices[1];
    b[1][0] = matrices[2];
    b[1][1] = matrices[3];
  }
};

/// Right operands of the output from such a stage of values; lane address in the order of
/// rows_first_address().
template <int kChunkStride>
struct GroupedValues {
  static constexpr int kBlocks = 2;
  u32 address;
  __device__ __forceinline__ void load(int, int n, u32 (&b)[2][2]) const {
    u32 matrices[4];
    load_matrices_transposed((address ^ n * 16 % 128) + n * 16 / 128 * kChunkStride, matrices);
    b[0][0] = matrices[0];
    b[0][1] = matrices[1];
    b[1][0] = matrices[2];
    b[1][1] = matrices[3];
  }
};

template <class Config>
struct HopperBeside {
  using Shape = HopperShape<Config>;
  using Order = KeysByRows;

  static constexpr int kSteps = Config::kHeadSize / 16;
  static constexpr int kColumnBlocks = Config::kVHeadSize / 16;
  static constexpr int kStages = Shape::kBeside;
  /// Warps that share a tile, kBesideWarps or 1.
  static constexpr int kSharing = Config::kSharing;
  static constexpr int kDescribedRows = 16;  // what rounds of 16 rows look at; 8 of them are used
  static constexpr int kLine = 128;
  static constexpr int kNone = -1;  // no tile
  static_assert(kSharing == 1 || kSharing == kBesideWarps);
  static_assert(Shape::kPaged && !Shape::kCodes && Shape::kBytes == 2 && Shape::kDraws);
  static_assert(Shape::kKeyLayout.span == kLine && Shape::kValueLayout.span == kLine);
  static_assert(Config::kHeadSize <= 128 && Config::kVHeadSize <= 128);
  static_assert(Config::kOutputColumns == Config::kVHeadSize);
  static_assert(Config::kCap == 0 && Config::kSlopes == 0);
  static_assert(box_rows(Shape::kTile) == kBesideKeys);

  /// The queries of 8 rows, as right operands.
  struct Query {
    u32 held[kSteps][2];
    __device__ __forceinline__ void load(int k, int, u32 (&a)[4]) const {
      a[0] = held[k][0];
      a[1] = 0;
      a[2] = held[k][1];
      a[3] = 0;
    }
  };
  struct Sums {
    SoftmaxState<1> state;
    float o[1][kColumnBlocks][4];
  };
  /// Blocks that a step computes, where the tile has so many. Why two: of one alone nearly every
  /// instruction waits for the one before it.
  static constexpr int kMostBlocks = kStages >= 2 ? 2 : 1;

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
  int thread;              // in the warpgroup
  Ring<kStages> ring{0, 0};  // of what is computed next
  int brought = 0;           // blocks that are in the ring or on their way
  Source source{};
  bool is_ahead = false;  // the source is the next tile, not the one in work

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
  /// Where a warp leaves its sums, [row][column] of f32, and its states.
  __device__ __forceinline__ float* sums_of(int of_warp) const {
    return reinterpret_cast<float*>(shape.memory + Shape::kLayout.beside_sums) +
           of_warp * kBesideRows * Config::kVHeadSize;
  }
  __device__ __forceinline__ float2* states_of(int of_warp) const {
    return reinterpret_cast<float2*>(shape.memory + Shape::kLayout.beside_states) +
           of_warp * kBesideRows;
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

  /// Those that share tiles, and their number in the grid. Why the CTA fastest: where there are
  /// fewer tiles than warps, every multiprocessor has some.
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

  /// Zeros for rows that are not there: the rows of a warp vote on when their bases rise.
  __device__ __forceinline__ void fetch_query(const RowTile& tile, Query& query) const {
    const AttendParams& params = shape.params;
    const int row = lane() / 4;
    const bool exists = row < tile.num_rows;
    const int some = exists ? row : 0;
    const auto* const from = static_cast<const u16*>(params.query) +
                             token_of(tile, some) * params.query_token_stride +
                             head_of(tile, some) * params.query_head_stride + lane() % 4 * 2;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const u32 pair = *reinterpret_cast<const u32*>(from + k * 16 + i * 8);
        query.held[k][i] = exists ? pair : 0;
      }
    }
  }

  __device__ __forceinline__ GroupedKeys<Shape::kKeyLayout.chunk_stride> keys_in(int stage) const {
    const int row = lane() % 8;
    return {key(stage) + lane() / 16 * Shape::kKeyLayout.group_stride + row * kLine +
            ((lane() / 8 % 2 ^ row) * 16)};
  }
  __device__ __forceinline__ GroupedValues<Shape::kValueLayout.chunk_stride> values_in(int stage) const {
    const int row = lane() % 8;
    return {value(stage) + lane() / 8 % 2 * Shape::kValueLayout.group_stride + row * kLine +
            ((lane() / 16 ^ row) * 16)};
  }

  /// settle_values() of the block in a stage.
  __device__ __forceinline__ void settle(int stage, int first_key, Sums& sums) const {
    constexpr int kWords = Shape::kBesideValueBytes / 16;
    auto* const words = reinterpret_cast<uint4*>(shape.memory + (value(stage) - shape.base));
    const auto mask = [](u32 word) { return nonfinite_mask<Config::kQuery>(word); };
    u32 found = 0;
    for (int i = lane(); i < kWords; i += 32) {
      const uint4 four = words[i];
      found |= mask(four.x) | mask(four.y) | mask(four.z) | mask(four.w);
    }
    if (!__any_sync(0xFFFFFFFFu, found != 0)) return;
    accumulate_nonfinite_columns<Config::kQuery>(rows(), first_key, values_in(stage), sums.o[0]);
    __syncwarp();
    for (int i = lane(); i < kWords; i += 32) {
      uint4 four = words[i];
      four.x &= ~mask(four.x);
      four.y &= ~mask(four.y);
      four.z &= ~mask(four.z);
      four.w &= ~mask(four.w);
      words[i] = four;
    }
    publish_shared_writes();  // before the copy engine writes there again
    __syncwarp();
  }

  /// Blocks n and, where kCount is 2, n - kSharing. A stage is brought anew as soon as its keys, and
  /// then its values, are read. Where there is more to bring, the ring is full.
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
      multiply_keys<Config::kQuery, kSteps>(query, keys_in(stages[b]), s[0][b]);
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
      if (masked) settle(stages[b], first_keys[b], sums);
    }
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      accumulate_columns<Config::kQuery>(s[0][b], values_in(stages[b]), sums.o[0]);
    }
    __syncwarp();
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      bring<false>(stages[b], coming[b]);
      if (!coming[b].is_there) --brought;
    }
  }

  __device__ __forceinline__ void publish(const RowTile& tile, const Sums& sums) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Order::row(half);
      const float sum = sum_of_row<Order>(sums.state.sum[0][half]);
      if (lane() / 4 == 0) states_of(warp())[row] = make_float2(sums.state.base[0][half], sum);
      if (row >= tile.num_rows) continue;
      float* const to = sums_of(warp()) + row * Config::kVHeadSize + lane() / 4;
#pragma unroll
      for (int n = 0; n < 2 * kColumnBlocks; ++n) {
        to[n * 8] = sums.o[0][n / 2][half * 2 + n % 2];
      }
    }
  }

  /// Four columns of a row, and with the first of them its LSE, from the sums of all who share the
  /// tile.
  __device__ __forceinline__ void join(const RowTile& tile, int part, int row, int column) const {
    const AttendParams& params = shape.params;
    const int first = kSharing == 1 ? warp() : 0;
    float base = kNegInf;
#pragma unroll
    for (int w = first; w < first + kSharing; ++w) base = fmaxf(base, states_of(w)[row].x);
    float sum = 0.0f;
    float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = first; w < first + kSharing; ++w) {
      const float2 state = states_of(w)[row];
      const float weight = weight_of_base(state.x, base);
      const float4 more =
          *reinterpret_cast<const float4*>(sums_of(w) + row * Config::kVHeadSize + column);
      sum += state.y * weight;
      o.x += more.x * weight;
      o.y += more.y * weight;
      o.z += more.z * weight;
      o.w += more.w * weight;
    }
    // Parts are scaled, and get their sink, once for all of them.
    float factor = has_parts<Config>() ? 1.0f : output_factor(params);
    if (params.score.sinks != nullptr && (!has_parts<Config>() || part == 0)) {
      const float sink = sink_of_row(params, tile, Config::kAlibi, rows()[row], row) * kLog2E;
      factor *= add_sink(sink, base, sum, weight_of_base);
    }
    factor = sum == 0.0f ? 0.0f : reciprocal_fast(sum) * factor;
    o = make_float4(o.x * factor, o.y * factor, o.z * factor, o.w * factor);
    const int token = token_of(tile, row);
    const int head = head_of(tile, row);
    const float lse = row_lse<Config>(base, sum, rows()[row], tile.context_len);
    if constexpr (has_parts<Config>()) {
      const SplitParams& parts = shape.list->parts;
      const i64 line = static_cast<i64>(part) * parts.num_tokens + token;
      *reinterpret_cast<float4*>(parts.partial_output +
                                 (line * params.num_heads + head) * Config::kVHeadSize + column) =
          o;
      if (column == 0) {
        parts.partial_lse[(static_cast<i64>(part) * params.num_heads + head) * parts.num_tokens +
                          token] = lse;
      }
    } else {
      const bool pairs = pairs_aligned(params);
      const i64 to = token * params.output_token_stride + head * params.output_head_stride + column;
      store_pair<Config::kOutput>(params.output, to, o.x, o.y, pairs);
      store_pair<Config::kOutput>(params.output, to + 2, o.z, o.w, pairs);
      if (column == 0 && params.lse != nullptr) params.lse[head * params.lse_stride + token] = lse;
    }
  }

  /// A tile of the list; whole groups of those who share it. `next`: the one behind it. Returns the
  /// one behind that, which it draws near the end: what is drawn no other can do, however long it
  /// is idle.
  __device__ int attend(int index, int next) {
    constexpr int kLastBlocks = 4;
    const HopperItem item = shape.template listed_item<kBesideKeys>(index, 0);
    const RowTile tile = item.tile;
    const KeyTiles blocks = item.keys;
    const KeyInterval unmasked = unmasked_tiles(blocks, item.bounds.core, kBesideKeys);
    const int part = item.part;
    Query query;
    fetch_query(tile, query);
    if (lane() < kDescribedRows) {
      rows()[lane()] =
          describe_row(shape.params, tile, {blocks.origin, tile.seq_len}, lane());
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
    publish(tile, sums);
    announce(drawn);
    meet();
    constexpr int kQuads = Config::kVHeadSize / 4;
#pragma unroll 1
    for (int i = kSharing == 1 ? lane() : thread; i < tile.num_rows * kQuads; i += kSharing * 32) {
      join(tile, part, i / kQuads, i % kQuads * 4);
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
      fill(next);
      const int after = attend(tile, next);
      tile = next;
      next = after;
      is_ahead = false;  // where there is a next tile, its blocks came behind those of this one
    }
  }
};

}  // namespace attn
