// Before and behind every timed sample: inputs that no run has seen, and what is kept of the output
// (kernels/common/redraw.cuh says what is done; here every thread gets its pieces).
#pragma once

#include "kernels/common/redraw.cuh"

namespace attn {

/// Config: int kElementBytes (1, 2 or 4), bool kVector (rows of whole 16 bytes), int kThreads.
/// Grid: cdiv(pieces, kThreads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    redraw_query(const __grid_constant__ RedrawParams p) {
  const i64 piece = i64{blockIdx.x} * Config::kThreads + threadIdx.x;
  redraw_piece<Config::kElementBytes, Config::kVector>(p, piece);
}

/// Config: int kThreads. Grid: cdiv(16-byte pieces of the longest move, kThreads), moves.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    move_blocks(const __grid_constant__ MoveParams p) {
  const BlockMove move = p.moves[blockIdx.y];
  const i64 piece = i64{blockIdx.x} * Config::kThreads + threadIdx.x;
  move_piece(move, piece);
}

/// Adds to *p.sums. Config: int kThreads. Grid: any; CTAs take pieces in turns.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    digest_sample(const __grid_constant__ DigestParams p) {
  SampleDigest sums{};
  const i64 step = i64{gridDim.x} * Config::kThreads;
  for (i64 piece = i64{blockIdx.x} * Config::kThreads + threadIdx.x; piece * 16 < p.bytes;
       piece += step) {
    digest_piece(p, piece, sums);
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    sums.hash += __shfl_xor_sync(0xFFFFFFFFu, sums.hash, lanes);
    sums.poison += __shfl_xor_sync(0xFFFFFFFFu, sums.poison, lanes);
    sums.nans += __shfl_xor_sync(0xFFFFFFFFu, sums.nans, lanes);
  }
  if (threadIdx.x % 32 != 0) return;
  atomicAdd(&p.sums->hash, sums.hash);
  if (sums.nans != 0) {
    atomicAdd(&p.sums->poison, sums.poison);
    atomicAdd(&p.sums->nans, sums.nans);
  }
}

}  // namespace attn
