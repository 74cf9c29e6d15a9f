// latent_codes.cuh for up to 32 query rows of a request (the heads and tokens of a decode), which
// the memory should bound.
//
// A tile has 64 keys, and so many query rows are too few for the rows of a product; hence the
// transposed form, S^T = K Q^T. Two warpgroups ("halves") take turns at the tiles, each with a
// softmax of its own; at the end of an item their results become one.
//
// Config: as of latent_codes.cuh, with kRows = 16 or 32
#pragma once

#include "kernels/attention/latent/latent_codes_parts.cuh"

namespace attn {

constexpr int kCodeBlocks = kLatentValues / 64;  // products that make the output of all columns
constexpr int kCodeSums = (kCodePieces + 1) / 2;
/// Registers of a product with kRows columns.
template <int kRows>
using CodeProduct = float[kRows / 2];
/// A number for each query row of a thread: row 8 j + lane % 4 * 2 + i is number 2 j + i.
template <int kRows>
using CodeNumbers = float[kRows / 4];

template <int kRows>
struct CodesState {
  CodeNumbers<kRows> maximum;  // log2 units
  CodeNumbers<kRows> sum;      // of this thread's weights
};
template <int kRows>
using CodeOutput = CodeProduct<kRows>[kCodeBlocks];

/// What a half has of a row tile: its own output of all columns.
template <int kRows>
struct FewCodes {
  CodeOutput<kRows> output;
  CodesState<kRows> state;

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kCodeBlocks * kRows / 2; ++i) {
      output[i / (kRows / 2)][i % (kRows / 2)] = 0.0f;
    }
#pragma unroll
    for (int own = 0; own < kRows / 4; ++own) {
      state.maximum[own] = kNegInf;
      state.sum[own] = 0.0f;
    }
  }
};

/// S^T of a tile. Why in several sums: the tensor cores keep some 14 bits of a sum of products of
/// e4m3, and so the sums that they make are of 256 columns at most.
template <int kRows>
__device__ __forceinline__ void make_code_scores(CodeProduct<kRows>& scores, u32 keys) {
  using Places = CodesPlaces<kRows>;
  CodeProduct<kRows> sums[kCodeSums];
#pragma unroll
  for (int i = 0; i < kCodeSums; ++i) pin(sums[i]);
  wgmma_fence();
#pragma unroll
  for (int piece = 0; piece < kCodePieces; ++piece) {
#pragma unroll
    for (int step = 0; step < code_steps(piece); ++step) {
      multiply_code_scores<kRows>(
          sums[piece / 2], along_rows(keys + static_cast<u32>(piece * kCodePieceBytes + step * 32)),
          along_rows(static_cast<u32>(Places::kQueryAt + piece * Places::kQueryPiece + step * 32)),
          piece % 2 != 0 || step != 0);
    }
  }
  close_product_group();
  await_products<0>();
#pragma unroll
  for (int i = 0; i < kCodeSums; ++i) pin(sums[i]);
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    scores[i] = sums[0][i];
#pragma unroll
    for (int other = 1; other < kCodeSums; ++other) scores[i] += sums[other][i];
  }
}

/// Scores of keys that a row does not see become -inf; returns whether some rows see keys of the
/// tile that others do not, or none does.
template <class Config, class Work>
__device__ __forceinline__ bool mask_codes(CodeProduct<Config::kRows>& scores, const Work& work,
                                           int at, const LatentKeys& keys, int first_key,
                                           const LatentThread& thread) {
  if (first_key + kLatentKeys <= keys.core) return false;
  const RowTile tile = work.item(at).tile;
#pragma unroll
  for (int own = 0; own < Config::kRows / 4; ++own) {
    const int end = latent_row_end(tile.context_len, tile.first_row + code_row(thread, own),
                                   tile.group, keys.end);
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const int key = first_key + thread.warp * 16 + thread.lane / 4 + high * 8;
      if (key >= end) scores[code_register(own, high)] = kNegInf;
    }
  }
  return true;
}

