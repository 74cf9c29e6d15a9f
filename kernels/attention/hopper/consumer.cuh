// A consumer warpgroup of the Hopper prefill kernel: 64 query rows against the tiles of keys that
// the producer brings, from the last one back.
//
// The products of two tiles are in work at a time: S = Q @ K^T of a tile is queued before O += P @
// V of the one before it, so that the tensor cores multiply while this warpgroup computes weights.
//   step n: queue S(n) and O += P(n+1) V(n+1); S(n) is there: K's stage is free, mask, weights;
//   O is there: V's stage is free, P(n) is packed, O takes the factors of the new base.
// P is packed only then because the product under way reads the registers of the last P.
#pragma once

#include "kernels/attention/hopper/softmax.cuh"
#include "kernels/attention/hopper/work.cuh"
#include "kernels/attention/products.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace attn {

/// Numbers of barriers: from kTurnBarrier on one for each warpgroup's turn at the tensor cores,
/// from kOwnBarrier on one among each warpgroup's warps, and one of all consumers.
constexpr int kTurnBarrier = 1;
constexpr int kOwnBarrier = 4;
constexpr int kConsumerBarrier = 7;

/// A 16-bit element that is NaN or infinite as f32; 0 for others.
template <Element kElement>
__device__ __forceinline__ float nonfinite_value(u32 half) {
  constexpr u32 kInfinity = kElement == Element::kBF16 ? 0x7F80u : 0x7C00u;
  const float infinity = (half & 0x8000u) != 0 ? kNegInf : -kNegInf;
  const float value = (half & 0x7FFFu) > kInfinity ? float_from_bits(0x7FC00000u) : infinity;
  return (half & kInfinity) == kInfinity ? value : 0.0f;
}

template <class Config>
struct HopperConsumer {
  using Shape = HopperShape<Config>;
  static constexpr int kKeyBlocks = Config::kTileN / 8;
  static constexpr int kValueBlocks = Shape::kVColumns / 8;
  static constexpr int kKeySteps = Shape::kColumns / 16;
  static constexpr int kValueSteps = Config::kTileN / 16;
  static constexpr int kWarpRows = 16;

  /// What lives in registers from tile to tile. S becomes weights in place.
  struct Registers {
    float s[kKeyBlocks][4];
    float o[1][kValueBlocks][4];
    u32 p[kValueSteps][4];
    SoftmaxState<1> state;
  };

  const Shape& shape;
  int consumer;  // warpgroup, from 0
  int thread;    // in the warpgroup
  Ring<Config::kStages> keys{0, 0};
  Ring<Config::kStages> values{0, 0};

  __device__ __forceinline__ int lane() const { return thread % 32; }
  __device__ __forceinline__ int warp_row() const { return thread / 32 * kWarpRows; }
  /// This warp's rows and its copy of the row tile, in shared memory: registers are for S, O and P.
  __device__ __forceinline__ Row* rows() const {
    return reinterpret_cast<Row*>(shape.memory + Shape::kLayout.rows) + consumer * kConsumerRows +
           warp_row();
  }
  __device__ __forceinline__ RowTile* tile() const {
    return reinterpret_cast<RowTile*>(shape.memory + Shape::kLayout.tiles) + consumer * 4 +
           thread / 32;
  }
  __device__ __forceinline__ void sync_own() const {
    sync_threads_of(kOwnBarrier + consumer, kWarpgroupThreads);
  }
  /// Leaves a stage: one arrival for each warp, all of whose lanes are through with it.
  __device__ __forceinline__ void leave(u32 empty) const {
    if (lane() == 0) arrive(empty);
  }

  /// The row tile and this warp's rows of it into shared memory.
  __device__ void describe(const HopperItem& item) const {
    if (lane() == 0) *tile() = item.tile;
    const int first = consumer * kConsumerRows + warp_row();
    if (lane() < kWarpRows) {
      rows()[lane()] =
          describe_row(shape.params, item.tile, {0, item.tile.seq_len}, first + lane());
    }
    __syncwarp();
  }

