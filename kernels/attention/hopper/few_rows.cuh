// Tiles of at most 8 rows of a list by the products of mma.sync (attention/transposed.cuh) instead
// of wgmma: what they are made of, and how one consumer warpgroup of the Hopper kernel does one.
// Its warps share out the keys of each tile, 16 at a time, and put their sums together at the end.
//
// Why: a product of wgmma has 64 rows, of which a decode fills four. Its 64 rows of weights, the
// sums of 128 columns that each thread scales and stores, and above all the chain of one step after
// the other took a consumer 6,000 clocks for a request's 128 own keys, and 1,400 clocks for each 80
// keys of a longer one, which is 46 GB/s of a multiprocessor (one NVIDIA H200, 2026-11-28). By keys
// in place of rows nothing is multiplied for rows that are not there.
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

/// Whether such tiles can be done this way: heads of whole lines whose queries and sums fit into
/// registers, and scores without forms of their own.
template <class Config>
ATTN_FN constexpr bool can_take_few_rows() {
  using Shape = HopperShape<Config>;
  return has_tile_list<Config>() && !Shape::kCodes && Shape::kPaged &&
         Shape::kKeyLayout.span == 128 && Shape::kValueLayout.span == 128 &&
         Config::kHeadSize <= 128 && Config::kVHeadSize <= 128 &&
         Config::kOutputColumns == Config::kVHeadSize && Config::kCap == 0 && Config::kSlopes == 0;
}
/// Whether consumers do so (kFew).
template <class Config>
ATTN_FN constexpr bool takes_few_rows() {
  if constexpr (requires { Config::kFew; }) {
    return Config::kFew && can_take_few_rows<Config>();
  } else {
    return false;
  }
}

/// Where a warp leaves its sums, [row][column] of f32, and its states, base and sum of each row.
struct FewPlace {
  float* sums;
  float2* states;
};

/// What every warp that does such a tile does alike.
template <class Config>
struct HopperFew {
  using Shape = HopperShape<Config>;
  using Order = KeysByRows;
  static constexpr int kSteps = Config::kHeadSize / 16;
  static constexpr int kColumnBlocks = Config::kVHeadSize / 16;
  static constexpr int kLine = 128;
  static constexpr int kDescribedRows = 16;  // what rounds of 16 rows look at; 8 of them are used

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
  using Keys = GroupedKeys<Shape::kKeyLayout.chunk_stride>;
  using Values = GroupedValues<Shape::kValueLayout.chunk_stride>;

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  /// This lane's operands of 16 keys that lie from `address` on, in groups of 8.
  __device__ __forceinline__ static Keys keys_at(u32 address) {
    const int row = lane() % 8;
    return {address + lane() / 16 * Shape::kKeyLayout.group_stride + row * kLine +
            ((lane() / 8 % 2 ^ row) * 16)};
  }
  __device__ __forceinline__ static Values values_at(u32 address) {
    const int row = lane() % 8;
    return {address + lane() / 8 % 2 * Shape::kValueLayout.group_stride + row * kLine +
            ((lane() / 16 ^ row) * 16)};
  }