/// What all 8 lanes with the same rows, and then all warps of a half have, as one. Ends with a
/// barrier of the half; the next call needs one before it.
template <int kRows, class Combine>
__device__ __forceinline__ void reduce_codes(CodeNumbers<kRows>& numbers, int half,
                                             const LatentThread& thread, const Combine& combine) {
  using Places = CodesPlaces<kRows>;
#pragma unroll
  for (int own = 0; own < kRows / 4; ++own) {
#pragma unroll
    for (int step = 4; step <= 16; step *= 2) {
      numbers[own] = combine(numbers[own], __shfl_xor_sync(0xFFFFFFFFu, numbers[own], step));
    }
  }
  const auto place = [&](int warp, int own) {
    return static_cast<u32>(Places::kReducedAt + (half * 4 + warp) * kRows * 4 +
                            code_row(thread, own) * 4);
  };
  if (thread.lane < 4) {
#pragma unroll
    for (int own = 0; own < kRows / 4; ++own) {
      store_word(place(thread.warp, own), float_bits(numbers[own]));
    }
  }
  __syncwarp();
  sync_threads_of(half == 0 ? kLeftHalf : kRightHalf, 128);
#pragma unroll
  for (int own = 0; own < kRows / 4; ++own) {
    float all = float_from_bits(load_word(place(0, own)));
#pragma unroll
    for (int warp = 1; warp < 4; ++warp) {
      all = combine(all, float_from_bits(load_word(place(warp, own))));
    }
    numbers[own] = all;
  }
}

/// Scores become weights; factors of what was summed up before. Sums are of weights that nothing
/// has rounded yet, e4m3 ones too (semantics §10.5).
template <class Config>
__device__ __forceinline__ void weigh_codes(CodeProduct<Config::kRows>& scores,
                                            CodesState<Config::kRows>& state,
                                            CodeNumbers<Config::kRows>& factors, float scale,
                                            int half, const LatentThread& thread) {
  constexpr int kRows = Config::kRows;
  CodeNumbers<kRows> largest;
#pragma unroll
  for (int own = 0; own < kRows / 4; ++own) {
    largest[own] = fmaxf(scores[code_register(own, 0)], scores[code_register(own, 1)]);
  }
  reduce_codes<kRows>(largest, half, thread, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
  for (int own = 0; own < kRows / 4; ++own) {
    const float maximum = fmaxf(state.maximum[own], largest[own] * scale);
    factors[own] = exp2_fast(state.maximum[own] - base_of(maximum));
    const float base = base_of(maximum) - kCodeWeightsUp<Config>;
    float added = 0.0f;
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      float& score = scores[code_register(own, high)];
      score = exp2_fast(score * scale - base);
      added += score;
    }
    state.sum[own] = state.sum[own] * factors[own] + added;
    state.maximum[own] = maximum;
  }
}

/// P as the products read it, kRows rows of 64 keys, from P^T.
template <class Config>
__device__ __forceinline__ void store_code_weights(const CodeProduct<Config::kRows>& weights,
                                                   int half, const LatentThread& thread) {
  using Places = CodesPlaces<Config::kRows>;
#pragma unroll
  for (int j = 0; j < Config::kRows / 16; ++j) {
    const float* const w = weights + 8 * j;
    const u32 packed[4] = {
        pack_code_weights<Config>(w[0], w[1]), pack_code_weights<Config>(w[2], w[3]),
        pack_code_weights<Config>(w[4], w[5]), pack_code_weights<Config>(w[6], w[7])};
    // Matrix m of 8 keys by 8 rows: keys 8 (m % 2) on of the warp's 16, rows 8 (m / 2) on.
    const int matrix = thread.lane / 8;
    const int row = 16 * j + matrix / 2 * 8 + thread.lane % 8;
    store_matrices_transposed(static_cast<u32>(Places::kWeightsAt + half * Places::kWeightsOfHalf +
                                               latent_part_at(row, 2 * thread.warp + matrix % 2)),
                              packed);
  }
}

/// Fragments of V^T for 16 keys: of each of eight products the left operand.
using CodeFragments = u32[kCodeBlocks][4];

/// Of the keys from 16 * step on. Registers 0 and 1 of a fragment are of keys lane % 4 * 2 and the
/// next one, 2 and 3 of those eight further on; even ones of the first column, odd ones of the
/// next.
__device__ __forceinline__ void make_fragments(CodeFragments& fragments, u32 values, int step,
                                               const LatentThread& thread) {
  const int part = thread.lane / 4;
#pragma unroll
  for (int eight = 0; eight < 2; ++eight) {
    u32 first[4];
    u32 second[4];
    const u32 rows = values + static_cast<u32>((16 * step + 8 * eight) * 128);
    load_words(rows + static_cast<u32>(latent_part_at(thread.column, part)), first);
    load_words(rows + static_cast<u32>(latent_part_at(thread.column + 1, part)), second);
    interleave_codes(fragments, 2 * eight, first, second);
  }
}