  /// This warp's query rows, where the products read them; what there is none of becomes zeros.
  __device__ void copy_query() const {
    constexpr int kPieces = Shape::kColumns / 8;
    constexpr OperandLayout kLayout = Shape::kQueryLayout;
    const AttendParams& params = shape.params;
    const RowTile& at = *tile();
    const auto* query = static_cast<const unsigned char*>(params.query);
    for (int i = lane(); i < kWarpRows * kPieces; i += 32) {
      const int row = warp_row() + i / kPieces;
      const int packed = consumer * kConsumerRows + row;
      const int piece = i % kPieces;
      const bool valid = packed < at.num_rows && piece < Config::kHeadSize / 8;
      const i64 offset = valid ? token_of(at, packed) * params.query_token_stride +
                                     head_of(at, packed) * params.query_head_stride + piece * 8
                               : 0;
      const u32 to = shape.query(consumer) + line_offset<kLayout.span>(row, piece);
      copy_async<16>(to, query + offset * 2, valid);
    }
    close_copy_group();
    wait_copy_groups<0>();
    publish_shared_writes();
    sync_own();
  }

  /// Where piece `piece` (16 bytes) of row `row` lies in chunks of 64 lines.
  template <int kSpan>
  __device__ __forceinline__ static u32 line_offset(int row, int piece) {
    constexpr int kPieces = kSpan / 16;
    const int chunk = piece / kPieces;
    return swizzled<kSpan>(
        static_cast<u32>(chunk * kConsumerRows * kSpan + row * kSpan + piece % kPieces * 16));
  }

  /// Descriptors of the keys and values in the current stages. Why by a shuffle: it shows the
  /// compiler that all lanes have the same, so that the steps of a product are added where
  /// descriptors are kept; else each of them takes an addition and two moves of every lane. Why
  /// apart from the products: a shuffle takes its time, which passes while the stage is waited for.
  __device__ __forceinline__ u64 keys_operand() const {
    return k_major_form(Shape::kKeyLayout) | operand_address(shape.key(of_warp(keys.stage)));
  }
  __device__ __forceinline__ u64 values_operand() const {
    return mn_major_form(Shape::kValueLayout) | operand_address(shape.value(of_warp(values.stage)));
  }
  __device__ __forceinline__ static int of_warp(int stage) {
    return __shfl_sync(0xFFFFFFFFu, stage, 0);
  }

  __device__ __forceinline__ void queue_scores(float (&s)[kKeyBlocks][4], u64 key) const {
    constexpr u64 kQueryForm = k_major_form(Shape::kQueryLayout);
    const u64 query = kQueryForm | operand_address(shape.query(consumer));
#pragma unroll
    for (int k = 0; k < kKeySteps; ++k) {
      multiply_shared<Config::kQuery>(s, query + k_major_step(Shape::kQueryLayout, k),
                                      key + k_major_step(Shape::kKeyLayout, k), k > 0 ? 1u : 0u);
    }
    close_product_group();
  }
  __device__ __forceinline__ void queue_values(Registers& r, u64 value) const {
#pragma unroll
    for (int k = 0; k < kValueSteps; ++k) {
      multiply_registers<Config::kQuery>(r.o[0], r.p[k],
                                         value + mn_major_step(Shape::kValueLayout, k));
    }
    close_product_group();
  }

  /// S of the tile at `first_key` -> weights. `masked`: some of this warpgroup's rows may not see
  /// some of its keys.
  __device__ __forceinline__ DueRescale weigh(Registers& r, int first_key, bool masked) const {
    const ScoreParams& score = shape.params.score;
    const float factor = score.softmax_scale * kLog2E;
    if constexpr (Config::kScaleFirst) {
      float(&s)[1][kKeyBlocks][4] = reinterpret_cast<float(&)[1][kKeyBlocks][4]>(r.s);
      transform_scores<Config, RowsByKeys>(s, rows(), first_key, {factor, score.soft_cap});
    }
    if (masked) mask_scores<Config::kLeft>(r.s, rows(), first_key);
    return weigh_scores(r.s, Config::kScaleFirst ? 1.0f : factor, r.state);
  }

  __device__ __forceinline__ void pack_all(Registers& r) const {
#pragma unroll
    for (int k = 0; k < kValueSteps; ++k) pack_weights<Config::kQuery>(r.s, k, r.p[k]);
  }
  __device__ __forceinline__ void rescale(Registers& r, const DueRescale& due) const {
    if (!due.any) return;
    scale_output_row(r.o, 0, 0, due.factor[0]);
    scale_output_row(r.o, 0, 1, due.factor[1]);
  }