  /// Of rows that are not there, those of the first: keep_rows() has to come before they are used.
  __device__ __forceinline__ static void load_query(const AttendParams& params, const RowTile& tile,
                                                    Query& query) {
    const int row = lane() / 4;
    const int some = row < tile.num_rows ? row : 0;
    const auto* const from = static_cast<const u16*>(params.query) +
                             token_of(tile, some) * params.query_token_stride +
                             head_of(tile, some) * params.query_head_stride + lane() % 4 * 2;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        query.held[k][i] = *reinterpret_cast<const u32*>(from + k * 16 + i * 8);
      }
    }
  }
  /// Zeros for rows that are not there: the rows of a warp vote on when their bases rise.
  __device__ __forceinline__ static void keep_rows(int num_rows, Query& query) {
    if (lane() / 4 < num_rows) return;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) query.held[k][0] = query.held[k][1] = 0;
  }

  /// settle_values() for 16 kCount keys that are this warp's alone; their values lie from `offset`
  /// on in the shared memory of `shape`.
  template <int kCount>
  __device__ __forceinline__ static void settle(const Shape& shape, int offset, const Row* rows,
                                                int first_key, Sums& sums) {
    constexpr int kGroup = Shape::kValueLayout.group_stride;
    constexpr int kWords = 2 * kCount * kGroup / 16;
    auto* const words = reinterpret_cast<uint4*>(shape.memory + offset);
    const auto mask = [](u32 word) { return nonfinite_mask<Config::kQuery>(word); };
    u32 found = 0;
    for (int i = lane(); i < kWords; i += 32) {
      const uint4 four = words[i];
      found |= mask(four.x) | mask(four.y) | mask(four.z) | mask(four.w);
    }
    if (!__any_sync(0xFFFFFFFFu, found != 0)) return;
#pragma unroll 1
    for (int b = 0; b < kCount; ++b) {
      accumulate_nonfinite_columns<Config::kQuery>(
          rows, first_key + b * 16, values_at(shape.base + offset + 2 * b * kGroup), sums.o[0]);
    }
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

  /// Of a warp, which has such a place.
  __device__ __forceinline__ static void publish(const RowTile& tile, const Sums& sums,
                                                 const FewPlace& place) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Order::row(half);
      const float sum = sum_of_row<Order>(sums.state.sum[0][half]);
      if (lane() / 4 == 0) place.states[row] = make_float2(sums.state.base[0][half], sum);
      if (row >= tile.num_rows) continue;
      float* const to = place.sums + row * Config::kVHeadSize + lane() / 4;
#pragma unroll
      for (int n = 0; n < 2 * kColumnBlocks; ++n) {
        to[n * 8] = sums.o[0][n / 2][half * 2 + n % 2];
      }
    }
  }

  /// Four columns of a row, and with the first of them its LSE, from the sums of kWarps warps:
  /// place_of(0) and on. `rows`: what describe_row() says of the tile's rows.
  template <int kWarps, class PlaceOf>
  __device__ __forceinline__ static void join(const HopperShape<Config>& shape, const RowTile& tile,
                                              const Row* rows, int part, int row, int column,
                                              const PlaceOf& place_of) {
    const AttendParams& params = shape.params;
    float base = kNegInf;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) base = fmaxf(base, place_of(w).states[row].x);
    float sum = 0.0f;
    float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const FewPlace place = place_of(w);
      const float2 state = place.states[row];
      const float weight = weight_of_base(state.x, base);
      const float4 more =
          *reinterpret_cast<const float4*>(place.sums + row * Config::kVHeadSize + column);
      sum += state.y * weight;
      o.x += more.x * weight;
      o.y += more.y * weight;
      o.z += more.z * weight;
      o.w += more.w * weight;
    }
    // Parts are scaled, and get their sink, once for all of them.
    float factor = has_parts<Config>() ? 1.0f : output_factor(params);
    if (params.score.sinks != nullptr && (!has_parts<Config>() || part == 0)) {
      const float sink = sink_of_row(params, tile, Config::kAlibi, rows[row], row) * kLog2E;
      factor *= add_sink(sink, base, sum, weight_of_base);
    }
    factor = sum == 0.0f ? 0.0f : reciprocal_fast(sum) * factor;
    o = make_float4(o.x * factor, o.y * factor, o.z * factor, o.w * factor);
    const int token = token_of(tile, row);
    const int head = head_of(tile, row);
    const float lse = row_lse<Config>(base, sum, rows[row], tile.context_len);
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
};

template <class Config>
struct HopperFewRows : HopperProducts<Config> {
  using Products = HopperProducts<Config>;
  using Shape = HopperShape<Config>;
  using Products::consumer;
  using Products::keys;
  using Products::lane;
  using Products::leave;
  using Products::leave_unread;
  using Products::query_stage;
  using Products::rows;
  using Products::shape;
  using Products::sync_own;
  using Products::thread;
  using Products::values;
  using Few = HopperFew<Config>;
  using Query = typename Few::Query;
  using Sums = typename Few::Sums;
  using Order = KeysByRows;

  static constexpr int kWarps = 4;
  static constexpr int kSteps = Few::kSteps;
  static constexpr int kBlocks = Config::kTileN / 16;  // of keys, in a tile
  static constexpr int kWarpBlocks = (kBlocks + kWarps - 1) / kWarps;
  static constexpr int kLine = Few::kLine;
  static constexpr bool kTakesFew = takes_few_rows<Config>();

  __device__ __forceinline__ int warp() const { return thread / 32; }

  /// From where a box brought them, or from memory. Zeros for rows that are not there: the rows of
  /// a warp vote on when their bases rise.
  __device__ __forceinline__ void fetch_query(const RowTile& tile, Query& query) const {
    if constexpr (Shape::kCountsTokens) {
      const bool exists = lane() / 4 < tile.num_rows;
      constexpr OperandLayout kLayout = Shape::kQueryLayout;
      const u32 at = this->query() + lane() % 8 * kLine + ((lane() / 8 ^ lane() % 8) * 16);
#pragma unroll
      for (int k = 0; k < kSteps; k += 2) {
        u32 matrices[4];
        load_matrices((at ^ k * 32 % kLine) + k * 32 / kLine * kLayout.chunk_stride, matrices);
        query.held[k][0] = exists ? matrices[0] : 0;
        query.held[k][1] = exists ? matrices[1] : 0;
        query.held[k + 1][0] = exists ? matrices[2] : 0;
        query.held[k + 1][1] = exists ? matrices[3] : 0;
      }
    } else {
      Few::load_query(shape.params, tile, query);
      Few::keep_rows(tile.num_rows, query);
    }
  }

  /// Block `block` of 16 keys of the stage in work.
  __device__ __forceinline__ typename Few::Keys keys_of(int block) const {
    return Few::keys_at(shape.key(keys.stage) + 2 * block * Shape::kKeyLayout.group_stride);
  }
  __device__ __forceinline__ int value_offset(int block) const {
    return Shape::kLayout.value + values.stage * Shape::kLayout.value_bytes +
           2 * block * Shape::kValueLayout.group_stride;
  }
  __device__ __forceinline__ typename Few::Values values_of(int block) const {
    return Few::values_at(shape.base + value_offset(block));
  }

