// A consumer warpgroup of the Hopper prefill kernel: 64 query rows against the tiles of keys that
// the producer brings, from the last one back.
//
// The products of two tiles are in work at a time: S = Q @ K^T of a tile is queued before O += P @
// V of the one before it, so that the tensor cores multiply while this warpgroup computes weights.
//   step n: queue S(n) and O += P(n+1) V(n+1); S(n) is there: K's stage is free, mask, weights;
//   O is there: V's stage is free, P(n) is packed, O takes the factors of the new base.
// P is packed only then because the product under way reads the registers of the last P.
//
// Tensor cores of SM 9.0 keep about 13 bits of sums of e4m3 products: a sum that has become large
// stops growing. So these go to accumulators that start from zero every kPromote tiles, and from
// there into O, where f32 sums have 24 bits (promotion). Where both do not fit into the registers
// beside each other, a tile is multiplied piece by piece of its columns, through one small set.
#pragma once

#include "kernels/attention/hopper/consumer_place.cuh"
#include "kernels/attention/hopper/softmax.cuh"
#include "kernels/ptx/codes.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace attn {

/// A 16-bit element that is NaN or infinite as f32; 0 for others.
template <Element kElement>
__device__ __forceinline__ float nonfinite_value(u32 half) {
  constexpr u32 kInfinity = kElement == Element::kBF16 ? 0x7F80u : 0x7C00u;
  const float infinity = (half & 0x8000u) != 0 ? kNegInf : -kNegInf;
  const float value = (half & 0x7FFFu) > kInfinity ? float_from_bits(0x7FC00000u) : infinity;
  return (half & kInfinity) == kInfinity ? value : 0.0f;
}

/// Weights of keys [32 k, 32 k + 32) as the left operand of e4m3 products: column 4t + i of each 16
/// is the key whose place (code_place()) that is.
template <int kBlocks>
__device__ __forceinline__ void pack_codes(const float (&s)[kBlocks][4], int k, u32 (&p)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int block = 4 * k + i / 2 * 2;
    const int half = i % 2 * 2;
    p[i] = encode_pair<Element::kE4M3>(s[block][half], s[block][half + 1]) |
           encode_pair<Element::kE4M3>(s[block + 1][half], s[block + 1][half + 1]) << 16;
  }
}

template <class Config>
struct HopperConsumer : HopperPlace<Config> {
  using Place = HopperPlace<Config>;
  using Shape = HopperShape<Config>;
  using Place::consumer;
  using Place::copy_query;
  using Place::describe;
  using Place::first_row;
  using Place::is_alone;
  using Place::items_done;
  using Place::kShortcuts;
  using Place::lane;
  using Place::leave;
  using Place::query_stage;
  using Place::rows;
  using Place::shape;
  using Place::store_pairs;
  using Place::store_part;
  using Place::store_wide;
  using Place::take_slot;
  using Place::thread;
  using Place::tile;
  using Place::warp_row;
  static constexpr int kKeyBlocks = Config::kTileN / 8;
  static constexpr int kValueBlocks = Shape::kVColumns / 8;
  static constexpr int kStepElements = 32 / Shape::kBytes;
  static constexpr int kKeySteps = Shape::kColumns / kStepElements;
  static constexpr int kValueSteps = Config::kTileN * value_operand_bytes(Shape::kTile) / 32;

  static constexpr bool kPromotes = Shape::kTransposes && Config::kPromote > 0;
  /// Columns that are summed beside O. More than 128 do not fit beside them and the scores.
  static constexpr int kSumColumns = !kPromotes || Shape::kVColumns <= 128 ? Shape::kVColumns
                                     : Shape::kVColumns % 64 == 0          ? 64
                                                                           : 32;
  static constexpr int kPieces = Shape::kVColumns / kSumColumns;
  /// Sums of one tile: the first product of each need not know what was there before.
  static constexpr bool kFreshSums = kPromotes && (kPieces > 1 || Config::kPromote == 1);
  static constexpr int kSumBlocks = kPromotes ? kSumColumns / 8 : 1;

