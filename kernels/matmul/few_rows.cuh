// Products of few rows, C[b] = A[b] B[b] of 16-bit elements with sums in f32: the projections of
// decodes, whose time is that of reading B, the weights, once. So a CTA asks for its first steps of
// A and B at its start, multiplies each as it comes and asks for another one in its place; k is at
// most 512, and the steps are unrolled.
//
// Every sum is made along k in steps of 16 by mma.sync, as in matmul.cuh: a row of C has the same
// bytes in tiles of any size, and by both kernels.
//
// Config: Element kElement · int kRows (16, 32 or 64), kColumns (32, 64 or 128): of a tile of C ·
// int kSteps: cdiv(k, kFewRowsStep) · int kStages, at most kSteps: of them under way or at work at
// a time
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
  static constexpr int kStages = Config::kStages;
  static constexpr int kPieces = kColumns / 8;  // of 16 bytes, of a row of B or C
  static_assert(kBlocksAcross % 2 == 0);

  // Pieces of a step that a thread copies, and rows between them.
  static constexpr int kPiecesA = kFewRowsStep / 8;  // of a row of A
  static constexpr int kRowsApartA = kThreads / kPiecesA;
  static constexpr int kRowsApartB = kThreads / kPieces;
  static constexpr int kOwnA = kRows / kRowsApartA;
  static constexpr int kOwnB = kFewRowsStep / kRowsApartB;

  const MatmulParams& p;
  FewRowsTile tile;
  unsigned char* memory;  // shared
  // The thread's first piece of the first step: where it lies, and its row and column of the tile.
  const u16* from_a;
  const u16* from_b;
  int row_a, column_a;
  int row_b, column_b;
  float sums[kBlocksDown][kBlocksAcross][4];

  __device__ __forceinline__ FewRows(const MatmulParams& of, FewRowsTile at, unsigned char* shared)
      : p(of),
        tile(at),
        memory(shared),
        row_a(static_cast<int>(threadIdx.x) / kPiecesA),
        column_a(static_cast<int>(threadIdx.x) % kPiecesA * 8),
        row_b(static_cast<int>(threadIdx.x) / kPieces),
        column_b(static_cast<int>(threadIdx.x) % kPieces * 8),
        sums{} {
    from_a = static_cast<const u16*>(p.a) + tile.batch * p.a_batch_stride +
             (tile.first_row + row_a) * p.a_row_stride + column_a;
    from_b = static_cast<const u16*>(p.b) + tile.batch * p.b_batch_stride + row_b * p.b_row_stride +
             tile.first_column + column_b;
  }

  /// The copies of the first steps of A and B, a group for each; what lies outside of them is 0.
  __device__ __forceinline__ void load() const {
#pragma unroll
    for (int step = 0; step < kStages; ++step) {
      load_step(step);
      close_copy_group();
    }
  }
  /// The same, where A is made by the kernel before: B, the weights, is asked for before that ends.
  __device__ __forceinline__ void load_behind_previous() const {
#pragma unroll
    for (int step = 0; step < kStages; ++step) load_step_of_b(step);
    await_previous_kernel();
#pragma unroll
    for (int step = 0; step < kStages; ++step) {
      load_step_of_a(step);
      close_copy_group();
    }
  }
  __device__ __forceinline__ void load_step(int step) const {
    load_step_of_a(step);
    load_step_of_b(step);
  }
  __device__ __forceinline__ u32 stage_of(int step) const {
    return shared_address(memory + step % kStages * few_rows_stage_bytes(kRows, kColumns));
  }
  __device__ __forceinline__ void load_step_of_a(int step) const {
    const u32 to_a = stage_of(step);
    const int first_k = step * kFewRowsStep;
#pragma unroll
    for (int i = 0; i < kOwnA; ++i) {
      const int row = row_a + i * kRowsApartA;
      const bool is_there = tile.first_row + row < p.m && first_k + column_a < p.k;
      const u16* const from = from_a + i * kRowsApartA * p.a_row_stride + first_k;
      copy_async<16>(to_a + static_cast<u32>(row * kPitchA + column_a * 2),
                     is_there ? from : static_cast<const u16*>(p.a), is_there);
    }
  }
  __device__ __forceinline__ void load_step_of_b(int step) const {
    const u32 to_b = stage_of(step) + few_rows_a_bytes(kRows);
    const int first_k = step * kFewRowsStep;
    const bool has_column = tile.first_column + column_b < p.n;
#pragma unroll
    for (int i = 0; i < kOwnB; ++i) {
      const int row = row_b + i * kRowsApartB;
      const bool is_there = has_column && first_k + row < p.k;
      const u16* const from = from_b + (first_k + i * kRowsApartB) * p.b_row_stride;
      copy_async<16>(to_b + static_cast<u32>(row * kPitchB + column_b * 2),
                     is_there ? from : static_cast<const u16*>(p.b), is_there);
    }
  }

  /// The warp's first row and column of the tile.
  __device__ __forceinline__ static int warp_row() {
    return static_cast<int>(threadIdx.x) / 32 / kAcross * (kBlocksDown * 16);
  }
  __device__ __forceinline__ static int warp_column() {
    return static_cast<int>(threadIdx.x) / 32 % kAcross * (kBlocksAcross * 8);
  }

  /// Operands of 16 of k, for all blocks of the warp.
  struct Operands {
    u32 left[kBlocksDown][4];
    u32 right[kBlocksAcross / 2][4];
  };
  __device__ __forceinline__ static void load_operands(Operands& to, u32 at_a, u32 at_b, int k) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int m = 0; m < kBlocksDown; ++m) {
      load_matrices(at_a + static_cast<u32>((warp_row() + m * 16 + lane % 16) * kPitchA +
                                            (k + lane / 16 * 8) * 2),
                    to.left[m]);
    }
