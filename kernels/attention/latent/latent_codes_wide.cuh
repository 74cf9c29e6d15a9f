// latent_codes.cuh for more query rows than 32: the same keys by the same loads, in tiles of 64
// rows, which products bound as much as memory does.
//
// Scores S = Q K^T have query rows as rows, so that a thread has two of them; the output stays
// transposed, O^T = V^T P^T, for the sake of V, whose codes become left operands in registers. The
// output of 64 rows is too much for one warpgroup: either half has 256 columns of V. Tiles of keys
// come in pairs: the left half makes the scores and weights of the even tile, the right half those
// of the odd one, on the same base, and either multiplies its columns of both tiles.
//
// Config: as of latent_codes.cuh, with kRows = 64
#pragma once

#include "kernels/attention/latent/latent_codes_parts.cuh"
#include "kernels/attention/latent/latent_products.cuh"

namespace attn {

constexpr int kWideRows = 64;
constexpr int kWideBlocks = kLatentValues / 2 / 64;  // products that make the columns of a half
using WidePlaces = CodesPlaces<kWideRows>;
using WideOutput = float[kWideBlocks][kWideRows / 2];
using WideFragments = u32[kWideBlocks][4];

/// What a half has of a row tile: the output of its columns.
struct WideCodes {
  WideOutput output;
  LatentState state;

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kWideBlocks * kWideRows / 2; ++i) {
      output[i / (kWideRows / 2)][i % (kWideRows / 2)] = 0.0f;
    }
    state = {{kNegInf, kNegInf}, {0.0f, 0.0f}};
  }
};

/// The columns of a thread: 8 in a row from here on, of every key.
ATTN_FN constexpr int wide_column(int half, int index) {
  return half * (kLatentValues / 2) + index / 32 * 64 + index % 32 / 4 * 8;
}
/// f32 numbers of the query rows: maxima of either tile of a pair, and factors of the output.
ATTN_FN constexpr u32 wide_maxima_at(int half) {
  return static_cast<u32>(WidePlaces::kMaximumAt + half * kWideRows * 4);
}
ATTN_FN constexpr u32 wide_sums_at(int half) {
  return static_cast<u32>(WidePlaces::kSumAt + half * kWideRows * 4);
}
constexpr u32 kWideFactorsAt = WidePlaces::kReducedAt;
ATTN_FN constexpr u32 wide_weights_at(int tile) {
  return static_cast<u32>(WidePlaces::kWeightsAt + tile * WidePlaces::kWeightsOfHalf);
}

/// S of a tile, in two sums of 288 columns (make_code_scores()): there are no registers for three.
__device__ __forceinline__ void make_wide_scores(float (&scores)[32], u32 keys) {
  constexpr int kStepsOfSum = kCodeEntry / 32 / 2;
  float others[32];
  pin(scores);
  pin(others);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 2 * kStepsOfSum; ++i) {
    const int piece = i / 4;
    const int step = i % 4;
    const u64 left = along_rows(
        static_cast<u32>(WidePlaces::kQueryAt + piece * WidePlaces::kQueryPiece + step * 32));
    const u64 right = along_rows(keys + static_cast<u32>(piece * kCodePieceBytes + step * 32));
    if (i < kStepsOfSum) {
      multiply_code_scores<kWideRows>(scores, left, right, i != 0);
    } else {
      multiply_code_scores<kWideRows>(others, left, right, i != kStepsOfSum);
    }
  }
  close_product_group();
  await_products<0>();
  pin(scores);
  pin(others);
#pragma unroll
  for (int i = 0; i < 32; ++i) scores[i] += others[i];
}

/// Whether the base of a row may lag behind its maximum, so that the halves seldom have to agree on
/// a new one. Not where weights are rounded to e4m3, whose smallest ones would be lost.
template <class Config>
constexpr bool kBaseLags = !Config::kE4M3Probability;
/// By how much: log2 of the largest weight.
constexpr float kWideLag = 7.0f;
/// As kCodeWeightsUp, with room for such weights in f16, which ends at 2^16.
template <class Config>
constexpr float kWideWeightsUp = kCodeWeightsUp<Config> - (kBaseLags<Config> ? kWideLag : 0.0f);

/// Whether a score of this thread's is further above the base of its row than weights may be.
__device__ __forceinline__ bool exceeds(const float (&scores)[32], float scale, RowPair base) {
  const RowPair most = largest_of_thread(scores);
  return most.low * scale > base.low + kWideLag || most.high * scale > base.high + kWideLag;
}

