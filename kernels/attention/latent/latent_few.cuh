// The products of latent_products.cuh for no more than 16 query rows, heads by tokens: with rows as
// the 64 of a product three quarters of the tensor cores' work would be for nothing. So the sides
// change places: S^T = K Q^T and O^T = V^T P^T, with 64 keys, or 64 columns
// of values, by 16 rows.
//
// Each warpgroup has its own tiles, the left one the even and the right one the odd ones,
// with a softmax of its own; nothing passes between them before the end of an item, when the two
// results become one. A thread has four query rows, columns of its fragments: 8 j + lane % 4 * 2 +
// i is number 2 j + i of them below.
//
// Rows 16 to 63 of the query's tile, which no query has, hold the weights and, at the end, outputs.
#pragma once

#include "kernels/attention/latent/latent_products.cuh"

namespace attn {

constexpr int kFewOwn = 4;  // rows of a thread
constexpr int kFewBlocks = kLatentValues / 64;
using FewNumbers = float[kFewOwn];

/// P of a warpgroup, 16 rows of 64 keys, in the query's rope piece.
ATTN_FN constexpr u32 few_weights_at(int half) {
  return static_cast<u32>(kLatentQueryAt + kLatentRopePiece * kLatentPieceBytes + 2048 +
                          half * 2048);
}
/// f32 of a row's 64 columns of block `block`, in that piece of the query. Rows are 68 numbers
/// apart, so that lanes with neighbouring rows meet in no bank.
ATTN_FN constexpr u32 few_output_at(int block, int row, int column) {
  return static_cast<u32>(kLatentQueryAt + block * kLatentPieceBytes + 2048 +
                          (row * 68 + column) * 4);
}

struct FewState {
  FewNumbers maximum;  // log2 units
  FewNumbers sum;      // of this thread's weights
};

/// Register of row `own` (0 to 3) and key `low` or eight further on.
ATTN_FN constexpr int few_register(int own, int high) { return own / 2 * 4 + high * 2 + own % 2; }
__device__ __forceinline__ int few_row(const LatentThread& thread, int own) {
  return own / 2 * 8 + thread.column + own % 2;
}
/// Its low key, of the tile.
__device__ __forceinline__ int few_key(const LatentThread& thread) {
  return thread.warp * 16 + thread.lane / 4;
}

/// What all 8 lanes with the same rows, and then all warps of the warpgroup have, as one: `combine`
/// of two. Ends with a barrier of the warpgroup; the next call needs one before it.
template <class Combine>
__device__ __forceinline__ void reduce_few(FewNumbers& numbers, int half,
                                           const LatentThread& thread, const Combine& combine) {
#pragma unroll
  for (int own = 0; own < kFewOwn; ++own) {
#pragma unroll
    for (int step = 4; step <= 16; step *= 2) {
      numbers[own] = combine(numbers[own], __shfl_xor_sync(0xFFFFFFFFu, numbers[own], step));
    }
  }
  const auto place = [&](int warp, int own) {
    return static_cast<u32>(kLatentScaleAt + (half * kLatentRows + warp * kFewRows) * 4 +
                            few_row(thread, own) * 4);
  };
  if (thread.lane < 4) {
#pragma unroll
    for (int own = 0; own < kFewOwn; ++own) {
      store_word(place(thread.warp, own), float_bits(numbers[own]));
    }
  }
  sync_threads_of(half == 0 ? kLeftHalf : kRightHalf, 128);
#pragma unroll
  for (int own = 0; own < kFewOwn; ++own) {
    float all = float_from_bits(load_word(place(0, own)));
#pragma unroll
    for (int warp = 1; warp < 4; ++warp) {
      all = combine(all, float_from_bits(load_word(place(warp, own))));
    }
    numbers[own] = all;
  }
}

/// Scores of keys that a row does not see become -inf; values that no product may meet become 0, as
/// in latent_products.cuh. Overloaded in gathered.cuh.
template <int kTile, class Config, class Work>
__device__ __forceinline__ void mask_few(float (&scores)[8], const LatentRun<Config, Work>& run,
                                         int first_key) {
  if (first_key + kLatentKeys <= run.keys.core) return;
  constexpr int kBarrier = kTile == 0 ? kLeftHalf : kRightHalf;
  const LatentThread& thread = run.thread;
  const int key = first_key + few_key(thread);
  const RowTile tile = run.work.item(run.cursor.at()).tile;
#pragma unroll
  for (int own = 0; own < kFewOwn; ++own) {
    const int end = latent_row_end(tile.context_len, tile.first_row + few_row(thread, own),
                                   tile.group, run.keys.end);
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      if (key + high * 8 >= end) scores[few_register(own, high)] = kNegInf;
    }
  }
  if (run.keys.end <= first_key) return;  // zeros
  sync_threads_of(kBarrier, 128);
  clear_values<Config::kElement>(static_cast<u32>(latent_key_tile(kTile)),
                                 larger(run.keys.core - first_key, 0),
                                 smaller(run.keys.end - first_key, kLatentKeys), thread);
  publish_shared_writes();
  sync_threads_of(kBarrier, 128);
}