#pragma unroll
    for (int n = 0; n < kBlocksAcross / 2; ++n) {
      load_matrices_transposed(
          at_b + static_cast<u32>((k + lane % 16) * kPitchB +
                                  (warp_column() + n * 16 + lane / 16 * 8) * 2),
          to.right[n]);
    }
  }
  /// sums += A @ B of a step that has come; the next operands are on their way during products.
  __device__ __forceinline__ void multiply(int step) {
    const u32 at_a = stage_of(step);
    const u32 at_b = at_a + few_rows_a_bytes(kRows);
    Operands operands[2];
    load_operands(operands[0], at_a, at_b, 0);
#pragma unroll
    for (int k = 0; k < kFewRowsStep; k += 16) {
      const Operands& now = operands[k / 16 % 2];
      if (k + 16 < kFewRowsStep) load_operands(operands[(k / 16 + 1) % 2], at_a, at_b, k + 16);
#pragma unroll
      for (int n = 0; n < kBlocksAcross; ++n) {
        const u32(&right)[4] = now.right[n / 2];
#pragma unroll
        for (int m = 0; m < kBlocksDown; ++m) {
          multiply_add<Config::kElement>(sums[m][n], now.left[m], right[n % 2 * 2],
                                         right[n % 2 * 2 + 1]);
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
  FewRows<Config> product(p, few_rows_tile<Config>(p, blockIdx.x), memory);
  product.load();
  product.run();
  product.each_piece([&](i64 row, i64 column, const ElementVector<Config::kElement, 8>& piece) {
    store_vector(static_cast<u16*>(p.c) + product.tile.batch * p.c_batch_stride +
                     row * p.c_row_stride + column,
                 piece);
  });
}

/// Grid: batches * tiles across * tiles down. Shared memory: few_rows_shared_bytes().
template <class Config>
__global__ void __launch_bounds__(few_rows_threads(Config::kRows, Config::kColumns))
    few_rows(const __grid_constant__ MatmulParams p) {
  extern __shared__ uint4 few_rows_memory[];
  multiply_few_rows<Config>(p, reinterpret_cast<unsigned char*>(few_rows_memory));
}

}  // namespace attn