/// Weights 2^(score * scale - base), as weigh() and pack_weights(), but scores stay: they may have
/// to be weighed anew. Returns their sums of this thread, which are larger by 2^kWideWeightsUp too.
template <class Config>
__device__ __forceinline__ RowPair weigh_wide(const float (&scores)[32], float scale, RowPair base,
                                              LeftOperand& packed) {
  const float low = base_of(base.low) - kWideWeightsUp<Config>;
  const float high = base_of(base.high) - kWideWeightsUp<Config>;
  RowPair sum{0.0f, 0.0f};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float* const of = scores + 4 * j;
    const RowPair first{exp2_fast(of[0] * scale - low), exp2_fast(of[2] * scale - high)};
    const RowPair second{exp2_fast(of[1] * scale - low), exp2_fast(of[3] * scale - high)};
    packed[j / 2][j % 2 * 2] = pack_code_weights<Config>(first.low, second.low);
    packed[j / 2][j % 2 * 2 + 1] = pack_code_weights<Config>(first.high, second.high);
    sum.low += first.low + second.low;
    sum.high += first.high + second.high;
  }
  return sum;
}

/// Codes of V of 16 keys, as a thread reads them: of the two keys that it has of every 8.
struct WideWords {
  u32 first[2][2];
  u32 second[2][2];
};
/// Where a thread's codes of a tile begin; of its second key another address, since lines are
/// swizzled.
struct WideValues {
  u32 first;
  u32 second;
};
template <int kHalf>
__device__ __forceinline__ WideValues wide_values(u32 tile, const LatentThread& thread) {
  const u32 piece = tile + static_cast<u32>((kHalf * 2 + thread.warp / 2) * kCodePieceBytes);
  const int column = thread.warp % 2 * 64 + thread.lane / 4 * 8;  // of the piece
  const auto place = [&](int row) {
    return piece + static_cast<u32>(latent_part_at(row, column / 16) + column % 16);
  };
  return {place(thread.column), place(thread.column + 1)};
}
/// Of the 16 keys from 16 * step on.
__device__ __forceinline__ WideWords load_wide_words(const WideValues& values, int step) {
  WideWords words;
#pragma unroll
  for (int eight = 0; eight < 2; ++eight) {
    const auto at = static_cast<u32>((16 * step + 8 * eight) * 128);
    load_two_words(values.first + at, words.first[eight]);
    load_two_words(values.second + at, words.second[eight]);
  }
  return words;
}
/// Fragments of V^T, as make_fragments().
__device__ __forceinline__ void make_wide_fragments(WideFragments& fragments,
                                                    const WideWords& words) {
#pragma unroll
  for (int eight = 0; eight < 2; ++eight) {
    interleave_codes(fragments, 2 * eight, words.first[eight], words.second[eight]);
  }
}

/// O^T += V^T P^T of a pair of tiles, of which `has_odd` says whether the second is there; ends
/// when all products have. Codes are loaded a step ahead, and become fragments while the product
/// before theirs runs: loads behind the wait for it took 878 us instead of 805 (128 requests of
/// 16,384 keys, 128 heads, one NVIDIA H200, 2026-11-30).
template <int kHalf>
__device__ __forceinline__ void add_wide_values(WideOutput& output, u32 even, u32 odd, bool has_odd,
                                                const LatentThread& thread) {
  // What is loaded ahead of a tile that is not there is not used, but its stage may be written.
  const WideValues values[2] = {wide_values<kHalf>(even, thread),
                                wide_values<kHalf>(has_odd ? odd : even, thread)};
  WideFragments fragments[2];
  WideWords words = load_wide_words(values[0], 0);
  // Not again before the last product has ended: what touches sums that are under way is lost.
#pragma unroll
  for (int block = 0; block < kWideBlocks; ++block) pin(output[block]);
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    if (tile == 1 && !has_odd) break;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      WideFragments& now = fragments[step % 2];
      if (tile > 0 || step >= 2) await_products<1>();
      pin(now);
      make_wide_fragments(now, words);
      if (step < 3) {
        words = load_wide_words(values[tile], step + 1);
      } else if (tile == 0) {
        words = load_wide_words(values[1], 0);
      }
      pin(now);
      wgmma_fence();
#pragma unroll
      for (int block = 0; block < kWideBlocks; ++block) {
        multiply_code_values<kWideRows>(
            output[block], now[block],
            along_rows(wide_weights_at(tile) + static_cast<u32>(step * 32)));
      }
      close_product_group();
    }
  }
  await_products<0>();
