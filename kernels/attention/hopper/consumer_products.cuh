// The products of a consumer warpgroup of the Hopper prefill kernel: what lives in its registers,
// the descriptors of the stages that it multiplies with, S = Q @ K^T and O += P @ V as groups of
// wgmma, and what values have to be like before they are multiplied.
//
// Tensor cores of SM 9.0 keep about 13 bits of sums of e4m3 products: a sum that has become large
// stops growing. So these go to accumulators that start from zero every kPromote tiles, and from
// there into O, where f32 sums have 24 bits (promotion). Where both do not fit into the registers
// beside each other, a tile is multiplied piece by piece of its columns, through one small set.
// With kSums the pieces are multiplied while weights of the next tile are computed: a tile may then
// be twice as wide, as its sums take half or a quarter of the registers. With kApart a tile's
// values are multiplied when its scores have become weights of a quarter of their size: sums of all
// columns take the registers of the scores.
#pragma once

#include "kernels/attention/hopper/consumer_place.cuh"
#include "kernels/attention/hopper/soft_cap.cuh"
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
struct HopperProducts : HopperPlace<Config> {
  using Place = HopperPlace<Config>;
  using Shape = HopperShape<Config>;
  using Place::consumer;
  using Place::is_alone;
  using Place::lane;
  using Place::leave;
  using Place::rows;
  using Place::shape;
  using Place::thread;
  static constexpr int kKeyBlocks = Config::kTileN / 8;
  static constexpr int kValueBlocks = Shape::kVColumns / 8;
  static constexpr int kStepElements = 32 / Shape::kBytes;
  static constexpr int kKeySteps = Shape::kColumns / kStepElements;
  static constexpr int kValueSteps = Config::kTileN * value_operand_bytes(Shape::kTile) / 32;

  static constexpr bool kPromotes = Shape::kTransposes && Config::kPromote > 0;
  /// Whether pieces are multiplied between the exponentials of the next tile, HopperPlan::sums.
  static constexpr bool kInterleaves = kPromotes && Config::kSums > 0;
  /// Columns that are summed beside O. More than 128 do not fit beside them and the scores.
  static constexpr int kSumColumns = kInterleaves                            ? Config::kSums
                                     : !kPromotes || Shape::kVColumns <= 128 ? Shape::kVColumns
                                     : Shape::kVColumns % 64 == 0            ? 64
                                                                             : 32;
  static constexpr int kPieces = Shape::kVColumns / kSumColumns;
  static_assert(Shape::kVColumns % kSumColumns == 0 && (!kInterleaves || kPieces > 1));
  /// Sums of one tile: the first product of each need not know what was there before.
  static constexpr bool kFreshSums = kPromotes && (kPieces > 1 || Config::kPromote == 1);
  static constexpr int kSumBlocks = kPromotes ? kSumColumns / 8 : 1;
  /// HopperPlan::apart.
  static constexpr bool kApart = requires { Config::kApart; };
  static_assert(!kApart || (kFreshSums && !kInterleaves));

  /// What lives in registers from tile to tile. S becomes weights in place.
  struct Registers {
    float s[kKeyBlocks][4];
    int products[Shape::kInt8 ? kKeyBlocks : 1][4];  // of int8 scores, before they become s
    float row_factor[2];                             // likewise, of a thread's rows
    float o[1][kValueBlocks][4];
    u32 p[kValueSteps][4];
    float sums[kSumBlocks][4];                  // on their way to O; kPromotes only
    u32 slopes[Shape::kSlopeProducts ? 4 : 1];  // of ALiBi, as a left operand: set_slopes()
    u32 unpromoted;  // tiles in them; 0: what they hold counts for nothing
    float factor;    // of scores: the scale, log2(e) and that of the keys
    SoftmaxState<1> state;
  };

  Ring<Config::kStages> keys{0, 0};
  Ring<Config::kStages> values{0, 0};
  Ring<kCodeStages> scales{0, 0};

