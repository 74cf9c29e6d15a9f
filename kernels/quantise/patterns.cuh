// How often each pattern of 16 bits occurs: what the scales of a tensor are calibrated from. A CTA
// counts in shared memory, where two counters of 16 bits share a word, and adds what it has found
// to the counts of all before one of them can overflow.
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/params_scale.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

constexpr int kPatterns = 1 << 16;
/// Elements that a CTA counts before it adds them up: fewer than a counter of 16 bits holds.
constexpr int kPatternsOfRound = 61440;

/// What count_patterns() has of a round in shared memory: kPatterns / 2 words.
__device__ __forceinline__ void add_pattern(unsigned* counts, u32 pattern) {
  atomicAdd(counts + (pattern >> 1), 1u << (16 * (pattern & 1u)));
}

/// Adds the CTA's counts to those of all, and clears them.
template <class Config>
__device__ __forceinline__ void add_round(unsigned* counts, i64* all) {
  for (int word = static_cast<int>(threadIdx.x); word < kPatterns / 2; word += Config::kThreads) {
    const unsigned pair = counts[word];
    if (pair == 0) continue;
    counts[word] = 0;
    auto* const both = reinterpret_cast<unsigned long long*>(all) + 2 * word;
    if ((pair & 0xFFFFu) != 0) atomicAdd(both, static_cast<unsigned long long>(pair & 0xFFFFu));
    if (pair >> 16 != 0) atomicAdd(both + 1, static_cast<unsigned long long>(pair >> 16));
  }
}

/// Config: int kVector (elements of a load), kHeadPieces (loads of a head), kThreads. Dynamic
/// shared memory: 4 * kPatterns / 2 bytes. Grid: any number, whose CTAs take turns; num_heads.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    count_patterns(const __grid_constant__ PatternCountParams p) {
  constexpr int kVector = Config::kVector;
  constexpr int kHeadPieces = Config::kHeadPieces;
  constexpr int kRound = kPatternsOfRound / kVector;  // loads
  using Vector = ElementVector<Element::kBF16, kVector>;
  extern __shared__ unsigned pattern_counts[];
  for (int word = static_cast<int>(threadIdx.x); word < kPatterns / 2; word += Config::kThreads) {
    pattern_counts[word] = 0;
  }
  __syncthreads();
  const i64 head = blockIdx.y;
  const i64 num_pieces = p.num_tokens * kHeadPieces;
  for (i64 first = static_cast<i64>(blockIdx.x) * kRound; first < num_pieces;
       first += static_cast<i64>(gridDim.x) * kRound) {
    const i64 end = first + kRound < num_pieces ? first + kRound : num_pieces;
    for (i64 piece = first + threadIdx.x; piece < end; piece += Config::kThreads) {
      const i64 token = quotient(piece, kHeadPieces);
      const i64 at =
          (token * p.num_heads + head) * p.head_size + (piece - token * kHeadPieces) * kVector;
      const Vector loaded = load_vector<Element::kBF16, kVector>(
          static_cast<const char*>(p.source) + at * size_of(Element::kBF16));
#pragma unroll
      for (int w = 0; w < Vector::kNumWords; ++w) {
        add_pattern(pattern_counts, loaded.words[w] & 0xFFFFu);
        if constexpr (kVector > 1) add_pattern(pattern_counts, loaded.words[w] >> 16);
      }
    }
    __syncthreads();
    add_round<Config>(pattern_counts, p.counts + head * kPatterns);
    __syncthreads();
  }
}

}  // namespace attn
