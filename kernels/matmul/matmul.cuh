// Batched matrix products C[b] = A[b] B[b] with sums in f32: 16-bit elements on the tensor cores,
// f32 by plain multiplications (semantics §8.2, §8.3). MLA needs them for its projections with the
// split weights where cuBLASLt is missing or refuses a shape, so they take any size, stride and
// alignment. A row of C never depends on which other rows there are: every element is summed over k
// in the same order for every m, n and number of batches.
//
// Config: Element kElement, kOutput · bool kTransposed (B is stored [n, k]) · int kVectorA,
// kVectorB (elements of a load) · bool kPairs (two columns of C lie in one aligned word)
#pragma once

#include "kernels/attention/rows.cuh"
#include "kernels/common/division.cuh"
#include "kernels/params_mla.h"
#include "kernels/ptx/element_vector.cuh"
#include "kernels/ptx/mma_sync.cuh"

namespace attn {

constexpr int kMatmulThreads = 256;

/// Which tile of which product a CTA does; rows run fastest, so that neighbours share B, the
/// weights, in the L2.
struct MatmulTile {
  i64 batch;
  i64 first_row;
  i64 first_column;
};

__device__ __forceinline__ MatmulTile matmul_tile(const MatmulParams& p, int tile_m, int tile_n) {
  const i64 down = (p.m + tile_m - 1) / tile_m;
  const i64 across = (p.n + tile_n - 1) / tile_n;
  const i64 index = blockIdx.x;
  const i64 rest = quotient(index, down);
  const i64 batch = quotient(rest, across);
  return {batch, (index - rest * down) * tile_m, (rest - batch * across) * tile_n};
}

/// A thread's share of a tile [kRows, kColumns] of a matrix on its way to shared memory. It passes
/// through registers, because cp.async cannot copy single elements of two bytes: load() may be
/// called a whole tile ahead of store(), with the products of another tile between them.
template <Element kElement, int kRows, int kColumns, int kVector>
struct TileLoad {
  static constexpr int kPieces = kColumns / kVector;
  static constexpr int kLoads = (kRows * kPieces + kMatmulThreads - 1) / kMatmulThreads;
  static_assert(kRows * kPieces % kMatmulThreads == 0);
  ElementVector<kElement, kVector> parts[kLoads];

  /// Zeros outside [num_rows, num_columns), which are multiples of kVector across.
  __device__ __forceinline__ void load(const char* matrix, i64 row_stride, i64 first_row,
                                       i64 first_column, i64 num_rows, i64 num_columns) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int index = i * kMatmulThreads + static_cast<int>(threadIdx.x);
      const i64 row = first_row + index / kPieces;
      const i64 column = first_column + index % kPieces * kVector;
      parts[i] = {};
      if (row < num_rows && column < num_columns) {
        parts[i] = load_vector<kElement, kVector>(matrix +
                                                  (row * row_stride + column) * size_of(kElement));
      }
    }
  }
  __device__ __forceinline__ void store(unsigned char* tile, int pitch) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int index = i * kMatmulThreads + static_cast<int>(threadIdx.x);
      store_vector(tile + index / kPieces * pitch + index % kPieces * kVector * size_of(kElement),
                   parts[i]);
    }
  }
};

/// 16-bit: a CTA of 8 warps does a 64 x 128 tile of C, in steps of 32 along k. The warps lie 2 x 4
/// on the tile, 32 x 32 elements each: two blocks of 16 rows times four of 8 columns of mma.sync,
/// 32 accumulators a thread. Shared memory holds two stages of A and B: while one is multiplied,
/// the next is on its way through registers into the other.
template <class Config>
struct TensorMatmul {
  static constexpr int kTileM = 64;
  static constexpr int kTileN = 128;
  static constexpr int kTileK = 32;
  static constexpr bool kTransposed = Config::kTransposed;
  static constexpr int kRowsB = kTransposed ? kTileN : kTileK;
  static constexpr int kColumnsB = kTransposed ? kTileK : kTileN;
  // 16 bytes more than the columns: rows of a fragment then lie in different banks.
  static constexpr int kPitchA = kTileK * 2 + 16;
  static constexpr int kPitchB = kColumnsB * 2 + 16;
  static constexpr int kBytesA = kTileM * kPitchA;
  static constexpr int kStageBytes = kBytesA + kRowsB * kPitchB;
  static constexpr int kSharedBytes = 2 * kStageBytes;