/// S^T of a tile, its pieces in the order in which they come.
template <class Config, int kTile, class Run>
__device__ __forceinline__ void few_scores(float (&scores)[8], const Run& run, u32 parity) {
  pin(scores);
#pragma unroll
  for (int i = 0; i < kLatentPieces; ++i) {
    const int piece = i < kLatentRopePiece ? (i + kTile * kLatentHalfPieces) % kLatentRopePiece : i;
    await_piece(run, kTile, piece, parity);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const u32 offset = static_cast<u32>(piece * kLatentPieceBytes + step * 32);
      multiply_few_scores<Config::kElement>(
          scores, along_rows(static_cast<u32>(latent_key_tile(kTile)) + offset),
          along_rows(kLatentQueryAt + offset), i > 0 || step > 0);
    }
  }
  close_product_group();
  await_products<0>();
  pin(scores);
}

/// P^T as the products read it, from S^T: 16 rows of 64 keys, by transposing stores.
template <Element kElement, int kTile>
__device__ __forceinline__ void store_few_weights(const float (&weights)[8],
                                                  const LatentThread& thread) {
  const u32 packed[4] = {
      pack<kElement>(weights[0], weights[1]), pack<kElement>(weights[2], weights[3]),
      pack<kElement>(weights[4], weights[5]), pack<kElement>(weights[6], weights[7])};
  // Matrix m of 8 keys by 8 rows: keys 8 (m % 2) on of the warp's 16, rows 8 (m / 2) on.
  const int matrix = thread.lane / 8;
  const int row = matrix / 2 * 8 + thread.lane % 8;
  store_matrices_transposed(
      few_weights_at(kTile) + static_cast<u32>(latent_part_at(row, 2 * thread.warp + matrix % 2)),
      packed);
}

/// O^T of blocks [first, first + 4) += V^T P^T, as a group.
template <Element kElement, int kTile>
__device__ __forceinline__ void add_few_values(float (&output)[kFewBlocks][8], int first) {
#pragma unroll
  for (int i = 0; i < kLatentHalfPieces; ++i) {
    const int block = first + i;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      multiply_few_values<kElement>(
          output[block],
          across_rows(
              static_cast<u32>(latent_key_tile(kTile) + block * kLatentPieceBytes + step * 2048)),
          along_rows(few_weights_at(kTile) + static_cast<u32>(step * 32)));
    }
  }
  close_product_group();
}

__device__ __forceinline__ void rescale_few(float (&output)[kFewBlocks][8],
                                            const FewNumbers& factor) {
  bool is_one = true;
#pragma unroll
  for (int own = 0; own < kFewOwn; ++own) is_one = is_one && factor[own] == 1.0f;
  if (!__any_sync(0xFFFFFFFFu, !is_one)) return;
#pragma unroll
  for (int block = 0; block < kFewBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 8; ++i) output[block][i] *= factor[i / 4 * 2 + i % 2];
  }
}

