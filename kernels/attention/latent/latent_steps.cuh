// The steps of latent_products.cuh on registers: scores, softmax, values, and what is exchanged
// through shared memory. Fragments are those of kernels/ptx/wgmma_latent.cuh: a thread has rows r
// and r + 8 of a tile ("low" and "high" below), so that everything about a row comes in pairs.
#pragma once

#include "kernels/attention/latent/latent_layout.cuh"
#include "kernels/attention/rows.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mma_sync.cuh"
#include "kernels/ptx/packed.cuh"
#include "kernels/ptx/wgmma_latent.cuh"

namespace attn {

// Named barriers of the two halves; 0 is that of all threads.
constexpr int kMaximumReady = 1;      // of tile 0: the left half arrives, the right one waits
constexpr int kLastMaximumReady = 2;  // of tile 1: the right half arrives, the left one waits
constexpr int kEvenWeightsReady = 3;  // P0: the left half arrives, the right one waits
constexpr int kOddWeightsReady = 4;   // P1: the right half arrives, the left one waits
constexpr int kBothHalves = 5;
constexpr int kLeftHalf = 6;
constexpr int kRightHalf = 7;

/// Place in this CTA's shared memory as instructions take it. In a cluster that is by the CTA's
/// rank: the address alone is a place of CTA 0, for ordinary loads and stores too. Descriptors of
/// products alone do without, and stay constants. A sum, so that the rank is read once and the
/// address goes into the offsets of loads and stores.
template <class Config>
__device__ __forceinline__ u32 of_cta(u32 address) {
  if constexpr (requires { Config::kPaired; }) {
    if constexpr (Config::kPaired) return in_cta(0, cluster_rank()) + address;
  }
  return address;
}

/// A number of each of a thread's two rows.
struct RowPair {
  float low;
  float high;
};

/// Place of a thread in its warpgroup.
struct LatentThread {
  int index;  // 0 to 127
  int warp;
  int lane;
  int row;     // the low one
  int column;  // the first of every 8
};
__device__ __forceinline__ LatentThread latent_thread() {
  const int index = static_cast<int>(threadIdx.x % 128);
  const int lane = index % 32;
  return {index, index / 32, lane, index / 32 * 16 + lane / 4, lane % 4 * 2};
}

/// Rows of f32 in shared memory, one number a query row, by the first lane of a quad; all may read.
__device__ __forceinline__ RowPair load_rows(u32 rows, const LatentThread& thread) {
  const u32 at = rows + static_cast<u32>(thread.row * 4);
  return {float_from_bits(load_word(at)), float_from_bits(load_word(at + 32))};
}
__device__ __forceinline__ void store_rows(u32 rows, const LatentThread& thread, RowPair pair) {
  if (thread.lane % 4 != 0) return;
  const u32 at = rows + static_cast<u32>(thread.row * 4);
  store_word(at, float_bits(pair.low));
  store_word(at + 32, float_bits(pair.high));
}

/// Address of the matrices of a 64 x 64 piece that this lane names for ldmatrix and stmatrix: 16
/// columns from `step` * 16 on, as a left operand has them.
__device__ __forceinline__ u32 operand_at(u32 piece, const LatentThread& thread, int step) {
  const int matrix = thread.lane / 8;
  const int row = 16 * thread.warp + matrix % 2 * 8 + thread.lane % 8;
  return piece + static_cast<u32>(latent_part_at(row, 2 * step + matrix / 2));
}
/// A left operand of 64 columns, 16 a step.
using LeftOperand = u32[4][4];
__device__ __forceinline__ void load_operand(u32 piece, const LatentThread& thread,
                                             LeftOperand& operand) {
#pragma unroll
  for (int step = 0; step < 4; ++step)
    load_matrices(operand_at(piece, thread, step), operand[step]);
}
__device__ __forceinline__ void store_operand(u32 piece, const LatentThread& thread,
                                              const LeftOperand& operand) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    store_matrices(operand_at(piece, thread, step), operand[step]);
  }
}

/// The last pieces of the query, from the rope part back, stay in registers: that takes a part of
/// the load off shared memory, from which the products would read them for every tile. kPieces: how
/// many a thread has room for.
template <int kPieces>
struct HeldQuery {
  LeftOperand pieces[kPieces];
};
template <>
struct HeldQuery<0> {};