  /// settle_values() for the keys that are this warp's alone.
  template <int kCount>
  __device__ __forceinline__ void settle(int block, int first_key, Sums& sums) const {
    if constexpr (Shape::kChecks) {
      await(shape.value_checked(values.stage), values.parity);
      if (*shape.found(values.stage) == 0) return;
    }
    Few::template settle<kCount>(shape, value_offset(block), rows(), first_key, sums);
  }

  /// Blocks [block, block + kCount) of the tile at `first_key`; of none its stages are only left.
  template <int kCount>
  __device__ __forceinline__ void step(const Query& query, int block, int first_key, bool masked,
                                       Sums& sums) {
    const ScoreParams& score = shape.params.score;
    const float factor = score.softmax_scale * kLog2E;
    const int first = first_key + block * 16;
    await(shape.key_full(keys.stage), keys.parity);
    float s[1][kCount > 0 ? kCount : 1][4];
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      multiply_keys<Config::kQuery, kSteps>(query, keys_of(block + b), s[0][b]);
    }
    __syncwarp();
    leave(shape.key_empty(keys.stage));
    keys.advance();
    if constexpr (kCount > 0) {
      if constexpr (Config::kScaleFirst) {
        transform_scores<Config, Order>(s, rows(), first, {factor, score.soft_cap});
      }
      if (masked) mask_keys<Order>(s, rows(), first, kNegInf);
      fold_scores<false, Order>(s, SameFactor{Config::kScaleFirst ? 1.0f : factor}, sums.state,
                                sums.o);
    }
    await(shape.value_full(values.stage), values.parity);
    if constexpr (kCount > 0) {
      if (masked) settle<kCount>(block, first, sums);
    }
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      accumulate_columns<Config::kQuery>(s[0][b], values_of(block + b), sums.o[0]);
    }
    __syncwarp();
    leave(shape.value_empty(values.stage));
    values.advance();
  }

  /// The tiles of an item that another consumer does.
  __device__ __forceinline__ void pass_over(const KeyTiles& tiles) {
#pragma unroll 1
    for (int n = tiles.end - 1; n >= tiles.first; --n) {
      await(shape.key_full(keys.stage), keys.parity);
      leave_unread(shape.key_empty(keys.stage));
      keys.advance();
      await(shape.value_full(values.stage), values.parity);
      leave_unread(shape.value_empty(values.stage));
      values.advance();
    }
  }

  /// Where a warp of this consumer leaves its sums. All four fit where the queries were, and the
  /// states behind the rows that are described.
  __device__ __forceinline__ FewPlace place_of_warp(int of_warp) const {
    static_assert(kWarps * kMostFewRows * Config::kVHeadSize * 4 <= Shape::kLayout.query_bytes);
    static_assert(sizeof(float2) <= sizeof(Row));
    return {reinterpret_cast<float*>(shape.memory + Shape::query_offset(consumer, query_stage())) +
                of_warp * kMostFewRows * Config::kVHeadSize,
            reinterpret_cast<float2*>(reinterpret_cast<Row*>(shape.memory + Shape::kLayout.rows) +
                                      consumer * kConsumerRows + of_warp * Products::kWarpRows +
                                      kMostFewRows)};
  }

  __device__ void attend_few(const HopperItem& item) {
    if (item.turn != consumer) {
      pass_over(item.keys);
      return;
    }
    const RowTile tile = item.tile;
    const KeyTiles tiles = item.keys;
    const KeyInterval unmasked = unmasked_tiles(tiles, item.bounds.core, Config::kTileN);
    const int part = item.part;
    Query query;
    fetch_query(tile, query);
    if (lane() < Products::kWarpRows) {
      rows()[lane()] = describe_row<Config::kRanges>(
          shape.params, tile, {Shape::first_key(item), tile.seq_len}, lane());
    }
    __syncwarp();
    Sums sums{};
    reset_state(sums.state);
    const int block = warp() * kWarpBlocks;
#pragma unroll 1
    for (int n = tiles.end - 1; n >= tiles.first; --n) {
      const int first_key = tiles.origin + n * Config::kTileN;
      const bool masked = n < unmasked.begin || n >= unmasked.end;
      if (block + kWarpBlocks <= kBlocks) {
        step<kWarpBlocks>(query, block, first_key, masked, sums);
      } else if (block < kBlocks) {
        step<kBlocks % kWarpBlocks>(query, block, first_key, masked, sums);
      } else {
        step<0>(query, block, first_key, masked, sums);
      }
    }
    sync_own();  // no warp needs the queries any more
    Few::publish(tile, sums, place_of_warp(warp()));
    sync_own();
    constexpr int kQuads = Config::kVHeadSize / 4;
#pragma unroll 1
    for (int i = thread; i < tile.num_rows * kQuads; i += kWarpgroupThreads) {
      Few::template join<kWarps>(shape, tile, rows(), part, i / kQuads, i % kQuads * 4,
                                 [this](int w) { return place_of_warp(w); });
    }
    sync_own();  // the next queries, and rows, come there
  }
};

}  // namespace attn