/// The tiles of one warpgroup.
template <class Config, int kTile, class Run>
__device__ __forceinline__ void attend_few(float (&output)[kFewBlocks][8], FewState& state,
                                           const Run& run, u32& phases) {
  constexpr Element kElement = Config::kElement;
  constexpr int kFirst = kTile * kLatentHalfPieces;  // the half that is loaded first
  const LatentThread& thread = run.thread;
  const float factor = run.factor();
#pragma unroll 1
  for (int key = run.keys.begin; key < run.keys.end; key += kPairKeys) {
    float scores[8];
    few_scores<Config, kTile>(scores, run, phases & kKeyPhase);
    if (key + kPairKeys >= run.keys.end) release(kQueryFree, thread);
    mask_few<kTile>(scores, run, key + kTile * kLatentKeys);
    FewNumbers largest;
#pragma unroll
    for (int own = 0; own < kFewOwn; ++own) {
      largest[own] = fmaxf(scores[few_register(own, 0)], scores[few_register(own, 1)]);
    }
    reduce_few(largest, kTile, thread, [](float a, float b) { return fmaxf(a, b); });
    FewNumbers own_factor;
#pragma unroll
    for (int own = 0; own < kFewOwn; ++own) {
      const float maximum = fmaxf(state.maximum[own], largest[own] * factor);
      const float base = base_of(maximum);
      own_factor[own] = exp2_fast(state.maximum[own] - base);
      float added = 0.0f;
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        float& score = scores[few_register(own, high)];
        score = exp2_fast(score * factor - base);
        added += score;
      }
      state.sum[own] = state.sum[own] * own_factor[own] + added;
      state.maximum[own] = maximum;
    }
    store_few_weights<kElement, kTile>(scores, thread);
    publish_shared_writes();
    rescale_few(output, own_factor);
    sync_threads_of(kTile == 0 ? kLeftHalf : kRightHalf, 128);
#pragma unroll
    for (int block = 0; block < kFewBlocks; ++block) pin(output[block]);
    wgmma_fence();
    add_few_values<kElement, kTile>(output, kFirst);
    add_few_values<kElement, kTile>(output, kLatentHalfPieces - kFirst);
    await_products<1>();
    release(free_barrier(kTile, kTile), thread);
    await_products<0>();
#pragma unroll
    for (int block = 0; block < kFewBlocks; ++block) pin(output[block]);
    release(free_barrier(kTile, 1 - kTile), thread);
    phases ^= kKeyPhase;
  }
}

/// Calls visit(address, value) for every number of the output that this thread has.
template <class Visit>
__device__ __forceinline__ void visit_few(const float (&output)[kFewBlocks][8],
                                          const LatentThread& thread, const Visit& visit) {
#pragma unroll
  for (int block = 0; block < kFewBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = few_row(thread, i / 4 * 2 + i % 2);
      const int column = thread.warp * 16 + thread.lane / 4 + i / 2 % 2 * 8;
      visit(few_output_at(block, row, column), output[block][i]);
    }
  }
}

/// Four columns of a row of the output.
template <class Config>
__device__ __forceinline__ void store_few_columns(const AttendParams& params, const RowTile& tile,
                                                  int row, int column, const float (&of)[4]) {
  const i64 to = token_of(tile, row) * params.output_token_stride +
                 head_of(tile, row) * params.output_head_stride + column;
  if constexpr (Config::kOutput == Element::kF32) {
    *reinterpret_cast<float4*>(static_cast<float*>(params.output) + to) = {of[0], of[1], of[2],
                                                                           of[3]};
  } else {
    *reinterpret_cast<uint2*>(static_cast<u16*>(params.output) + to) = {
        pack<Config::kOutput>(of[0], of[1]), pack<Config::kOutput>(of[2], of[3])};
  }
}
__device__ __forceinline__ void load_few_columns(float (&of)[4], int row, int column) {
  u32 words[4];
  load_words(few_output_at(column / 64, row, column % 64), words);
#pragma unroll
  for (int k = 0; k < 4; ++k) of[k] = float_from_bits(words[k]);
}