#pragma unroll
  for (int block = 0; block < kWideBlocks; ++block) pin(output[block]);
  pin(fragments[0]);
  pin(fragments[1]);
}

/// Output times the factors of its rows.
__device__ __forceinline__ void rescale_wide(WideOutput& output, const LatentThread& thread) {
#pragma unroll
  for (int j = 0; j < kWideRows / 8; ++j) {
    u32 words[2];
    load_two_words(kWideFactorsAt + static_cast<u32>((8 * j + thread.column) * 4), words);
#pragma unroll
    for (int block = 0; block < kWideBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) output[block][4 * j + i] *= float_from_bits(words[i % 2]);
    }
  }
}

/// The base of a thread's rows is raised to the maximum of both tiles of a pair; returns it, and
/// leaves the factors of the output.
template <int kHalf>
__device__ __forceinline__ RowPair agree_on_base(const float (&scores)[32], RowPair before,
                                                 float scale, const LatentThread& thread) {
  const RowPair most = largest_scores(scores);
  store_rows(wide_maxima_at(kHalf), thread, most);
  __syncwarp();
  sync_threads_of(kBothHalves, 256);
  const RowPair theirs = load_rows(wide_maxima_at(1 - kHalf), thread);
  const RowPair base =
      maximum_after(before, {fmaxf(most.low, theirs.low), fmaxf(most.high, theirs.high)}, scale);
  if constexpr (kHalf == 0) store_rows(kWideFactorsAt, thread, rescaling(before, base));
  __syncwarp();
  return base;
}

/// All pairs of tiles of an item, from number `first` on; `at` is the item's number. Weights are on
/// a base that both halves have, and are made anew where it turns out too low.
template <class Config, int kHalf, class Work>
__device__ __forceinline__ void attend_codes_keys(WideCodes& rows, const AttendParams& params,
                                                  const Work& work, int at, const LatentKeys& keys,
                                                  u32 first, const LatentThread& thread) {
  LatentState& state = rows.state;
  const float* const k_scale = params.kv.k_scale;
  const float scale =
      params.score.softmax_scale * kLog2E * (k_scale == nullptr ? 1.0f : k_scale[0]);
  // Whether a half is through with the weights of the pair before: it arrives, the other one waits.
  constexpr int kOwnThrough = kHalf == 0 ? kMaximumReady : kLastMaximumReady;
  constexpr int kOtherThrough = kHalf == 0 ? kLastMaximumReady : kMaximumReady;
  arrive_threads_of(kOwnThrough, 256);
  u32 number = first;
#pragma unroll 1
  for (int key = keys.begin; key < keys.end; key += 2 * kLatentKeys) {
    const CodesStage<kWideRows> even(number);
    const CodesStage<kWideRows> odd(number + 1);
    const CodesStage<kWideRows>& own = kHalf == 0 ? even : odd;
    const CodesStage<kWideRows>& other = kHalf == 0 ? odd : even;
    const int own_key = key + kHalf * kLatentKeys;
    const bool has_odd = key + kLatentKeys < keys.end;
    const bool has_own = kHalf == 0 || has_odd;
    number += has_odd ? 2 : 1;

    float scores[32];
    bool is_edge = false;
    if (has_own) {
      await(own.full, own.parity);
      make_wide_scores(scores, own.tile);
      is_edge = own_key + kLatentKeys > keys.core;
      if (is_edge) {
        const RowTile tile = work.item(at).tile;
        const auto end_of = [&](int row) {
          return latent_row_end(tile.context_len, tile.first_row + row, tile.group, keys.end);
        };
        mask_scores(scores, own_key, thread, end_of(thread.row), end_of(thread.row + 8));
      }
    } else {
#pragma unroll
      for (float& score : scores) score = kNegInf;
    }
    bool is_raised = false;  // the base, or it has to be
    const auto raise = [&] {
      const RowPair before = state.maximum;
      state.maximum = agree_on_base<kHalf>(scores, before, scale, thread);
      const RowPair factor = rescaling(before, state.maximum);
      state.sum = product(state.sum, factor);
      is_raised = factor.low != 1.0f || factor.high != 1.0f;
    };
    if constexpr (kBaseLags<Config>) {
      is_raised = exceeds(scores, scale, state.maximum);
    } else {
      raise();
    }
    LeftOperand weights;
    RowPair added = weigh_wide<Config>(scores, scale, state.maximum, weights);
    sync_threads_of(kOtherThrough, 256);
    store_operand(wide_weights_at(kHalf), thread, weights);
    publish_shared_writes();
    if (is_edge) {
      sync_threads_of(kHalf == 0 ? kLeftHalf : kRightHalf, 128);
      clear_codes(own.tile, larger(keys.core - own_key, 0),
                  smaller(keys.end - own_key, kLatentKeys), kHalf, thread);
    }
    if (any_of_threads(is_raised, kEvenWeightsReady, 256)) {
      if constexpr (kBaseLags<Config>) {
        raise();
        added = weigh_wide<Config>(scores, scale, state.maximum, weights);
        store_operand(wide_weights_at(kHalf), thread, weights);
        publish_shared_writes();
        sync_threads_of(kBothHalves, 256);
      }
      rescale_wide(rows.output, thread);
    }
    state.sum = {state.sum.low + added.low, state.sum.high + added.high};
    // What the other half has waited for is there for this one too, but only a wait says so of
    // what the copy engine wrote.
    if (kHalf == 1 || has_odd) await(other.full, other.parity);
    add_wide_values<kHalf>(rows.output, even.tile, odd.tile, has_odd, thread);
    if (key + 2 * kLatentKeys < keys.end) arrive_threads_of(kOwnThrough, 256);
    if (thread.lane == 0) {
      arrive(even.free);
      if (has_odd) arrive(odd.free);
    }
  }
}

