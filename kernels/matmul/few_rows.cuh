// Products of few rows, C[b] = A[b] B[b] of 16-bit elements with sums in f32: the projections of
// decodes, whose time is that of reading B, the weights, once. So a CTA asks for its first steps of
// A and B at its start, multiplies each as it comes and asks for another one in its place; k is at
// most 512, and the steps are unrolled.
//
// Every sum is made along k in steps of 16 by mma.sync, as in matmul.cuh: a row of C has the same
// bytes in tiles of any size, and by both kernels.
//
// Config: Element kElement · int kRows (16, 32 or 64), kColumns (32, 64 or 128): of a tile of C ·
// int kSteps: cdiv(k, kFewRowsStep)
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/matmul/few_rows_layout.cuh"
#include "kernels/params_mla.h"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/dependents.cuh"
#include "kernels/ptx/element_vector.cuh"
#include "kernels/ptx/mma_sync.cuh"
#include "kernels/ptx/packed.cuh"

namespace attn {

/// Which tile of which product a CTA does; rows run fastest, so that neighbours share B in the L2.
struct FewRowsTile {
  i64 batch;
  i64 first_row;
  i64 first_column;
};
ATTN_FN i64 few_rows_tiles(const MatmulParams& p, int rows, int columns) {
  return ((p.m + rows - 1) / rows) * ((p.n + columns - 1) / columns);
}
template <class Config>
__device__ __forceinline__ FewRowsTile few_rows_tile(const MatmulParams& p, i64 index) {
  const i64 down = (p.m + Config::kRows - 1) / Config::kRows;
  const i64 across = (p.n + Config::kColumns - 1) / Config::kColumns;
  const i64 rest = quotient(index, down);
  const i64 batch = quotient(rest, across);
  return {batch, (index - rest * down) * Config::kRows, (rest - batch * across) * Config::kColumns};
}

template <class Config>
struct FewRows {
  static constexpr int kRows = Config::kRows;
  static constexpr int kColumns = Config::kColumns;
  static constexpr int kThreads = few_rows_threads(kRows, kColumns);
  static constexpr int kDown = few_rows_warps_down(kRows);
  static constexpr int kAcross = few_rows_warps_across(kColumns);
  // Of a warp: blocks of 16 rows and of 8 columns.
  static constexpr int kBlocksDown = kRows / 16 / kDown;
  static constexpr int kBlocksAcross = kColumns / 8 / kAcross;
  static constexpr int kPitchA = few_rows_pitch(kFewRowsStep);
  static constexpr int kPitchB = few_rows_pitch(kColumns);
  static constexpr int kPitchC = few_rows_pitch(kColumns);
  static constexpr int kStages = few_rows_stages(Config::kSteps);
  static constexpr int kPieces = kColumns / 8;  // of 16 bytes, of a row of B or C
  static_assert(kBlocksAcross % 2 == 0);

  const MatmulParams& p;
  FewRowsTile tile;
  unsigned char* memory;  // shared
  float sums[kBlocksDown][kBlocksAcross][4];

  __device__ __forceinline__ const u16* a() const {
    return static_cast<const u16*>(p.a) + tile.batch * p.a_batch_stride;
  }
  __device__ __forceinline__ const u16* b() const {
    return static_cast<const u16*>(p.b) + tile.batch * p.b_batch_stride;
  }

  /// Has the L2 fetch the tile's part of B, which no kernel before this one makes.
  __device__ __forceinline__ void fetch_weights() const {
    constexpr int kLines = kColumns * 2 / 128 > 0 ? kColumns * 2 / 128 : 1;  // of a row
    for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(p.k) * kLines; i += kThreads) {
      const i64 column = tile.first_column + i % kLines * 64;
      if (column < p.n) fetch_line(b() + i / kLines * p.b_row_stride + column);
    }
  }
  /// The copies of the first steps of A and B, a group for each; what lies outside of them is 0.
  __device__ __forceinline__ void load() const {
#pragma unroll
    for (int step = 0; step < kStages; ++step) {
      load_step(step);
      close_copy_group();
    }
  }
  __device__ __forceinline__ void load_step(int step) const {
    constexpr int kPiecesA = kFewRowsStep / 8;
    const u32 to_a =
        shared_address(memory + step % kStages * few_rows_stage_bytes(kRows, kColumns));
    const u32 to_b = to_a + few_rows_a_bytes(kRows);
    const int first_k = step * kFewRowsStep;
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kPiecesA; i += kThreads) {
      const int row = i / kPiecesA;
      const int k = first_k + i % kPiecesA * 8;
      const bool is_there = tile.first_row + row < p.m && k < p.k;
      copy_async<16>(to_a + static_cast<u32>(row * kPitchA + i % kPiecesA * 16),
                     is_there ? a() + (tile.first_row + row) * p.a_row_stride + k : a(), is_there);
    }
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < kFewRowsStep * kPieces; i += kThreads) {
      const int k = first_k + i / kPieces;
      const i64 column = tile.first_column + i % kPieces * 8;
      const bool is_there = k < p.k && column < p.n;
      copy_async<16>(to_b + static_cast<u32>(i / kPieces * kPitchB + i % kPieces * 16),
                     is_there ? b() + k * p.b_row_stride + column : b(), is_there);
    }
  }

  /// The warp's first row and column of the tile.
  __device__ __forceinline__ static int warp_row() {
    return static_cast<int>(threadIdx.x) / 32 / kAcross * (kBlocksDown * 16);
  }
  __device__ __forceinline__ static int warp_column() {
    return static_cast<int>(threadIdx.x) / 32 % kAcross * (kBlocksAcross * 8);
  }

  /// sums += A @ B of a step that has come.
  __device__ __forceinline__ void multiply(int step) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const u32 at_a =
        shared_address(memory + step % kStages * few_rows_stage_bytes(kRows, kColumns));
    const u32 at_b = at_a + few_rows_a_bytes(kRows);
