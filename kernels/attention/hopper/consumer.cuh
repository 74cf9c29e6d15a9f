// A consumer warpgroup of the Hopper prefill kernel: 64 query rows against the tiles of keys that
// the producer brings, from the last one back.
//
// The products of two tiles are in work at a time: S = Q @ K^T of a tile is queued before O += P @
// V of the one before it, so that the tensor cores multiply while this warpgroup computes weights.
//   step n: queue S(n) and O += P(n+1) V(n+1); S(n) is there: K's stage is free, mask, weights;
//   O is there: V's stage is free, P(n) is packed, O takes the factors of the new base.
// P is packed only then because the product under way reads the registers of the last P.
// With kApart each tile is done from its scores to its part of O (step_apart()).
#pragma once

#include "kernels/attention/hopper/few_rows.cuh"

namespace attn {

template <class Config>
struct HopperConsumer : HopperFewRows<Config> {
  using Place = HopperPlace<Config>;
  using Products = HopperProducts<Config>;
  using FewRows = HopperFewRows<Config>;
  using Shape = HopperShape<Config>;
  using Place::consumer;
  using Place::first_row;
  using Place::is_alone;
  using Place::lane;
  using Place::leave;
  using Place::leave_unread;
  using Place::place_of;
  using Place::rows;
  using Place::shape;
  using Place::tile;
  using Place::warp_row;
  using Products::accumulators;
  using Products::between_exponentials;
  using Products::fence_scores;
  using Products::fence_scores_to_come;
  using Products::keys;
  using Products::keys_operand;
  using Products::kInterleaves;
  using Products::kKeyBlocks;
  using Products::kPieces;
  using Products::kSumBlocks;
  using Products::kValueBlocks;
  using Products::multiply_pieces;
  using Products::pack_all;
  using Products::promote;
  using Products::promote_when_due;
  using Products::queue_scores;
  using Products::queue_values;
  using Products::rescale;
  using Products::scale_scores;
  using Products::scales;
  using Products::values;
  using Products::values_operand;
  using Registers = typename Products::Registers;