/// Of the query at `tile`.
template <int kPieces>
__device__ __forceinline__ void hold_query(HeldQuery<kPieces>& held, u32 tile,
                                           const LatentThread& thread) {
  if constexpr (kPieces > 0) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      load_operand(tile + static_cast<u32>((kLatentRopePiece - i) * kLatentPieceBytes), thread,
                   held.pieces[i]);
      pin(held.pieces[i]);
    }
  }
}

/// Scores of one piece: sums = (is_first ? 0 : sums) + Q K^T.
template <Element kElement, int kPieces>
__device__ __forceinline__ void add_scores(float (&sums)[32], const HeldQuery<kPieces>& held,
                                           u32 keys, int piece, bool is_first) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const u32 offset = static_cast<u32>(piece * kLatentPieceBytes + step * 32);
    const bool adds = !is_first || step > 0;
    if constexpr (kPieces > 0) {
      if (piece >= kLatentPieces - kPieces) {
        multiply_scores<kElement>(sums, held.pieces[kLatentRopePiece - piece][step],
                                  along_rows(keys + offset), adds);
        continue;
      }
    }
    multiply_scores<kElement>(sums, along_rows(kLatentQueryAt + offset), along_rows(keys + offset),
                              adds);
  }
}
/// Output of 256 columns += P V, of 64 keys; P in registers or in a piece of shared memory, and V
/// in four pieces from `values` on.
template <Element kElement>
__device__ __forceinline__ void add_values(float (&output)[128], const LeftOperand& weights,
                                           u32 values) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    multiply_values<kElement>(output, weights[step], across_rows(values + step * 2048u));
  }
}
template <Element kElement>
__device__ __forceinline__ void add_values(float (&output)[128], u32 weights, u32 values) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    multiply_values<kElement>(output, along_rows(weights + step * 32u),
                              across_rows(values + step * 2048u));
  }
}

/// Scores of keys that a row does not see become -inf: those from low_end (high_end) on.
__device__ __forceinline__ void mask_scores(float (&scores)[32], int first_key,
                                            const LatentThread& thread, int low_end, int high_end) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = first_key + 8 * j + thread.column + i;
      if (key >= low_end) scores[4 * j + i] = kNegInf;
      if (key >= high_end) scores[4 * j + 2 + i] = kNegInf;
    }
  }
}

/// Largest score of either row, of this thread's keys; -inf where all are.
__device__ __forceinline__ RowPair largest_of_thread(const float (&scores)[32]) {
  RowPair most{kNegInf, kNegInf};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    most.low = fmaxf(most.low, fmaxf(scores[4 * j], scores[4 * j + 1]));
    most.high = fmaxf(most.high, fmaxf(scores[4 * j + 2], scores[4 * j + 3]));
  }
  return most;
}
/// The same of all keys of the tile.
__device__ __forceinline__ RowPair largest_scores(const float (&scores)[32]) {
  RowPair most = largest_of_thread(scores);
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    most.low = fmaxf(most.low, __shfl_xor_sync(0xFFFFFFFFu, most.low, step));
    most.high = fmaxf(most.high, __shfl_xor_sync(0xFFFFFFFFu, most.high, step));
  }
  return most;
}

/// What is subtracted from scores with the maximum `maximum`: itself, but for rows that have seen
/// no key, where the difference would be NaN.
__device__ __forceinline__ float base_of(float maximum) {
  return maximum == kNegInf ? 0.0f : maximum;
}
/// Factors of what was summed up under maxima `before`, now that they are `now`.
__device__ __forceinline__ RowPair rescaling(RowPair before, RowPair now) {
  return {exp2_fast(before.low - base_of(now.low)), exp2_fast(before.high - base_of(now.high))};
}

/// Scores become weights 2^(score * factor - maximum); returns their sums of this thread.
__device__ __forceinline__ RowPair weigh(float (&scores)[32], float factor, RowPair maximum) {
  const float low = base_of(maximum.low);
  const float high = base_of(maximum.high);
  RowPair sum{0.0f, 0.0f};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    scores[4 * j] = exp2_fast(scores[4 * j] * factor - low);
    scores[4 * j + 1] = exp2_fast(scores[4 * j + 1] * factor - low);
    scores[4 * j + 2] = exp2_fast(scores[4 * j + 2] * factor - high);
    scores[4 * j + 3] = exp2_fast(scores[4 * j + 3] * factor - high);
    sum.low += scores[4 * j] + scores[4 * j + 1];
    sum.high += scores[4 * j + 2] + scores[4 * j + 3];
  }
  return sum;
}