/// Sums and maxima of both warpgroups become one: what this one's output is multiplied by, and
/// LSEs.
template <int kHalf>
__device__ __forceinline__ void join_few_halves(FewState& state, FewNumbers& factor,
                                                FewNumbers& lse, float value_scale,
                                                const LatentThread& thread) {
  // Maxima and sums of both warpgroups, of 16 rows each.
  const auto place = [&](int array, int half, int own) {
    return static_cast<u32>(array + (half * kLatentRows + few_row(thread, own)) * 4);
  };
  sync_threads_of(kHalf == 0 ? kLeftHalf : kRightHalf, 128);
  reduce_few(state.sum, kHalf, thread, [](float a, float b) { return a + b; });
  if (thread.warp == 0 && thread.lane < 4) {
#pragma unroll
    for (int own = 0; own < kFewOwn; ++own) {
      store_word(place(kLatentMaximumAt, kHalf, own), float_bits(state.maximum[own]));
      store_word(place(kLatentSumAt, kHalf, own), float_bits(state.sum[own]));
    }
  }
  sync_threads_of(kBothHalves, 256);
#pragma unroll
  for (int own = 0; own < kFewOwn; ++own) {
    const float left = float_from_bits(load_word(place(kLatentMaximumAt, 0, own)));
    const float right = float_from_bits(load_word(place(kLatentMaximumAt, 1, own)));
    const float maximum = fmaxf(left, right);
    const float base = base_of(maximum);
    const float of_left = exp2_fast(left - base);
    const float of_right = exp2_fast(right - base);
    const float total = float_from_bits(load_word(place(kLatentSumAt, 0, own))) * of_left +
                        float_from_bits(load_word(place(kLatentSumAt, 1, own))) * of_right;
    factor[own] = (kHalf == 0 ? of_left : of_right) * inverse_or_zero(total) * value_scale;
    lse[own] = latent_lse(maximum, total);
  }
}

/// Rows of the output, or of a partial result, that are in shared memory.
template <class Config, class Work>
__device__ __forceinline__ void store_few_rows(const AttendParams& params, const Work& work,
                                               const LatentItem& item) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < item.tile.num_rows * (kLatentValues / 4);
       i += 256) {
    const int row = i / (kLatentValues / 4);
    const int column = i % (kLatentValues / 4) * 4;
    float of[4];
    load_few_columns(of, row, column);
    if (item.is_whole) {
      store_few_columns<Config>(params, item.tile, row, column, of);
    } else {
      *reinterpret_cast<float4*>(work.partial_output() + (item.partial_row + row) * kLatentValues +
                                 column) = {of[0], of[1], of[2], of[3]};
    }
  }
}

/// What is left of an item: its output and LSE, or a partial result. By both warpgroups.
template <class Config, int kHalf, class Work>
__device__ __forceinline__ void store_few(const AttendParams& params, const Work& work,
                                          const LatentItem& item, const LatentThread& thread,
                                          float (&output)[kFewBlocks][8], FewState& state,
                                          float value_scale) {
  FewNumbers own_factor;
  FewNumbers lse;
  join_few_halves<kHalf>(state, own_factor, lse, value_scale, thread);
  rescale_few(output, own_factor);
  if constexpr (kHalf == 1) {
    visit_few(output, thread, [](u32 at, float value) { store_word(at, float_bits(value)); });
  }
  sync_threads_of(kBothHalves, 256);
  if constexpr (kHalf == 0) {
    visit_few(output, thread, [](u32 at, float value) {
      store_word(at, float_bits(value + float_from_bits(load_word(at))));
    });
    if (thread.warp == 0 && thread.lane < 4) {
#pragma unroll
      for (int own = 0; own < kFewOwn; ++own) {
        const int row = few_row(thread, own);
        if (row >= item.tile.num_rows) continue;
        if (item.is_whole) {
          store_lse(params, item.tile, row, lse[own]);
        } else {
          work.store_partial_lse(item, row, lse[own]);
        }
      }
    }
  }
  sync_threads_of(kBothHalves, 256);
  store_few_rows<Config>(params, work, item);
}

/// All items of tiles of 16 rows, by the warpgroup of one half.
template <class Config, int kHalf, class Run, class Work>
__device__ __forceinline__ void attend_few_items(const AttendParams& params, const Work& work) {
  const LatentThread thread = latent_thread();
  float output[kFewBlocks][8];
  u32 phases = 0;
  LatentCursor<Config> cursor(work.first());
#pragma unroll 1
  for (; cursor.at() < work.end(); cursor.put(cursor.at() + work.step())) {
    const LatentItem item = work.item(cursor.at());
    if (item.tile.num_rows <= 0) continue;
    const Run run{params, work, thread, cursor, item.keys};
    FewState state{{kNegInf, kNegInf, kNegInf, kNegInf}, {0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll
    for (int i = 0; i < kFewBlocks * 8; ++i) output[i / 8][i % 8] = 0.0f;
    float scale = 1.0f;
    if (!item.keys.are_none()) {
      receive_query<Config>(run, item.tile, phases);
      attend_few<Config, kHalf>(output, state, run, phases);
      scale = value_scale(run);
    }
    store_few<Config, kHalf>(params, work, item, thread, output, state, scale);
  }
}

}  // namespace attn