  /// S of the tile at `first_key` -> weights. `masked`: some of this warpgroup's rows may not see
  /// some of its keys. `between`: weigh_scores(), of e4m3 products.
  template <class Between>
  __device__ __forceinline__ DueRescale weigh(Registers& r, int first_key, bool masked,
                                              const Between& between) const {
    const ScoreParams& score = shape.params.score;
    const float factor = Shape::kCodes ? r.factor : score.softmax_scale * kLog2E;
    if constexpr (Config::kCap > 0) return weigh_capped(r, first_key, masked);
    if constexpr (Config::kSlopes > 0) return weigh_biased(r, first_key, masked);
    if constexpr (Config::kScaleFirst) {
      if constexpr (Shape::kInt8) scale_rows(r);
      float(&s)[1][kKeyBlocks][4] = reinterpret_cast<float(&)[1][kKeyBlocks][4]>(r.s);
      transform_scores<Config, RowsByKeys>(s, rows(), first_key,
                                           {Shape::kInt8 ? 1.0f : factor, score.soft_cap});
    }
    if (masked) mask_scores<Config::kLeft, Shape::kIsShort>(r.s, rows(), first_key);
    if constexpr (Shape::kInt8 && !Config::kScaleFirst) {
      return weigh_scores<Shape::kTransposes, Config::kBounds>(r.s, r.row_factor, r.state, between);
    } else {
      return weigh_scores<Shape::kTransposes, Config::kBounds>(
          r.s, Config::kScaleFirst ? 1.0f : factor, r.state, between);
    }
  }
  __device__ __forceinline__ DueRescale weigh(Registers& r, int first_key, bool masked) const {
    return weigh(r, first_key, masked, [](int, int, float) {});
  }
  /// With a form of soft cap. What a row may not see is finite for the cap, and hidden after it.
  __device__ __forceinline__ DueRescale weigh_capped(Registers& r, int first_key,
                                                     bool masked) const {
    const SoftCap& cap = shape.grid.cap;
    if (masked) mask_scores<Config::kLeft, Shape::kIsShort>(r.s, rows(), first_key, 0.0f);
    float most[2];
    bound_scores(r.s, most);
    const float most_of_both = fmaxf(most[0], most[1]);
    if (masked) {
      cap_scores<Config::kCap>(r.s, most_of_both, {0.0f, 0.0f}, cap);
      mask_scores<Config::kLeft, Shape::kIsShort>(r.s, rows(), first_key);
      return weigh_scores<false, Config::kBounds>(r.s, 1.0f, r.state, [](int, int, float) {});
    }
    // A capped score is at most what it would be without, and at most the cap.
    most[0] = fminf(most[0] * cap.series[0], cap.outer);
    most[1] = fminf(most[1] * cap.series[0], cap.outer);
    const DueRescale due = raise_bases<false>(most, r.state, [&](float(&exact)[2]) {
      largest_scores(r.s, exact);
      exact[0] = cap_score(exact[0], cap);
      exact[1] = cap_score(exact[1], cap);
    });
    // Why: a row that has seen no key has base -inf, and (-inf) - (-inf) is NaN.
    const float bases[2] = {r.state.base[0][0] == kNegInf ? 0.0f : r.state.base[0][0],
                            r.state.base[0][1] == kNegInf ? 0.0f : r.state.base[0][1]};
    cap_scores<Config::kCap>(r.s, most_of_both, bases, cap);
    weigh_exponents(r.s, r.state);
    return due;
  }
  /// With slopes of ALiBi for keys by their positions.
  __device__ __forceinline__ DueRescale weigh_biased(Registers& r, int first_key,
                                                     bool masked) const {
    KeyBias bias;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Row& row = rows()[RowsByKeys::row(half)];
      bias.slope[half] = row.slope;
      const int from = Shape::kSlopeProducts ? first_key + Config::kTileN - 1
                                             : first_key + RowsByKeys::key(0, 0);
      bias.start[half] = row.slope * static_cast<float>(from - row.position);
    }
    const float factor = shape.params.score.softmax_scale * kLog2E;
    if constexpr (Config::kSlopes == 1) bias.slope[1] = bias.slope[0];
    if constexpr (!Shape::kSlopeProducts) add_slopes(r.s, factor, bias);
    if (masked) mask_scores<Config::kLeft, Shape::kIsShort>(r.s, rows(), first_key);
    return weigh_from<Config::kBounds>(r.s, Shape::kSlopeProducts ? factor : 1.0f, bias.start,
                                       r.state);
  }
  __device__ __forceinline__ static void scale_rows(Registers& r) {
#pragma unroll
    for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) r.s[n][i] *= r.row_factor[i / 2];
    }
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
    HopperShare mine;
    Plan plan;
    if constexpr (Shape::kIsShort) {
      const HandedItem& handed = *shape.item_place(this->query_stage());
      mine = handed.shares[first_row() / kConsumerRows];
      plan.unmasked = handed.unmasked;
    } else {
      mine = shape.share_of(item, first_row());
      plan.unmasked = unmasked_tiles(item.keys, item.bounds.core, Config::kTileN);
    }
    plan.tiles = item.keys;
    plan.seen = mine.seen;
    plan.own_core = mine.core;
    return plan;
  }

  /// A tile of which this warpgroup sees nothing: its stages are left when they are full, no
  /// sooner, or the ring would run ahead of the copies.
  __device__ void skip(Registers& r, const Plan& plan, int n) {
    await(shape.key_full(keys.stage), keys.parity);
    leave_unread(shape.key_empty(keys.stage));
    keys.advance();
    if constexpr (Shape::kInt8) {
      await(shape.code_barrier(0, scales.stage), scales.parity);
      leave_unread(shape.code_barrier(1, scales.stage));
      scales.advance();
    }
    if (plan.needs_settling(n) && !is_alone()) {
      // With an output to come the rows in shared memory are those of the item before.
      this->template settle_values<!Config::kLateOutput>(r, plan.first_key(n));
    } else {
      await(shape.value_full(values.stage), values.parity);
    }
    leave_unread(shape.value_empty(values.stage));
    values.advance();
  }

  /// When the scores of tile `n` are there: whether the item's queries were read for the last time.
  __device__ __forceinline__ void leave_query_early(const Plan& plan, int n) const {
    if constexpr (Shape::kLeavesEarly) {
      if (n == plan.seen.begin) leave(shape.query_empty(0));
    }
  }

  /// O = 0. Where a CTA stays it is done behind the first weights and hidden from the compiler,
  /// which else copies zeros from register to register at every branch, 130 instructions a row
  /// tile. Elsewhere that would spill.
  static constexpr bool kClearsLate = Shape::kIsShort;
  __device__ __forceinline__ static void clear_output(Registers& r) {
#pragma unroll
    for (int n = 0; n < kValueBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) r.o[0][n][i] = 0.0f;
    }
    if constexpr (kClearsLate) fence_registers(r.o[0]);
  }

  /// The first tile: no product runs beside it, but what else is to be done meanwhile.
  template <class Meanwhile>
  __device__ __forceinline__ void start(Registers& r, const Plan& plan, int n,
                                        const Meanwhile& meanwhile) {
    const u64 key = keys_operand();
    await(shape.key_full(keys.stage), keys.parity);
    fence_scores_to_come(r);
    wgmma_fence();
    this->template queue_scores<Shape::kSlopeProducts>(r, key);
    meanwhile();
    if constexpr (Shape::kSlopeProducts) {
      this->set_slopes(r);
      wgmma_fence();
      this->queue_slopes(r);
      close_product_group();
    }
    await_products<0>();
    fence_scores(r);
    leave(shape.key_empty(keys.stage));
    leave_query_early(plan, n);
    keys.advance();
    scale_scores(r);
    weigh(r, plan.first_key(n), plan.masks(n));
    pack_all(r);
    if constexpr (kClearsLate) clear_output(r);
    if (plan.needs_settling(n)) this->template settle_values<true>(r, plan.first_key(n));
  }

  /// step() of a tile with no product of another one beside it; other warpgroups fill the tensor
  /// cores. A turn ends with the scores: products that are queued together end together, and then
  /// all want the exponential unit at once. Why not by finish(): it spills 180 bytes here, not 132.
  template <bool kEdge, int kStage>
  __device__ __forceinline__ void step_apart(Registers& r, const Plan& plan, int n) {
    constexpr bool kIsKnown = kStage != Products::kAnyStage;
    this->template know_stages<kStage>();
    const u64 key = this->template keys_operand<kIsKnown>();
    await(shape.key_full(keys.stage), keys.parity);
    if constexpr (Config::kPingPong) {
      sync_threads_of(kTurnBarrier + consumer, 2 * kWarpgroupThreads);
    }
    fence_scores_to_come(r);
    wgmma_fence();
    queue_scores(r, key);
    await_products<0>();
    fence_scores(r);
    if constexpr (Config::kPingPong) pass_turn();
    leave(shape.key_empty(keys.stage));
    keys.advance();
    rescale(r, weigh(r, plan.first_key(n), kEdge && plan.masks(n)));
    pack_all(r);
    await(shape.value_full(values.stage), values.parity);
    if (kEdge && plan.needs_settling(n)) this->template settle_values<true>(r, plan.first_key(n));
    const u64 value = this->template values_operand<kIsKnown>();
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

  /// kEdge: the tile may have masked keys. kStage: where it lies, or kAnyStage.
  template <bool kEdge, int kStage = Products::kAnyStage>
  __device__ __forceinline__ void step(Registers& r, const Plan& plan, int n) {
    if constexpr (Products::kApart) {
      step_apart<kEdge, kStage>(r, plan, n);
      return;
    }
    constexpr bool kIsKnown = kStage != Products::kAnyStage;
    this->template know_stages<kStage>();
    const u64 key = this->template keys_operand<kIsKnown>();
    await(shape.key_full(keys.stage), keys.parity);
    if constexpr (Config::kPingPong) {
      sync_threads_of(kTurnBarrier + consumer, 2 * kWarpgroupThreads);
    }
    fence_scores_to_come(r);
    fence_registers(accumulators(r));
    wgmma_fence();
    queue_scores(r, key);
    const u64 value = this->template values_operand<kIsKnown>();
    await(shape.value_full(values.stage), values.parity);
    wgmma_fence();
    queue_values(r, value, 0);
    if constexpr (Config::kPingPong) pass_turn();
    await_products<1>();
    fence_scores(r);
    leave(shape.key_empty(keys.stage));
    leave_query_early(plan, n);
    keys.advance();
    scale_scores(r);
    const DueRescale due =
        weigh(r, plan.first_key(n), kEdge && plan.masks(n),
              [&](int i, int all, float sum) { between_exponentials(r, value, i, all, sum); });
    if constexpr (Config::kOrdered || kInterleaves) {
      order_after(r.state.sum[0][0] + r.state.sum[0][1]);
    }
    fence_registers(r.s);
    await_products<0>();
    fence_registers(accumulators(r));
    if constexpr (kInterleaves) {
      promote(r, kPieces - 1);
    } else {
      multiply_pieces(r, value);
    }
    leave(shape.value_empty(values.stage));
    values.advance();
    pack_all(r);
    promote_when_due(r, false);
    rescale(r, due);
    if constexpr (kEdge) this->template settle_values<true>(r, plan.first_key(n));
  }

  /// A step for every stage, from kStage on.
  template <int kStage = 0>
  __device__ __forceinline__ void steps_of_stages(Registers& r, const Plan& plan, int n) {
    step<false, kStage>(r, plan, n);
    if constexpr (kStage + 1 < Config::kStages) steps_of_stages<kStage + 1>(r, plan, n - 1);
  }
  /// All tiles from `n` back that no row of the CTA masks; the first that is left.
  __device__ __forceinline__ int step_unmasked(Registers& r, const Plan& plan, int n) {
    if constexpr (Products::kUnrolled) {
      const int last = larger(plan.seen.begin, plan.unmasked.begin);
#pragma unroll 1
      for (; n >= last; --n) {
        if (keys.stage == 0) {
#pragma unroll 1
          for (; n >= last + Config::kStages - 1; n -= Config::kStages) steps_of_stages(r, plan, n);
          if (n < last) break;
        }
        step<false>(r, plan, n);
      }
    } else {
#pragma unroll 1
      for (; n >= plan.seen.begin && n >= plan.unmasked.begin; --n) step<false>(r, plan, n);
    }
    return n;
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

  /// `meanwhile` is done beside the first product, `then` when its weights are there.
  template <class Meanwhile, class Then>
  __device__ __forceinline__ void attend(Registers& r, const Plan& plan, const Meanwhile& meanwhile,
                                         const Then& then) {
    int n = plan.tiles.end - 1;
#pragma unroll 1
    for (; n >= plan.seen.end; --n) skip(r, plan, n);
    if (n >= plan.seen.begin) {
      if constexpr (Products::kApart) {
        meanwhile();
      } else {
        start(r, plan, n, meanwhile);
        --n;
      }
      then();
#pragma unroll 1
      for (; n >= plan.seen.begin && n >= plan.unmasked.end; --n) step<true>(r, plan, n);
      n = step_unmasked(r, plan, n);
      if constexpr (Config::kLeft) {
#pragma unroll 1
        for (; n >= plan.seen.begin; --n) step<true>(r, plan, n);
      }
      if constexpr (!Products::kApart) finish(r);
    } else {
      meanwhile();
      then();
      if constexpr (kClearsLate) clear_output(r);
      if constexpr (Shape::kLeavesEarly) leave_unread(shape.query_empty(0));
    }
#pragma unroll 1
    for (; n >= plan.tiles.first; --n) skip(r, plan, n);
  }

  /// The LSE of this thread's row `half`, where there is such a row.
  __device__ __forceinline__ void store_row_lse(const RowTile& at, int half, float base,
                                                float sum) const {
    const AttendParams& params = shape.params;
    const int row = first_row() + warp_row() + RowsByKeys::row(half);
    if (row >= at.num_rows) return;
    const float lse = row_lse<Config>(base, sum, rows()[RowsByKeys::row(half)], at.context_len);
    const auto place = place_of(at, row);
    const int token = at.first_token + place.token;
    if constexpr (has_parts<Config>()) {
      const SplitParams& parts = shape.list->parts;
      const i64 line = static_cast<i64>(at.request) * params.num_heads + place.head;
      parts.partial_lse[line * parts.num_tokens + token] = lse;
    } else if (params.lse != nullptr) {
      params.lse[place.head * params.lse_stride + token] = lse;
    }
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
    // As few branches as there can be, and no divisions: all consumers end their tiles at about the
    // same time, so what waits for the last instruction counts.
    float sums[2];
    float bases[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& sum = sums[half];
      float& base = bases[half];
      sum = sum_of_row<RowsByKeys>(r.state.sum[0][half]);
      base = r.state.base[0][half];
      float kept = 1.0f;
      if (has_sink && params.score.sinks != nullptr) {
        const int row = RowsByKeys::row(half);
        const float sink =
            sink_of_row(params, at, Config::kAlibi, rows()[row], first_row() + warp_row() + row) *
            kLog2E;
        kept = add_sink(sink, base, sum, weight_of_base);
      }
      scale_output_row(r.o, 0, half, sum == 0.0f ? 0.0f : reciprocal_fast(sum) * kept * factor);
      if (!Shape::kIsPlain && lane() % 4 == 0) store_row_lse(at, half, base, sum);
    }
    // All four lanes of a row have its sum: one of them for each of their two rows, at once.
    const int half = lane() % 4;
    if (Shape::kIsPlain && half < 2) {
      store_row_lse(at, half, half == 0 ? bases[0] : bases[1], half == 0 ? sums[0] : sums[1]);
    }
    if constexpr (Shape::kInt8Numbers) scale_columns(r);
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

  __device__ __forceinline__ void reset(Registers& r) const {
    reset_state(r.state);
    reset_sums(r);
    if constexpr (!kClearsLate) clear_output(r);
  }
};

}  // namespace attn