  const MatmulParams& p;
  MatmulTile tile;
  unsigned char* memory;
  float sums[2][4][4];  // 32 x 32 of a warp: blocks of 16 rows, of 8 columns
  // The tiles of the next step.
  TileLoad<Config::kElement, kTileM, kTileK, Config::kVectorA> a;
  TileLoad<Config::kElement, kRowsB, kColumnsB, Config::kVectorB> b;

  /// From device memory into registers: columns [k, k + kTileK) of A, rows of B. Batches of stride
  /// 0 share B.
  __device__ __forceinline__ void load(i64 k) {
    const char* from_a = static_cast<const char*>(p.a) + tile.batch * p.a_batch_stride * 2;
    const char* from_b = static_cast<const char*>(p.b) + tile.batch * p.b_batch_stride * 2;
    a.load(from_a, p.a_row_stride, tile.first_row, k, p.m, p.k);
    if constexpr (kTransposed) {
      b.load(from_b, p.b_row_stride, tile.first_column, k, p.n, p.k);
    } else {
      b.load(from_b, p.b_row_stride, k, tile.first_column, p.k, p.n);
    }
  }
  __device__ __forceinline__ void store_stage(int stage) {
    a.store(memory + stage * kStageBytes, kPitchA);
    b.store(memory + stage * kStageBytes + kBytesA, kPitchB);
  }

  /// sums += A @ B of one stage. Fragments as in ptx/mma_sync.cuh; B stored [n, k] has the layout
  /// of right operands already, [k, n] is transposed by ldmatrix on its way.
  __device__ __forceinline__ void multiply(int stage, int warp_row, int warp_column) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const u32 at_a = shared_address(memory + stage * kStageBytes);
    const u32 at_b = at_a + kBytesA;
#pragma unroll
    for (int k = 0; k < kTileK; k += 16) {
      u32 left[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        load_matrices(at_a + (warp_row + m * 16 + lane % 16) * kPitchA + (k + lane / 16 * 8) * 2,
                      left[m]);
      }
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        u32 right[4];
        const int column = warp_column + n * 8;
        if constexpr (kTransposed) {
          load_matrices(
              at_b + (column + lane % 8 + lane / 16 * 8) * kPitchB + (k + lane / 8 % 2 * 8) * 2,
              right);
        } else {
          load_matrices_transposed(at_b + (k + lane % 16) * kPitchB + (column + lane / 16 * 8) * 2,
                                   right);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add<Config::kElement>(sums[m][n], left[m], right[0], right[1]);
          multiply_add<Config::kElement>(sums[m][n + 1], left[m], right[2], right[3]);
        }
      }
    }
  }

  /// Accumulators 0, 1 are two neighbouring columns of row lane / 4, accumulators 2, 3 of the row 8
  /// below. Each is rounded once; rows and columns past m and n are not written.
  __device__ __forceinline__ void store(int warp_row, int warp_column) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const i64 row = tile.first_row + warp_row + m * 16 + half * 8 + lane / 4;
        if (row >= p.m) continue;
        const i64 first = tile.batch * p.c_batch_stride + row * p.c_row_stride;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const i64 column = tile.first_column + warp_column + n * 8 + lane % 4 * 2;
          const float one = sums[m][n][half * 2];
          const float two = sums[m][n][half * 2 + 1];
          if (column + 1 < p.n) {
            store_pair<Config::kOutput>(p.c, first + column, one, two, Config::kPairs);
          } else if (column < p.n) {
            const float last[1] = {one};
            store_vector(static_cast<char*>(p.c) + (first + column) * size_of(Config::kOutput),
                         encode_vector<Config::kOutput>(last));
          }
        }
      }
    }
  }

  __device__ __forceinline__ void run() {
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int warp_row = warp / 4 * 32;
    const int warp_column = warp % 4 * 32;
    // Invariant at the top of the loop: `stage` holds step k, and every thread has passed the
    // barrier behind its stores. One barrier a step is enough, since a step writes the other stage
    // only, which all threads have finished reading before that barrier. The sums
    // of an empty k stay 0.
    int stage = 0;
    if (p.k > 0) {
      load(0);
      store_stage(0);
    }
    __syncthreads();
    for (i64 k = 0; k < p.k; k += kTileK, stage ^= 1) {
      const bool more = k + kTileK < p.k;
      if (more) load(k + kTileK);
      multiply(stage, warp_row, warp_column);
      if (more) store_stage(stage ^ 1);
      __syncthreads();
    }
    store(warp_row, warp_column);
  }
};