/// O^T += V^T P^T of a tile; fragments are made while the products of those before them run.
template <int kRows>
__device__ __forceinline__ void add_code_values(CodeOutput<kRows>& output, u32 keys, int half,
                                                const LatentThread& thread) {
  using Places = CodesPlaces<kRows>;
  const u32 values = keys + static_cast<u32>(thread.warp * kCodePieceBytes);
  const auto weights = static_cast<u32>(Places::kWeightsAt + half * Places::kWeightsOfHalf);
  CodeFragments fragments[2];
  // Not again before the last product has ended: what touches sums that are under way is lost.
#pragma unroll
  for (int block = 0; block < kCodeBlocks; ++block) pin(output[block]);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    CodeFragments& now = fragments[step % 2];
    if (step >= 2) {
      await_products<1>();
      pin(now);
    }
    make_fragments(now, values, step, thread);
    pin(now);
    wgmma_fence();
#pragma unroll
    for (int block = 0; block < kCodeBlocks; ++block) {
      multiply_code_values<kRows>(output[block], now[block],
                                  along_rows(weights + static_cast<u32>(step * 32)));
    }
    close_product_group();
  }
  await_products<0>();
#pragma unroll
  for (int block = 0; block < kCodeBlocks; ++block) pin(output[block]);
  pin(fragments[0]);
  pin(fragments[1]);
}

template <int kRows>
__device__ __forceinline__ void rescale_codes(CodeOutput<kRows>& output,
                                              const CodeNumbers<kRows>& factors) {
  bool is_one = true;
#pragma unroll
  for (int own = 0; own < kRows / 4; ++own) is_one = is_one && factors[own] == 1.0f;
  if (!__any_sync(0xFFFFFFFFu, !is_one)) return;
#pragma unroll
  for (int block = 0; block < kCodeBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) output[block][i] *= factors[i / 4 * 2 + i % 2];
  }
}

/// Every second tile of an item, from number `first` on; `at` is the item's number.
template <class Config, int kHalf, class Work>
__device__ __forceinline__ void attend_codes_keys(FewCodes<Config::kRows>& rows,
                                                  const AttendParams& params, const Work& work,
                                                  int at, const LatentKeys& keys, u32 first,
                                                  const LatentThread& thread) {
  constexpr int kRows = Config::kRows;
  constexpr int kBarrier = kHalf == 0 ? kLeftHalf : kRightHalf;
  const float* const k_scale = params.kv.k_scale;
  const float scale =
      params.score.softmax_scale * kLog2E * (k_scale == nullptr ? 1.0f : k_scale[0]);
  u32 number = first + kHalf;
#pragma unroll 1
  for (int key = keys.begin + kHalf * kLatentKeys; key < keys.end; key += 2 * kLatentKeys) {
    const CodesStage<kRows> stage(number);
    number += 2;
    await(stage.full, stage.parity);
    CodeProduct<kRows> scores;
    make_code_scores<kRows>(scores, stage.tile);
    const bool is_edge = mask_codes<Config>(scores, work, at, keys, key, thread);
    CodeNumbers<kRows> factors;
    weigh_codes<Config>(scores, rows.state, factors, scale, kHalf, thread);
    store_code_weights<Config>(scores, kHalf, thread);
    publish_shared_writes();
    rescale_codes<kRows>(rows.output, factors);
    sync_threads_of(kBarrier, 128);
    if (is_edge) {
      clear_codes(stage.tile, larger(keys.core - key, 0), smaller(keys.end - key, kLatentKeys),
                  kHalf, thread);
    }
    add_code_values<kRows>(rows.output, stage.tile, kHalf, thread);
    if (thread.lane == 0) arrive(stage.free);
  }
}