/// Sums of both halves become one: the factors of the output in shared memory, and the LSE of a
/// thread's rows.
template <class Config, int kHalf>
__device__ __forceinline__ RowPair join_wide(const LatentState& state, float value_scale,
                                             const LatentThread& thread) {
  RowPair sum = state.sum;
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    sum.low += __shfl_xor_sync(0xFFFFFFFFu, sum.low, step);
    sum.high += __shfl_xor_sync(0xFFFFFFFFu, sum.high, step);
  }
  store_rows(wide_sums_at(kHalf), thread, sum);
  __syncwarp();
  sync_threads_of(kBothHalves, 256);
  const RowPair theirs = load_rows(wide_sums_at(1 - kHalf), thread);
  const RowPair total = kHalf == 0 ? RowPair{sum.low + theirs.low, sum.high + theirs.high}
                                   : RowPair{theirs.low + sum.low, theirs.high + sum.high};
  if constexpr (kHalf == 0) {
    store_rows(
        kWideFactorsAt, thread,
        {inverse_or_zero(total.low) * value_scale, inverse_or_zero(total.high) * value_scale});
  }
  __syncwarp();
  sync_threads_of(kBothHalves, 256);
  return {latent_lse(state.maximum.low - kWideWeightsUp<Config>, total.low),
          latent_lse(state.maximum.high - kWideWeightsUp<Config>, total.high)};
}

/// Output and LSE of an item, or its partial result.
template <class Config, int kHalf, class Work>
__device__ __forceinline__ void store_wide_item(const AttendParams& params, const Work& work,
                                                const LatentItem& item, const LatentThread& thread,
                                                const WideOutput& output, RowPair lse) {
  const int column = wide_column(kHalf, thread.index);
#pragma unroll
  for (int own = 0; own < kWideRows / 4; ++own) {
    const int row = code_row(thread, own);
    if (row >= item.tile.num_rows) continue;
    float of[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) of[i] = output[i / 2][code_register(own, i % 2)];
    store_code_columns<Config>(params, work, item, row, column, of);
  }
  if (kHalf != 0 || thread.lane % 4 != 0) return;
  const auto store = [&](int row, float of_row) {
    if (row >= item.tile.num_rows) return;
    if (item.is_whole) {
      store_lse(params, item.tile, row, of_row);
    } else {
      work.store_partial_lse(item, row, of_row);
    }
  };
  store(thread.row, lse.low);
  store(thread.row + 8, lse.high);
}

/// An item's results, when all its keys are through.
template <class Config, int kHalf, class Work>
__device__ __forceinline__ void finish_codes(WideCodes& rows, const AttendParams& params,
                                             const Work& work, int at, const LatentThread& thread) {
  const float* const v_scale = params.kv.v_scale;
  const RowPair lse =
      join_wide<Config, kHalf>(rows.state, v_scale == nullptr ? 1.0f : v_scale[0], thread);
  rescale_wide(rows.output, thread);
  store_wide_item<Config, kHalf>(params, work, work.item(at), thread, rows.output, lse);
}

}  // namespace attn