#pragma unroll
    for (int k = 0; k < kFewRowsStep; k += 16) {
      u32 left[kBlocksDown][4];
#pragma unroll
      for (int m = 0; m < kBlocksDown; ++m) {
        load_matrices(at_a + static_cast<u32>((warp_row() + m * 16 + lane % 16) * kPitchA +
                                              (k + lane / 16 * 8) * 2),
                      left[m]);
      }
#pragma unroll
      for (int n = 0; n < kBlocksAcross; n += 2) {
        u32 right[4];
        load_matrices_transposed(
            at_b + static_cast<u32>((k + lane % 16) * kPitchB +
                                    (warp_column() + n * 8 + lane / 16 * 8) * 2),
            right);
#pragma unroll
        for (int m = 0; m < kBlocksDown; ++m) {
          multiply_add<Config::kElement>(sums[m][n], left[m], right[0], right[1]);
          multiply_add<Config::kElement>(sums[m][n + 1], left[m], right[2], right[3]);
        }
      }
    }
  }
  /// Every step closes a group of copies, so that at step s as many follow that of step s.
  template <int kStep>
  __device__ __forceinline__ void multiply_from() {
    if constexpr (kStep < Config::kSteps) {
      wait_copy_groups<kStep == 0 ? kStages - 1 : kStages - 2>();
      __syncthreads();
      if constexpr (kStep > 0) {
        // All threads are through with the step before.
        if constexpr (kStep - 1 + kStages < Config::kSteps) load_step(kStep - 1 + kStages);
        close_copy_group();
      }
      multiply(kStep);
      multiply_from<kStep + 1>();
    }
  }

  /// The whole product; then every element of the tile is rounded once and lies in shared memory.
  __device__ __forceinline__ void run() {
    multiply_from<0>();
    __syncthreads();
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int m = 0; m < kBlocksDown; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned char* const row = memory + (warp_row() + m * 16 + half * 8 + lane / 4) * kPitchC +
                                   (warp_column() + lane % 4 * 2) * 2;
#pragma unroll
        for (int n = 0; n < kBlocksAcross; ++n) {
          *reinterpret_cast<u32*>(row + n * 16) =
              pack<Config::kElement>(sums[m][n][half * 2], sums[m][n][half * 2 + 1]);
        }
      }
    }
    __syncthreads();
  }
  /// Calls store(row, column, 8 elements) for all pieces of the tile that are in C, by their places
  /// in C.
  template <class Store>
  __device__ __forceinline__ void each_piece(const Store& store) const {
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kPieces; i += kThreads) {
      const i64 row = tile.first_row + i / kPieces;
      const i64 column = tile.first_column + i % kPieces * 8;
      if (row >= p.m || column >= p.n) continue;
      store(row, column,
            load_vector<Config::kElement, 8>(memory + i / kPieces * kPitchC + i % kPieces * 16));
    }
  }
};

template <class Config>
__device__ __forceinline__ void multiply_few_rows(const MatmulParams& p, unsigned char* memory) {
  FewRows<Config> product{p, few_rows_tile<Config>(p, blockIdx.x), memory, {}};
  product.fetch_weights();
  await_previous_kernel();
  product.load();
  product.run();
  product.each_piece([&](i64 row, i64 column, const ElementVector<Config::kElement, 8>& piece) {
    store_vector(static_cast<u16*>(p.c) + product.tile.batch * p.c_batch_stride +
                     row * p.c_row_stride + column,
                 piece);
  });
}

/// Grid: batches * tiles across * tiles down. Shared memory: few_rows_shared_bytes(). May overlap
/// with the kernel that makes A: the weights are asked for before that has ended.
template <class Config>
__global__ void __launch_bounds__(few_rows_threads(Config::kRows, Config::kColumns))
    few_rows(const __grid_constant__ MatmulParams p) {
  extern __shared__ uint4 few_rows_memory[];
  multiply_few_rows<Config>(p, reinterpret_cast<unsigned char*>(few_rows_memory));
}

}  // namespace attn