  /// What lives in registers from tile to tile. S becomes weights in place.
  struct Registers {
    float s[kKeyBlocks][4];
    int products[Shape::kInt8 ? kKeyBlocks : 1][4];  // of int8 scores, before they become s
    float row_factor[2];                             // likewise, of a thread's rows
    float o[1][kValueBlocks][4];
    u32 p[kValueSteps][4];
    float sums[kSumBlocks][4];  // on their way to O; kPromotes only
    u32 unpromoted;             // tiles in them; 0: what they hold counts for nothing
    float factor;               // of scores: the scale, log2(e) and that of the keys
    SoftmaxState<1> state;
  };

  Ring<Config::kStages> keys{0, 0};
  Ring<Config::kStages> values{0, 0};
  Ring<kCodeStages> scales{0, 0};

  /// Descriptors of the keys and values in the current stages. Why by a shuffle: it shows the
  /// compiler that all lanes have the same, so that the steps of a product are added where
  /// descriptors are kept; else each of them takes an addition and two moves of every lane. Why
  /// apart from the products: a shuffle takes its time, which passes while the stage is waited for.
  __device__ __forceinline__ u64 keys_operand() const {
    return k_major_form(Shape::kKeyLayout) | operand_address(shape.key(of_warp(keys.stage)));
  }
  __device__ __forceinline__ u64 values_operand() const {
    constexpr u64 kForm =
        Shape::kTransposes ? k_major_form(Shape::kValueLayout) : mn_major_form(Shape::kValueLayout);
    return kForm | operand_address(shape.value(of_warp(values.stage)));
  }
  __device__ __forceinline__ static constexpr u64 value_step(int k, int piece) {
    constexpr OperandLayout kLayout = Shape::kValueLayout;
    if (!Shape::kTransposes) return mn_major_step(kLayout, k);
    return k_major_step(kLayout, k) +
           static_cast<u64>(piece * (kSumColumns / 8) * kLayout.group_stride >> 4);
  }
  __device__ __forceinline__ static int of_warp(int stage) {
    return __shfl_sync(0xFFFFFFFFu, stage, 0);
  }