  /// Descriptors of the keys and values in the current stages. Why by a shuffle: it shows the
  /// compiler that all lanes have the same, so that the steps of a product are added where
  /// descriptors are kept; else each of them takes an addition and two moves of every lane. Why
  /// apart from the products: a shuffle takes its time, which passes while the stage is waited for.
  /// Not needed where the stage is a constant (kIsKnown).
  template <bool kIsKnown = false>
  __device__ __forceinline__ u64 keys_operand() const {
    const int stage = kIsKnown ? keys.stage : of_warp(keys.stage);
    return k_major_form(Shape::kKeyLayout) | operand_address(shape.key(stage));
  }
  template <bool kIsKnown = false>
  __device__ __forceinline__ u64 values_operand() const {
    constexpr u64 kForm =
        Shape::kTransposes ? k_major_form(Shape::kValueLayout) : mn_major_form(Shape::kValueLayout);
    const int stage = kIsKnown ? values.stage : of_warp(values.stage);
    return kForm | operand_address(shape.value(stage));
  }
  /// Whether the tiles that nobody masks are computed by as many copies of a step as there are
  /// stages, each of which has its stages as constants (HopperPlan::unrolled).
  static constexpr bool kUnrolled = requires { Config::kUnrolled; };
  static constexpr int kAnyStage = -1;
  /// The stage of the keys of a step's tile becomes a constant. That of the values is the one
  /// before, as they are of the tile before, or with kApart the same.
  template <int kStage>
  __device__ __forceinline__ void know_stages() {
    if constexpr (kStage != kAnyStage) {
      keys.stage = kStage;
      values.stage = kApart ? kStage : (kStage + Config::kStages - 1) % Config::kStages;
      if constexpr (Shape::kInt8 && kCodeStages == Config::kStages) scales.stage = kStage;
    }
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

  /// A thread's slopes as terms of bf16, in units of scores. A left operand has its rows' columns
  /// 2t and 2t + 1 in thread t of the four that share them, and columns from 8 on in other
  /// registers.
  __device__ __forceinline__ void set_slopes(Registers& r) const {
    if constexpr (Shape::kSlopeProducts) {
      const float unit = shape.params.score.softmax_scale * kLog2E;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float slope = rows()[RowsByKeys::row(half)].slope / unit;
        const u32 first = pack<Element::kBF16>(slope, 0.0f);
        const float second = slope - float_from_bits(first << 16);
        const u32 two = pack<Element::kBF16>(slope, second);
        const u32 third = pack<Element::kBF16>(second - float_from_bits(two & 0xFFFF0000u), 0.0f);
        r.slopes[half] = lane() % 4 == 0 ? two : (lane() % 4 == 1 ? third : 0u);
        r.slopes[2 + half] = 0;
      }
    }
  }
  /// After the products of the scores: what is largest is added last.
  __device__ __forceinline__ void queue_slopes(Registers& r) const {
    if constexpr (Shape::kSlopeProducts) {
      multiply_registers<Element::kBF16>(
          r.s, r.slopes,
          mn_major_form(distance_layout()) |
              operand_address(shape.base + Shape::kLayout.distances));
    }
  }
  /// kSlopesLater: a row tile's slopes are not known yet.
  template <bool kSlopesLater = false>
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
    if constexpr (!kSlopesLater) queue_slopes(r);
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
  /// An integer of at most 2^22 as f32, exact either way. By additions: 1.5 * 2^23 + n has n in its
  /// last bits.
  __device__ __forceinline__ static float number_of(int n) {
    if constexpr (requires { Config::kAddFloats; }) {
      return float_from_bits(static_cast<u32>(n) + 0x4B400000u) - 12582912.0f;
    } else {
      return static_cast<float>(n);
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
        r.s[n][0] = number_of(r.products[n][0]) * of_keys.x;
        r.s[n][1] = number_of(r.products[n][1]) * of_keys.y;
        r.s[n][2] = number_of(r.products[n][2]) * of_keys.x;
        r.s[n][3] = number_of(r.products[n][3]) * of_keys.y;
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
  /// The product of the piece before `piece` into O, and this one's under way.
  __device__ __forceinline__ void change_piece(Registers& r, u64 value, int piece) const {
    await_products<0>();
    fence_registers(accumulators(r));
    promote(r, piece - 1);
    fence_registers(accumulators(r));
    wgmma_fence();
    queue_values(r, value, piece);
  }
  /// What weigh() calls before pair `i` of the weights' `all`, of which `sum` is a sum: with
  /// kInterleaves pieces change at equal distances, for the first time when the maximum is known.
  /// In the main loop ptxas leaves order_after() out, it seems because sums of exponentials are not
  /// negative, and changes pieces first; an order that it cannot change was no faster.
  __device__ __forceinline__ void between_exponentials(Registers& r, u64 value, int i, int all,
                                                       float sum) const {
    if constexpr (kInterleaves) {
      const int turn = i * (kPieces - 1) / all;
      const bool is_due = i == 0 || turn != (i - 1) * (kPieces - 1) / all;
      if (!is_due) return;
      if (i > 0) order_after(sum);
      change_piece(r, value, turn + 1);
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
  /// a tile whose rows are all one warpgroup's, by that one alone. kSees: whether this warpgroup
  /// sees any of its keys; else it need not know its rows yet.
  template <bool kSees>
  __device__ __forceinline__ void settle_values(Registers& r, int first_key) const {
    constexpr int kWords = Shape::kValueBytes / 16;
    const bool alone = is_alone();
    const int all = alone ? kWarpgroupThreads : Shape::kConsumerThreads;
    const int barrier = alone ? kOwnBarrier + consumer : kConsumerBarrier;
    uint4* const words = reinterpret_cast<uint4*>(shape.memory + Shape::kLayout.value +
                                                  values.stage * Shape::kLayout.value_bytes);
    const int first = hidden(alone ? thread : consumer * kWarpgroupThreads + thread);
    if constexpr (Shape::kChecks) {
      // Where something was found, looking again costs nothing that counts: without it ptxas
      // spills.
      await(shape.value_checked(values.stage), values.parity);
      if (*shape.found(values.stage) == 0) return;
    } else {
      await(shape.value_full(values.stage), values.parity);
    }
    if constexpr (Shape::kInt8Numbers) return;
    u32 found = 0;
    for (int i = first; i < kWords; i += all) {
      const uint4 four = words[i];
      found |= nonfinite_mask<Shape::kProbability>(four.x) |
               nonfinite_mask<Shape::kProbability>(four.y) |
               nonfinite_mask<Shape::kProbability>(four.z) |
               nonfinite_mask<Shape::kProbability>(four.w);
    }
    if (!any_of_threads(found != 0, barrier, all)) return;
    if constexpr (kSees) add_nonfinite(r, first_key);
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
};

}  // namespace attn