  /// Address of two neighbouring values of the tile in the current stage.
  __device__ __forceinline__ u32 value_pair(int key, int column) const {
    constexpr OperandLayout kLayout = Shape::kValueLayout;
    constexpr int kElements = kLayout.span / 2;
    const int offset = key / 8 * kLayout.group_stride + key % 8 * kLayout.span +
                       column / kElements * kLayout.chunk_stride + column % kElements * 2;
    return shape.value(values.stage) + swizzled<kLayout.span>(static_cast<u32>(offset));
  }

  /// Adds the NaN and infinities of the tile to the rows that see their key. Rare: nothing here is
  /// made to be fast.
  __device__ __forceinline__ void add_nonfinite(Registers& r, int first_key) const {
    const int column = hidden(lane() % 4 * 2);
    const KeyInterval upper = rows()[RowsByKeys::row(0)].keys;
    const KeyInterval lower = rows()[RowsByKeys::row(1)].keys;
#pragma unroll
    for (int n = 0; n < kValueBlocks; ++n) {
      float sums[4] = {};
#pragma unroll 1
      for (int key = 0; key < Config::kTileN; ++key) {
        const int at = first_key + key;
        const u32 pair = load_word(value_pair(key, n * 8 + column));
        const float low = nonfinite_value<Config::kQuery>(pair & 0xFFFFu);
        const float high = nonfinite_value<Config::kQuery>(pair >> 16);
        if (at >= upper.begin && at < upper.end) {
          sums[0] += low;
          sums[1] += high;
        }
        if (at >= lower.begin && at < lower.end) {
          sums[2] += low;
          sums[3] += high;
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) r.o[0][n][i] += sums[i];
    }
  }

  /// Makes the tile of values in the current stage fit for products in which masked keys have
  /// weight 0, since 0 times NaN is NaN: what is not finite goes to the rows that see it and is
  /// then cleared. By all consumers, for the same tiles in the same order: those that some row of
  /// the CTA masks, and with them whatever lies before, between or behind the keys of a request.
  __device__ __forceinline__ void settle_values(Registers& r, int first_key) const {
    constexpr int kWords = Shape::kValueBytes / 16;
    constexpr int kAll = Shape::kConsumerThreads;
    await(shape.value_full(values.stage), values.parity);
    uint4* const words = reinterpret_cast<uint4*>(shape.memory + Shape::kLayout.value +
                                                  values.stage * Shape::kLayout.value_bytes);
    const int first = hidden(consumer * kWarpgroupThreads + thread);
    u32 found = 0;
    for (int i = first; i < kWords; i += kAll) {
      const uint4 four = words[i];
      found |= nonfinite_halves<Config::kQuery>(four.x) | nonfinite_halves<Config::kQuery>(four.y) |
               nonfinite_halves<Config::kQuery>(four.z) | nonfinite_halves<Config::kQuery>(four.w);
    }
    if (!any_of_threads(found != 0, kConsumerBarrier, kAll)) return;
    add_nonfinite(r, first_key);
    sync_threads_of(kConsumerBarrier, kAll);
    for (int i = first; i < kWords; i += kAll) {
      uint4 four = words[i];
      four.x &= ~nonfinite_halves<Config::kQuery>(four.x);
      four.y &= ~nonfinite_halves<Config::kQuery>(four.y);
      four.z &= ~nonfinite_halves<Config::kQuery>(four.z);
      four.w &= ~nonfinite_halves<Config::kQuery>(four.w);
      words[i] = four;
    }
    publish_shared_writes();
    sync_threads_of(kConsumerBarrier, kAll);
  }

  /// Of one row tile: which tiles of keys this warpgroup computes, and which need more than the
  /// products.
  struct Plan {
    KeyTiles tiles;
    KeyInterval seen;      // tiles that this warpgroup computes
    KeyInterval unmasked;  // tiles that no row of the CTA masks
    KeyInterval own_core;  // keys that all of this warpgroup's rows see

    __device__ __forceinline__ int first_key(int n) const {
      return tiles.origin + n * Config::kTileN;
    }
    __device__ __forceinline__ bool needs_settling(int n) const {
      return n < unmasked.begin || n >= unmasked.end;
    }
    __device__ __forceinline__ bool masks(int n) const {
      return first_key(n) < own_core.begin || first_key(n) + Config::kTileN > own_core.end;
    }
  };
  __device__ Plan plan_of(const HopperItem& item) const {
    const TileBounds mine =
        bounds_of<Config>(shape.params, item.tile, consumer * kConsumerRows, kConsumerRows);
    Plan plan;
    plan.tiles = item.keys;
    // Why all of them in turns: every warpgroup has to take as many.
    plan.seen = Config::kPingPong ? KeyInterval{item.keys.first, item.keys.end}
                                  : seen_tiles(item.keys, mine.hull, Config::kTileN);
    plan.unmasked = unmasked_tiles(item.keys, item.bounds.core, Config::kTileN);
    plan.own_core = mine.core;
    return plan;
  }

  /// A tile of which this warpgroup sees nothing: its stages are left when they are full, no
  /// sooner, or the ring would run ahead of the copies.
  __device__ void skip(Registers& r, const Plan& plan, int n) {
    await(shape.key_full(keys.stage), keys.parity);
    leave(shape.key_empty(keys.stage));
    keys.advance();
    if (plan.needs_settling(n)) {
      settle_values(r, plan.first_key(n));
    } else {
      await(shape.value_full(values.stage), values.parity);
    }
    leave(shape.value_empty(values.stage));
    values.advance();
  }

  /// The first tile: there is no product to run beside it.
  __device__ __forceinline__ void start(Registers& r, const Plan& plan, int n) {
    const u64 key = keys_operand();
    await(shape.key_full(keys.stage), keys.parity);
    fence_registers(r.s);
    wgmma_fence();
    queue_scores(r.s, key);
    await_products<0>();
    fence_registers(r.s);
    leave(shape.key_empty(keys.stage));
    keys.advance();
    weigh(r, plan.first_key(n), plan.masks(n));
    pack_all(r);
    if (plan.needs_settling(n)) settle_values(r, plan.first_key(n));
  }

  /// kEdge: the tile may have masked keys.
  template <bool kEdge>
  __device__ __forceinline__ void step(Registers& r, const Plan& plan, int n) {
    const u64 key = keys_operand();
    await(shape.key_full(keys.stage), keys.parity);
    if constexpr (Config::kPingPong) {
      sync_threads_of(kTurnBarrier + consumer, 2 * kWarpgroupThreads);
    }
    fence_registers(r.s);
    fence_registers(r.o[0]);
    wgmma_fence();
    queue_scores(r.s, key);
    const u64 value = values_operand();
    await(shape.value_full(values.stage), values.parity);
    wgmma_fence();
    queue_values(r, value);
    if constexpr (Config::kPingPong) pass_turn();
    await_products<1>();
    fence_registers(r.s);
    leave(shape.key_empty(keys.stage));
    keys.advance();
    const DueRescale due = weigh(r, plan.first_key(n), kEdge && plan.masks(n));
    fence_registers(r.s);
    await_products<0>();
    fence_registers(r.o[0]);
    leave(shape.value_empty(values.stage));
    values.advance();
    pack_all(r);
    rescale(r, due);
    if constexpr (kEdge) settle_values(r, plan.first_key(n));
  }

  /// The product of the last weights.
  __device__ __forceinline__ void finish(Registers& r) {
    const u64 value = values_operand();
    await(shape.value_full(values.stage), values.parity);
    fence_registers(r.o[0]);
    wgmma_fence();
    queue_values(r, value);
    await_products<0>();
    fence_registers(r.o[0]);
    leave(shape.value_empty(values.stage));
    values.advance();
  }

  __device__ __forceinline__ void pass_turn() const {
    const int next = consumer + 1 == Config::kConsumers ? 0 : consumer + 1;
    arrive_threads_of(kTurnBarrier + next, 2 * kWarpgroupThreads);
  }

  __device__ __forceinline__ void attend(Registers& r, const Plan& plan) {
    int n = plan.tiles.end - 1;
#pragma unroll 1
    for (; n >= plan.seen.end; --n) skip(r, plan, n);
    if (n >= plan.seen.begin) {
      start(r, plan, n);
      --n;
#pragma unroll 1
      for (; n >= plan.seen.begin && n >= plan.unmasked.end; --n) step<true>(r, plan, n);
#pragma unroll 1
      for (; n >= plan.seen.begin && n >= plan.unmasked.begin; --n) step<false>(r, plan, n);
      if constexpr (Config::kLeft) {
#pragma unroll 1
        for (; n >= plan.seen.begin; --n) step<true>(r, plan, n);
      }
      finish(r);
    }
#pragma unroll 1
    for (; n >= plan.tiles.first; --n) skip(r, plan, n);
  }

  /// O / sum, with the sink and the scale of the output, and the LSE.
  __device__ __forceinline__ void normalise(Registers& r) const {
    const AttendParams& params = shape.params;
    const RowTile& at = *tile();
    const float factor = output_factor(params);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sum_of_row<RowsByKeys>(r.state.sum[0][half]);
      float base = r.state.base[0][half];
      const Row& info = rows()[RowsByKeys::row(half)];
      const int row = consumer * kConsumerRows + warp_row() + RowsByKeys::row(half);
      const float sink = sink_of_row(params, at, Config::kAlibi, info, row) * kLog2E;
      const float kept = add_sink(sink, base, sum, weight_of_base);
      scale_output_row(r.o, 0, half, sum == 0.0f ? 0.0f : kept / sum * factor);
      if (lane() % 4 == 0 && row < at.num_rows) {
        store_lse(params, at, row, row_lse<Config>(base, sum, info, at.context_len));
      }
    }
  }