  __device__ __forceinline__ void queue_scores(Registers& r, u64 key) const {
    constexpr u64 kQueryForm = k_major_form(Shape::kQueryLayout);
    const u64 query = kQueryForm | operand_address(this->query());
#pragma unroll
    for (int k = 0; k < kKeySteps; ++k) {
      const u64 left = query + k_major_step(Shape::kQueryLayout, k);
      const u64 right = key + k_major_step(Shape::kKeyLayout, k);
      if constexpr (Shape::kInt8) {
        if (k == 0) {
          start_multiply_int8(r.products, left, right);
        } else {
          multiply_int8(r.products, left, right);
        }
      } else {
        multiply_shared<Config::kQuery>(r.s, left, right, k > 0 ? 1u : 0u);
      }
    }
    close_product_group();
  }
  /// Before the product of a tile's scores, and when it has ended.
  __device__ __forceinline__ static void fence_scores_to_come(Registers& r) {
    if constexpr (!Shape::kInt8) fence_registers(r.s);
  }
  __device__ __forceinline__ void fence_scores(Registers& r) {
    if constexpr (Shape::kInt8) {
      fence_registers(r.products);
    } else {
      fence_registers(r.s);
    }
  }
  /// Exact integers times the scales of their keys; those of the rows follow in weigh().
  __device__ __forceinline__ void scale_scores(Registers& r) {
    if constexpr (Shape::kInt8) {
      await(shape.code_barrier(0, scales.stage), scales.parity);
      const unsigned char* const from = shape.memory + Shape::kLayout.key_scales +
                                        scales.stage * Config::kTileN * 4 + lane() % 4 * 8;
#pragma unroll
      for (int n = 0; n < kKeyBlocks; ++n) {
        const float2 of_keys = *reinterpret_cast<const float2*>(from + n * 32);
        r.s[n][0] = static_cast<float>(r.products[n][0]) * of_keys.x;
        r.s[n][1] = static_cast<float>(r.products[n][1]) * of_keys.y;
        r.s[n][2] = static_cast<float>(r.products[n][2]) * of_keys.x;
        r.s[n][3] = static_cast<float>(r.products[n][3]) * of_keys.y;
      }
      __syncwarp();  // the lane that leaves may be ahead of others that still read
      leave(shape.code_barrier(1, scales.stage));
      scales.advance();
    }
  }
  /// What products of weights and values are added to.
  __device__ __forceinline__ static decltype(auto) accumulators(Registers& r) {
    if constexpr (kPromotes) {
      return (r.sums);
    } else {
      return (r.o[0]);
    }
  }
  __device__ __forceinline__ void queue_values(Registers& r, u64 value, int piece) const {
#pragma unroll
    for (int k = 0; k < kValueSteps; ++k) {
      const u64 step = value + value_step(k, piece);
      if (!kPromotes || k > 0) {
        multiply_registers<Shape::kProbability>(accumulators(r), r.p[k], step);
      } else if constexpr (kFreshSums) {
        multiply_registers<Shape::kProbability, false>(accumulators(r), r.p[k], step);
      } else if constexpr (kPromotes) {
        multiply_codes_if(r.sums, r.p[k], step, r.unpromoted);
      }
    }
    close_product_group();
  }
  __device__ __forceinline__ static void promote(Registers& r, int piece) {
#pragma unroll
    for (int n = 0; n < kSumBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        r.o[0][piece * kSumBlocks + n][i] += r.sums[n][i];
      }
    }
  }
  /// After the product of the first piece: those of the others, each through the same accumulators.
  __device__ __forceinline__ void multiply_pieces(Registers& r, u64 value) const {
    if constexpr (kPieces > 1) {
      promote(r, 0);
#pragma unroll
      for (int piece = 1; piece < kPieces; ++piece) {
        fence_registers(accumulators(r));
        wgmma_fence();
        queue_values(r, value, piece);
        await_products<0>();
        fence_registers(accumulators(r));
        promote(r, piece);
      }
    }
  }
  /// After every kPromote tiles, or the last. Why not where a warp's base changes: whether sums
  /// start anew is said to the tensor cores, by all warps of the warpgroup alike.
  __device__ __forceinline__ static void promote_when_due(Registers& r, bool is_last) {
    if constexpr (kPromotes && kPieces == 1) {
      if (!kFreshSums && ++r.unpromoted < Config::kPromote && !is_last) return;
      promote(r, 0);
      r.unpromoted = 0;
    }
  }

  /// S of the tile at `first_key` -> weights. `masked`: some of this warpgroup's rows may not see
  /// some of its keys.
  __device__ __forceinline__ DueRescale weigh(Registers& r, int first_key, bool masked) const {
    const ScoreParams& score = shape.params.score;
    const float factor = Shape::kCodes ? r.factor : score.softmax_scale * kLog2E;
    if constexpr (Config::kScaleFirst) {
      if constexpr (Shape::kInt8) scale_rows(r);
      float(&s)[1][kKeyBlocks][4] = reinterpret_cast<float(&)[1][kKeyBlocks][4]>(r.s);
      transform_scores<Config, RowsByKeys>(s, rows(), first_key,
                                           {Shape::kInt8 ? 1.0f : factor, score.soft_cap});
    }
    if (masked) mask_scores<Config::kLeft>(r.s, rows(), first_key);
    if constexpr (Shape::kInt8 && !Config::kScaleFirst) {
      return weigh_scores<Shape::kTransposes>(r.s, r.row_factor, r.state);
    } else {
      return weigh_scores<Shape::kTransposes>(r.s, Config::kScaleFirst ? 1.0f : factor, r.state);
    }
  }
  __device__ __forceinline__ static void scale_rows(Registers& r) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) r.s[n][i] *= r.row_factor[i / 2];
    }
  }

  __device__ __forceinline__ void pack_all(Registers& r) const {
#pragma unroll
    for (int k = 0; k < kValueSteps; ++k) {
      if constexpr (Shape::kTransposes) {
        pack_codes(r.s, k, r.p[k]);
      } else {
        pack_weights<Shape::kProbability>(r.s, k, r.p[k]);
      }
    }
  }
  __device__ __forceinline__ void rescale(Registers& r, const DueRescale& due) const {
    if (!due.any) return;
    scale_output_row(r.o, 0, 0, due.factor[0]);
    scale_output_row(r.o, 0, 1, due.factor[1]);
    if constexpr (kPromotes && !kFreshSums) {
      float(&sums)[1][kSumBlocks][4] = reinterpret_cast<float(&)[1][kSumBlocks][4]>(r.sums);
      scale_output_row(sums, 0, 0, due.factor[0]);
      scale_output_row(sums, 0, 1, due.factor[1]);
    }
  }

  /// What is not finite of two values of the tile in the current stage: of key `key`, and of the
  /// accumulators' columns `column` (even) and the next.
  __device__ __forceinline__ void nonfinite_pair(int key, int column, float (&pair)[2]) const {
    constexpr OperandLayout kLayout = Shape::kValueLayout;
    const u32 stage = shape.value(values.stage);
    if constexpr (Shape::kTransposes) {
      const int place = code_place(key);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const u32 word =
            load_word(stage + operand_place<kLayout.span>(kLayout, column + i, place / 4 * 4));
        const u32 code = word >> place % 4 * 8 & 0x7Fu;
        pair[i] = code == 0x7Fu ? float_from_bits(0x7FC00000u) : 0.0f;
      }
    } else {
      const u32 word = load_word(stage + operand_place<kLayout.span>(kLayout, key, column * 2));
      pair[0] = nonfinite_value<Shape::kProbability>(word & 0xFFFFu);
      pair[1] = nonfinite_value<Shape::kProbability>(word >> 16);
    }
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
        float pair[2];
        nonfinite_pair(key, n * 8 + column, pair);
        if (at >= upper.begin && at < upper.end) {
          sums[0] += pair[0];
          sums[1] += pair[1];
        }
        if (at >= lower.begin && at < lower.end) {
          sums[2] += pair[0];
          sums[3] += pair[1];
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) r.o[0][n][i] += sums[i];
    }
  }

  /// Makes the tile of values in the current stage fit for products in which masked keys have
  /// weight 0, since 0 times NaN is NaN: what is not finite goes to the rows that see it and is
  /// then cleared. By all consumers, for the same tiles in the same order: those that some row of
  /// the CTA masks, and with them whatever lies before, between or behind the keys of a request. Of
  /// a tile whose rows are all one warpgroup's, by that one alone.
  __device__ __forceinline__ void settle_values(Registers& r, int first_key) const {
    constexpr int kWords = Shape::kValueBytes / 16;
    const bool alone = is_alone();
    const int all = alone ? kWarpgroupThreads : Shape::kConsumerThreads;
    const int barrier = alone ? kOwnBarrier + consumer : kConsumerBarrier;
    uint4* const words = reinterpret_cast<uint4*>(shape.memory + Shape::kLayout.value +
                                                  values.stage * Shape::kLayout.value_bytes);
    const int first = hidden(alone ? thread : consumer * kWarpgroupThreads + thread);
    if constexpr (Shape::kChecks) {
      await(shape.value_checked(values.stage), values.parity);
      if (*shape.found(values.stage) == 0) return;
    } else {
      await(shape.value_full(values.stage), values.parity);
      if constexpr (Shape::kInt8Values == 1) return;  // whatever int8 codes are, they are finite
      u32 found = 0;
      for (int i = first; i < kWords; i += all) {
        const uint4 four = words[i];
        found |= nonfinite_mask<Shape::kProbability>(four.x) |
                 nonfinite_mask<Shape::kProbability>(four.y) |
                 nonfinite_mask<Shape::kProbability>(four.z) |
                 nonfinite_mask<Shape::kProbability>(four.w);
      }
      if (!any_of_threads(found != 0, barrier, all)) return;
    }
    add_nonfinite(r, first_key);
    sync_threads_of(barrier, all);
    for (int i = first; i < kWords; i += all) {
      uint4 four = words[i];
      four.x &= ~nonfinite_mask<Shape::kProbability>(four.x);
      four.y &= ~nonfinite_mask<Shape::kProbability>(four.y);
      four.z &= ~nonfinite_mask<Shape::kProbability>(four.z);
      four.w &= ~nonfinite_mask<Shape::kProbability>(four.w);
      words[i] = four;
    }
    publish_shared_writes();
    sync_threads_of(barrier, all);
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
        cut_to(bounds_of<Config>(shape.params, item.tile, first_row(), kConsumerRows),
               Shape::first_key(item));
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
    if constexpr (Shape::kInt8) {
      await(shape.code_barrier(0, scales.stage), scales.parity);
      leave(shape.code_barrier(1, scales.stage));
      scales.advance();
    }
    if (plan.needs_settling(n) && !is_alone()) {
      settle_values(r, plan.first_key(n));
    } else {
      await(shape.value_full(values.stage), values.parity);
    }
    leave(shape.value_empty(values.stage));
    values.advance();
  }

  /// The first tile: no product runs beside it, but what else is to be done meanwhile.
  template <class Meanwhile>
  __device__ __forceinline__ void start(Registers& r, const Plan& plan, int n,
                                        const Meanwhile& meanwhile) {
    const u64 key = keys_operand();
    await(shape.key_full(keys.stage), keys.parity);
    fence_scores_to_come(r);
    wgmma_fence();
    queue_scores(r, key);
    meanwhile();
    await_products<0>();
    fence_scores(r);
    leave(shape.key_empty(keys.stage));
    keys.advance();
    scale_scores(r);
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
    fence_scores_to_come(r);
    fence_registers(accumulators(r));
    wgmma_fence();
    queue_scores(r, key);
    const u64 value = values_operand();
    await(shape.value_full(values.stage), values.parity);
    wgmma_fence();
    queue_values(r, value, 0);
    if constexpr (Config::kPingPong) pass_turn();
    await_products<1>();
    fence_scores(r);
    leave(shape.key_empty(keys.stage));
    keys.advance();
    scale_scores(r);
    const DueRescale due = weigh(r, plan.first_key(n), kEdge && plan.masks(n));
    fence_registers(r.s);
    await_products<0>();
    fence_registers(accumulators(r));
    multiply_pieces(r, value);
    leave(shape.value_empty(values.stage));
    values.advance();
    pack_all(r);
    promote_when_due(r, false);
    rescale(r, due);
    if constexpr (kEdge) settle_values(r, plan.first_key(n));
  }

  /// The product of the last weights.
  __device__ __forceinline__ void finish(Registers& r) {
    const u64 value = values_operand();
    await(shape.value_full(values.stage), values.parity);
    fence_registers(accumulators(r));
    wgmma_fence();
    queue_values(r, value, 0);
    await_products<0>();
    fence_registers(accumulators(r));
    multiply_pieces(r, value);
    promote_when_due(r, true);
    leave(shape.value_empty(values.stage));
    values.advance();
  }

  __device__ __forceinline__ void pass_turn() const {
    const int next = consumer + 1 == Config::kConsumers ? 0 : consumer + 1;
    arrive_threads_of(kTurnBarrier + next, 2 * kWarpgroupThreads);
  }

  template <class Meanwhile>
  __device__ __forceinline__ void attend(Registers& r, const Plan& plan,
                                         const Meanwhile& meanwhile) {
    int n = plan.tiles.end - 1;
#pragma unroll 1
    for (; n >= plan.seen.end; --n) skip(r, plan, n);
    if (n >= plan.seen.begin) {
      start(r, plan, n, meanwhile);
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
    } else {
      meanwhile();
    }
#pragma unroll 1
    for (; n >= plan.tiles.first; --n) skip(r, plan, n);
  }

  /// O / sum, with the sink and the scale of the output, and the LSE.
  __device__ __forceinline__ void normalise(Registers& r) const {
    const AttendParams& params = shape.params;
    const RowTile& at = *tile();
    // Parts are scaled, and get their sink, once for all of them.
    float factor = has_parts<Config>() ? 1.0f : output_factor(params);
    const bool has_sink = !has_parts<Config>() || at.request == 0;
    if constexpr (Shape::kCodes && !Config::kRoundDequantized) {
      if (params.kv.v_scale != nullptr) factor *= params.kv.v_scale[at.kv_head];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sum_of_row<RowsByKeys>(r.state.sum[0][half]);
      float base = r.state.base[0][half];
      const Row& info = rows()[RowsByKeys::row(half)];
      const int row = first_row() + warp_row() + RowsByKeys::row(half);
      const float sink =
          has_sink ? sink_of_row(params, at, Config::kAlibi, info, row) * kLog2E : kNegInf;
      const float kept = add_sink(sink, base, sum, weight_of_base);
      scale_output_row(r.o, 0, half, sum == 0.0f ? 0.0f : kept / sum * factor);
      if (lane() % 4 == 0 && row < at.num_rows) {
        const float lse = row_lse<Config>(base, sum, info, at.context_len);
        if constexpr (has_parts<Config>()) {
          const SplitParams& parts = shape.list->parts;
          const i64 line = static_cast<i64>(at.request) * params.num_heads + head_of(at, row);
          parts.partial_lse[line * parts.num_tokens + token_of(at, row)] = lse;
        } else {
          store_lse(params, at, row, lse);
        }
      }
    }
    if constexpr (Shape::kInt8Values == 1) scale_columns(r);
  }

  /// Scales of this thread's rows, with that of the softmax. Why none is 0 where it is applied to
  /// masked scores: these are -inf. Scores of a row whose codes are all 0 are 0 with any other.
  __device__ __forceinline__ void set_row_factors(Registers& r) const {
    constexpr float kLeast = 1.17549435e-38f;
    const Int8ScoreParams& int8 = shape.params.int8;
    const RowTile& at = *tile();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = consumer * kConsumerRows + warp_row() + RowsByKeys::row(half);
      r.row_factor[half] = 1.0f;
      if (row >= at.num_rows) continue;
      const float scale = int8.query_scale[token_of(at, row) * int8.query_scale_token_stride +
                                           head_of(at, row) * int8.query_scale_head_stride];
      const float factor = scale * shape.params.score.softmax_scale * kLog2E;
      r.row_factor[half] = Config::kScaleFirst ? factor : fmaxf(factor, kLeast);
    }
  }
  /// Columns of int8 values have scales of their own.
  __device__ __forceinline__ void scale_columns(Registers& r) const {
    const float* const channels = shape.params.int8.value_channel_scale;
    if (channels == nullptr) return;
    const i64 first = static_cast<i64>(tile()->kv_head) * Config::kVHeadSize + lane() % 4 * 2;
#pragma unroll
    for (int n = 0; n < Config::kVHeadSize / 8; ++n) {
      const float low = channels[first + n * 8];
      const float high = channels[first + n * 8 + 1];
      r.o[0][n][0] *= low;
      r.o[0][n][1] *= high;
      r.o[0][n][2] *= low;
      r.o[0][n][3] *= high;
    }
  }

  __device__ __forceinline__ void reset_sums(Registers& r) const {
    r.unpromoted = 0;
    const KvParams& kv = shape.params.kv;
    r.factor = shape.params.score.softmax_scale * kLog2E;
    if constexpr (Shape::kInt8) set_row_factors(r);
    if constexpr (Shape::kCodes && !Config::kRoundDequantized) {
      if (kv.k_scale != nullptr) r.factor *= kv.k_scale[tile()->kv_head];
    }
#pragma unroll
    for (int n = 0; n < kSumBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) r.sums[n][i] = 0.0f;
    }
  }

  __device__ __forceinline__ void work(const HopperItem& item) {
    if constexpr (has_tile_list<Config>()) take_slot(item);
    const Plan plan = plan_of(item);
    const bool copies = !Config::kAhead || first_row() + kConsumerRows > item.tile.num_rows;
    // What is skipped first may be settled, which asks the rows, and in a list how many there are.
    const bool begins_to_skip = has_tile_list<Config>() || plan.seen.end < plan.tiles.end;
    if (copies || begins_to_skip) describe(item);
    if (copies) copy_query();
    Registers r;
    reset_state(r.state);
    reset_sums(r);
#pragma unroll
    for (int n = 0; n < kValueBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) r.o[0][n][i] = 0.0f;
    }
    attend(r, plan, [&] {
      if (!copies && !begins_to_skip) describe(item);
    });
    if constexpr (kShortcuts) {
      const bool has_rows = first_row() < tile()->num_rows;
      __syncwarp();  // the next tile comes there
      if (!has_rows) return;
    }
    normalise(r);
    if constexpr (has_parts<Config>()) {
      store_part(r.o);
    } else if constexpr (Config::kWideStores) {
      store_wide(r.o);
    } else {
      store_pairs(r.o);
    }
  }

  __device__ void run() {
    // The first turn is the first warpgroup's; it counts as passed on by itself.
    if constexpr (Config::kPingPong) {
      if (consumer == 0) arrive_threads_of(kTurnBarrier, 2 * kWarpgroupThreads);
    }
    if constexpr (Config::kAhead) {
      for (;;) {
        await(shape.query_full(query_stage()), items_done / Shape::kQueryStages % 2);
        const HopperItem& item = *shape.item_place(query_stage());
        if (item.tile.num_rows <= 0) return;
        work(item);
        publish_shared_writes();  // of output rows, which the next queries overwrite
        __syncwarp();
        leave(shape.query_empty(query_stage()));
        ++items_done;
      }
    } else {
      shape.for_each_item([&](const HopperItem& item) { work(item); });
    }
  }
};

}  // namespace attn