/// f32: a thread sums 4 x 4 elements of a 64 x 64 tile, in steps of 16 along k; the
/// 256 threads form a square on it. Tensor cores would round the operands to 11 bits (tf32). Both
/// operands are kept k by k, 64 numbers each, in shared memory, whatever order they are stored in,
/// so that a thread reads its four rows and its four columns as one float4 each.
template <class Config>
struct PlainMatmul {
  static constexpr int kTileM = 64;
  static constexpr int kTileN = 64;
  static constexpr int kTileK = 16;
  static constexpr int kPitch = kTileM + 4;  // floats; rows start on 16 bytes and in other banks
  static constexpr int kSharedBytes = 2 * kTileK * kPitch * 4;

  const MatmulParams& p;
  MatmulTile tile;
  float* memory;  // A, then B, both [k, 64]
  float sums[4][4];

  __device__ __forceinline__ void load(i64 first_k) {
    const float* const a = static_cast<const float*>(p.a) + tile.batch * p.a_batch_stride;
    const float* const b = static_cast<const float*>(p.b) + tile.batch * p.b_batch_stride;
#pragma unroll
    for (int i = 0; i < kTileM * kTileK / kMatmulThreads; ++i) {
      const int index = i * kMatmulThreads + static_cast<int>(threadIdx.x);
      const i64 row = tile.first_row + index / kTileK;
      const i64 k = first_k + index % kTileK;
      memory[index % kTileK * kPitch + index / kTileK] =
          row < p.m && k < p.k ? a[row * p.a_row_stride + k] : 0.0f;
      const int inner = Config::kTransposed ? index % kTileK : index / kTileN;
      const int outer = Config::kTransposed ? index / kTileK : index % kTileN;
      const i64 at_k = first_k + inner;
      const i64 column = tile.first_column + outer;
      const i64 at =
          Config::kTransposed ? column * p.b_row_stride + at_k : at_k * p.b_row_stride + column;
      memory[(kTileK + inner) * kPitch + outer] = column < p.n && at_k < p.k ? b[at] : 0.0f;
    }
  }

  __device__ __forceinline__ void run() {
    const int row = static_cast<int>(threadIdx.x / 16) * 4;
    const int column = static_cast<int>(threadIdx.x % 16) * 4;
    for (i64 k = 0; k < p.k; k += kTileK) {
      load(k);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kTileK; ++i) {
        const float4 left = *reinterpret_cast<const float4*>(memory + i * kPitch + row);
        const float4 right =
            *reinterpret_cast<const float4*>(memory + (kTileK + i) * kPitch + column);
        const float lefts[4] = {left.x, left.y, left.z, left.w};
        const float rights[4] = {right.x, right.y, right.z, right.w};
#pragma unroll
        for (int m = 0; m < 4; ++m) {
#pragma unroll
          for (int n = 0; n < 4; ++n) sums[m][n] = fmaf(lefts[m], rights[n], sums[m][n]);
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const i64 at_row = tile.first_row + row + m;
        const i64 at_column = tile.first_column + column + n;
        if (at_row >= p.m || at_column >= p.n) continue;
        const i64 at = tile.batch * p.c_batch_stride + at_row * p.c_row_stride + at_column;
        const float value[1] = {sums[m][n]};
        store_vector(static_cast<char*>(p.c) + at * size_of(Config::kOutput),
                     encode_vector<Config::kOutput>(value));
      }
    }
  }
};

/// The entry; see the head of this file. Grid: batches * tiles across * tiles down.
template <class Config>
__global__ void __launch_bounds__(kMatmulThreads) matmul(const __grid_constant__ MatmulParams p) {
  if constexpr (Config::kElement == Element::kF32) {
    using Product = PlainMatmul<Config>;
    __shared__ uint4 memory[Product::kSharedBytes / 16];
    Product work{
        p, matmul_tile(p, Product::kTileM, Product::kTileN), reinterpret_cast<float*>(memory), {}};
    work.run();
  } else {
    using Product = TensorMatmul<Config>;
    __shared__ uint4 memory[Product::kSharedBytes / 16];
    Product work{p,
                 matmul_tile(p, Product::kTileM, Product::kTileN),
                 reinterpret_cast<unsigned char*>(memory),
                 {},
                 {},
                 {}};
    work.run();
  }
}

}  // namespace attn