  /// Rows of 16 bits by way of the query's place in shared memory, so that neighbouring lanes write
  /// neighbouring pieces of 16 bytes.
  __device__ void store_wide(const Registers& r) const {
    constexpr int kSpan = Shape::kOutputLayout.span;
    constexpr int kPieces = Config::kVHeadSize / 8;
    const AttendParams& params = shape.params;
    const RowTile& at = *tile();
    sync_own();  // no warp's products read the queries any more
    const int row_of_lane = warp_row() + lane() % 16;
#pragma unroll
    for (int k = 0; k < kValueBlocks / 2; ++k) {
      u32 block[4];
      pack_weights<Config::kOutput>(r.o[0], k, block);
      store_matrices(shape.query(consumer) + line_offset<kSpan>(row_of_lane, 2 * k + lane() / 16),
                     block);
    }
    __syncwarp();
    const unsigned char* const from =
        shape.memory + Shape::kLayout.query + consumer * Shape::kLayout.query_bytes;
    auto* const output = static_cast<u16*>(params.output);
    for (int i = lane(); i < kWarpRows * kPieces; i += 32) {
      const int row = warp_row() + i / kPieces;
      const int packed = consumer * kConsumerRows + row;
      if (packed >= at.num_rows) continue;
      const i64 to = token_of(at, packed) * params.output_token_stride +
                     head_of(at, packed) * params.output_head_stride + i % kPieces * 8;
      *reinterpret_cast<uint4*>(output + to) =
          *reinterpret_cast<const uint4*>(from + line_offset<kSpan>(row, i % kPieces));
    }
    sync_own();  // the next queries come there
  }