/// Sums and maxima of both halves become one: what this half's output is multiplied by, and LSEs.
template <class Config>
__device__ __forceinline__ void join_codes(CodesState<Config::kRows>& state,
                                           CodeNumbers<Config::kRows>& factors,
                                           CodeNumbers<Config::kRows>& lse, float value_scale,
                                           int half, const LatentThread& thread) {
  constexpr int kRows = Config::kRows;
  using Places = CodesPlaces<kRows>;
  const auto place = [&](int array, int of_half, int own) {
    return static_cast<u32>(array + (of_half * kRows + code_row(thread, own)) * 4);
  };
  sync_threads_of(half == 0 ? kLeftHalf : kRightHalf, 128);
  reduce_codes<kRows>(state.sum, half, thread, [](float a, float b) { return a + b; });
  if (thread.warp == 0 && thread.lane < 4) {
#pragma unroll
    for (int own = 0; own < kRows / 4; ++own) {
      store_word(place(Places::kMaximumAt, half, own), float_bits(state.maximum[own]));
      store_word(place(Places::kSumAt, half, own), float_bits(state.sum[own]));
    }
  }
  __syncwarp();
  sync_threads_of(kBothHalves, 256);
#pragma unroll
  for (int own = 0; own < kRows / 4; ++own) {
    const float left = float_from_bits(load_word(place(Places::kMaximumAt, 0, own)));
    const float right = float_from_bits(load_word(place(Places::kMaximumAt, 1, own)));
    const float maximum = fmaxf(left, right);
    const float base = base_of(maximum);
    const float of_left = exp2_fast(left - base);
    const float of_right = exp2_fast(right - base);
    const float total = float_from_bits(load_word(place(Places::kSumAt, 0, own))) * of_left +
                        float_from_bits(load_word(place(Places::kSumAt, 1, own))) * of_right;
    factors[own] = (half == 0 ? of_left : of_right) * inverse_or_zero(total) * value_scale;
    lse[own] = latent_lse(maximum - kCodeWeightsUp<Config>, total);
  }
}

/// Either half gets the other one's output of its four products, 8 registers at a time, where the
/// query was.
template <int kRows, int kHalf>
__device__ __forceinline__ void exchange_codes(CodeOutput<kRows>& output,
                                               const LatentThread& thread) {
  using Places = CodesPlaces<kRows>;
  constexpr int kAtOnce = 8;
  constexpr int kOfHalf = kCodeBlocks / 2;
  static_assert(2 * kAtOnce * 128 * 4 <= Places::kWeightsAt - Places::kQueryAt);
  const auto place = [&](int half, int i) {
    return static_cast<u32>(Places::kQueryAt + ((half * kAtOnce + i) * 128 + thread.index) * 4);
  };
#pragma unroll
  for (int round = 0; round < kOfHalf * kRows / 2 / kAtOnce; ++round) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int number = round * kAtOnce + i;
      const float given =
          output[(1 - kHalf) * kOfHalf + number / (kRows / 2)][number % (kRows / 2)];
      store_word(place(kHalf, i), float_bits(given));
    }
    sync_threads_of(kBothHalves, 256);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int number = round * kAtOnce + i;
      output[kHalf * kOfHalf + number / (kRows / 2)][number % (kRows / 2)] +=
          float_from_bits(load_word(place(1 - kHalf, i)));
    }
    sync_threads_of(kBothHalves, 256);
  }
}

/// Output and LSE of an item, or its partial result: a half has 8 columns of every 16, in a row for
/// a thread.
template <class Config, int kHalf, class Work>
__device__ __forceinline__ void store_codes_item(const AttendParams& params, const Work& work,
                                                 const LatentItem& item, const LatentThread& thread,
                                                 const CodeOutput<Config::kRows>& output,
                                                 const CodeNumbers<Config::kRows>& lse) {
  constexpr int kFirst = kHalf * (kCodeBlocks / 2);
  const int column = code_column(thread.index) + kHalf * 8;
#pragma unroll
  for (int own = 0; own < Config::kRows / 4; ++own) {
    const int row = code_row(thread, own);
    if (row >= item.tile.num_rows) continue;
    float of[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) of[i] = output[kFirst + i / 2][code_register(own, i % 2)];
    store_code_columns<Config>(params, work, item, row, column, of);
    if (kHalf != 0 || thread.warp != 0 || thread.lane >= 4) continue;
    if (item.is_whole) {
      store_lse(params, item.tile, row, lse[own]);
    } else {
      work.store_partial_lse(item, row, lse[own]);
    }
  }
}

/// An item's results, when all its keys are through.
template <class Config, int kHalf, class Work>
__device__ __forceinline__ void finish_codes(FewCodes<Config::kRows>& rows,
                                             const AttendParams& params, const Work& work, int at,
                                             const LatentThread& thread) {
  constexpr int kRows = Config::kRows;
  const float* const v_scale = params.kv.v_scale;
  CodeNumbers<kRows> factors;
  CodeNumbers<kRows> lse;
  join_codes<Config>(rows.state, factors, lse, v_scale == nullptr ? 1.0f : v_scale[0], kHalf,
                     thread);
  rescale_codes<kRows>(rows.output, factors);
  exchange_codes<kRows, kHalf>(rows.output, thread);
  store_codes_item<Config, kHalf>(params, work, work.item(at), thread, rows.output, lse);
}

}  // namespace attn