/// Weights in 16 bits as a left operand of 64 columns.
template <Element kElement>
__device__ __forceinline__ void pack_weights(const float (&weights)[32], LeftOperand& packed) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    packed[i / 4][i % 4] = pack<kElement>(weights[2 * i], weights[2 * i + 1]);
  }
}
/// The same of weights times a factor a row.
template <Element kElement>
__device__ __forceinline__ void pack_weights(const float (&weights)[32], RowPair factor,
                                             LeftOperand& packed) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float f = i % 2 == 0 ? factor.low : factor.high;
    packed[i / 4][i % 4] = pack<kElement>(weights[2 * i] * f, weights[2 * i + 1] * f);
  }
}

/// Output times a factor a row; nothing where all factors of the warp are 1, as they mostly are.
__device__ __forceinline__ void rescale(float (&output)[128], RowPair factor) {
  if (!__any_sync(0xFFFFFFFFu, factor.low != 1.0f || factor.high != 1.0f)) return;
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    output[4 * j] *= factor.low;
    output[4 * j + 1] *= factor.low;
    output[4 * j + 2] *= factor.high;
    output[4 * j + 3] *= factor.high;
  }
}

/// Address of 16 bytes of a key's values, 0 to 63. Not in their order, but all of them.
__device__ __forceinline__ u32 values_at(u32 tile, int row, int part) {
  return tile + static_cast<u32>(part / 8 * kLatentPieceBytes + row * 128 + part % 8 * 16);
}
/// Values that a product may not meet become 0: of rows [core, live) of the tile, which some query
/// rows see and others do not, those that are NaN or infinite, and all of rows [live, 64), which
/// none sees. A weight of 0 would make NaN of them. Who sees such a key has NaN by its score, since
/// its values are part of it; only where an infinite one makes that -inf, and so the weight 0, is
/// the output finite where 0 times infinity would be NaN. By all threads of a warpgroup, with a
/// barrier before, when all have made their scores, and after.
template <Element kElement>
__device__ __forceinline__ void clear_values(u32 tile, int core, int live,
                                             const LatentThread& thread) {
  constexpr int kParts = kLatentValues / 8;
#pragma unroll 1
  for (int row = core + thread.warp; row < live; row += 4) {
    u32 found = 0;
    for (int part = thread.lane; part < kParts; part += 32) {
      for (u32 word = 0; word < 4; ++word) {
        found |= nonfinite_halves<kElement>(load_word(values_at(tile, row, part) + 4 * word));
      }
    }
    if (!__any_sync(0xFFFFFFFFu, found != 0)) continue;
    for (int part = thread.lane; part < kParts; part += 32) {
      store_words(values_at(tile, row, part), {0, 0, 0, 0});
    }
  }
#pragma unroll 1
  for (int i = live * kParts + thread.index; i < kLatentKeys * kParts; i += 128) {
    store_words(values_at(tile, i / kParts, i % kParts), {0, 0, 0, 0});
  }
}

/// Neighbouring lanes of a quad exchange words so that each has four in a row: word k of lane q
/// becomes word q of lane k.
__device__ __forceinline__ void transpose_quad(u32 (&words)[4]) {
  const bool odd = threadIdx.x % 2 != 0;
  const bool upper = threadIdx.x % 4 >= 2;
  u32 first = __shfl_xor_sync(0xFFFFFFFFu, odd ? words[0] : words[1], 1);
  u32 second = __shfl_xor_sync(0xFFFFFFFFu, odd ? words[2] : words[3], 1);
  if (odd) {
    words[0] = first;
    words[2] = second;
  } else {
    words[1] = first;
    words[3] = second;
  }
  first = __shfl_xor_sync(0xFFFFFFFFu, upper ? words[0] : words[2], 2);
  second = __shfl_xor_sync(0xFFFFFFFFu, upper ? words[1] : words[3], 2);
  if (upper) {
    words[0] = first;
    words[1] = second;
  } else {
    words[2] = first;
    words[3] = second;
  }
}

}  // namespace attn