  /// Any element and any strides.
  __device__ void store_pairs(const Registers& r) const {
    const AttendParams& params = shape.params;
    const RowTile& at = *tile();
    const bool pairs = pairs_aligned(params);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = consumer * kConsumerRows + warp_row() + RowsByKeys::row(half);
      if (row >= at.num_rows) continue;
      const i64 to = token_of(at, row) * params.output_token_stride +
                     head_of(at, row) * params.output_head_stride + lane() % 4 * 2;
#pragma unroll
      for (int n = 0; n < Config::kVHeadSize / 8; ++n) {
        store_pair<Config::kOutput>(params.output, to + n * 8, r.o[0][n][half * 2],
                                    r.o[0][n][half * 2 + 1], pairs);
      }
    }
    sync_own();  // the next queries come where the products read
  }

  __device__ __forceinline__ void work(const HopperItem& item) {
    describe(item);
    copy_query();
    const Plan plan = plan_of(item);
    Registers r;
    reset_state(r.state);
#pragma unroll
    for (int n = 0; n < kValueBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) r.o[0][n][i] = 0.0f;
    }
    attend(r, plan);
    normalise(r);
    if constexpr (Config::kWideStores) {
      store_wide(r);
    } else {
      store_pairs(r);
    }
  }

  __device__ void run() {
    // The first turn is the first warpgroup's; it counts as passed on by itself.
    if constexpr (Config::kPingPong) {
      if (consumer == 0) arrive_threads_of(kTurnBarrier, 2 * kWarpgroupThreads);
    }
    shape.for_each_item([&](const HopperItem& item) { work(item); });
  }
};

}  // namespace attn
