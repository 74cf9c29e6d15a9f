// Latent attention for screening: products with its weights in float64, and the comparison of rows
// that were attended to in the latent space and projected afterwards.
#pragma once

#include "kernels/measure/screen_compare.cuh"

namespace attn {

struct ScreenProductMemory {
  static constexpr int kStride = kScreenProductTile + 1;
  double left[kScreenDepth * kStride];   // [depth, rows]
  double right[kScreenDepth * kStride];  // [depth, columns]
};

/// A tile of 64 rows and 64 columns of one head; each thread has 4 x 4 of them.
class ScreenProductCta {
  static constexpr int kTile = kScreenProductTile;
  static constexpr int kEach = kTile / 16;

 public:
  __device__ __forceinline__ ScreenProductCta(const ScreenProductParams& params,
                                              ScreenProductMemory& memory)
      : p_(params), memory_(memory) {
    const int columns = (p_.right.width + kTile - 1) / kTile;
    const i64 tile = blockIdx.x;
    head_ = static_cast<int>(tile / columns % p_.num_heads);
    first_column_ = static_cast<int>(tile % columns) * kTile;
    first_row_ = tile / columns / p_.num_heads * kTile;
  }

  __device__ __forceinline__ void multiply() {
    double sums[kEach][kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) sums[i][j] = 0.0;
    }
#pragma unroll 1
    for (int first = 0; first < p_.left.width; first += kScreenDepth) {
      __syncthreads();
      with_screen_element<kScreenOperandElements>(p_.left.element, LoadLeft{*this, first});
      with_screen_element<kScreenOperandElements>(p_.right.element, LoadRight{*this, first});
      __syncthreads();
      add_tile(sums);
    }
    store(sums);
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 16; }
  static __device__ __forceinline__ int line() { return static_cast<int>(threadIdx.x) / 16; }

  /// Neighbouring threads load along the depth, in which a row of `left` is dense.
  struct LoadLeft {
    const ScreenProductCta& cta;
    int first;

    template <Element kElement>
    __device__ __forceinline__ void run() const {
      const ScreenOperand& from = cta.p_.left;
#pragma unroll 4
      for (int at = static_cast<int>(threadIdx.x); at < kTile * kScreenDepth;
           at += kScreenThreads) {
        const int depth = at % kScreenDepth;
        const i64 row = cta.first_row_ + at / kScreenDepth;
        const bool valid = row < cta.p_.num_rows && first + depth < from.width;
        const i64 place =
            from.first + row * from.row_stride + cta.head_ * from.head_stride + first + depth;
        cta.memory_.left[depth * ScreenProductMemory::kStride + at / kScreenDepth] =
            valid ? screen_number<kElement>(from.data, place) : 0.0;
      }
    }
  };

  /// Neighbouring threads load neighbouring columns.
  struct LoadRight {
    const ScreenProductCta& cta;
    int first;

    template <Element kElement>
    __device__ __forceinline__ void run() const {
      const ScreenOperand& from = cta.p_.right;
#pragma unroll 4
      for (int at = static_cast<int>(threadIdx.x); at < kTile * kScreenDepth;
           at += kScreenThreads) {
        const int depth = at / kTile;
        const int column = cta.first_column_ + at % kTile;
        const bool valid = column < from.width && first + depth < cta.p_.left.width;
        const i64 place = from.first + (first + depth) * from.row_stride +
                          cta.head_ * from.head_stride + column * cta.p_.column_stride;
        cta.memory_.right[depth * ScreenProductMemory::kStride + at % kTile] =
            valid ? screen_number<kElement>(from.data, place) : 0.0;
      }
    }
  };

  __device__ __forceinline__ void add_tile(double (&sums)[kEach][kEach]) const {
#pragma unroll 4
    for (int depth = 0; depth < kScreenDepth; ++depth) {
      double left[kEach];
      double right[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        left[i] = memory_.left[depth * ScreenProductMemory::kStride + line() + 16 * i];
        right[i] = memory_.right[depth * ScreenProductMemory::kStride + lane() + 16 * i];
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) sums[i][j] += left[i] * right[j];
      }
    }
  }

  __device__ __forceinline__ void store(const double (&sums)[kEach][kEach]) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const i64 row = first_row_ + line() + 16 * i;
        const int column = first_column_ + lane() + 16 * j;
        if (row >= p_.num_rows || column >= p_.right.width) continue;
        p_.product[(row * p_.num_heads + head_) * p_.right.width + column] = sums[i][j];
      }
    }
  }

  const ScreenProductParams& p_;
  ScreenProductMemory& memory_;
  int head_;
  int first_column_;
  i64 first_row_;
};

/// Grid: a tile of rows and columns of a head each; CTA: kScreenThreads; dynamic shared memory:
/// ScreenProductMemory. Config has no members.
template <class Config>
__global__ void __launch_bounds__(kScreenThreads)
    screen_product(const __grid_constant__ ScreenProductParams params) {
  extern __shared__ double screen_memory[];
  ScreenProductCta(params, *reinterpret_cast<ScreenProductMemory*>(screen_memory)).multiply();
}

struct ScreenCompareRow {
  const ScreenCompareParams& p;
  i64 row;  // of the rows that are compared; 16 threads share it

  template <Element kElement>
  __device__ __forceinline__ void run() const {
    const int lane = static_cast<int>(threadIdx.x) % kScreenLanes;
    const bool valid = row < p.num_rows;
    const i64 place = p.first_row + (valid ? row : 0);
    const ScreenRecord* const latents = p.latents + place * p.num_chunks;
    const double lse = latents[0].lse;
    ScreenErrors errors;
#pragma unroll 1
    for (int c = lane; valid && c < p.v_head_size; c += kScreenLanes) {
      // A row that saw nothing is 0 whatever its weights are.
      const bool is_empty = lse == -screen_infinity();
      const double expected = is_empty ? 0.0 : p.rows[row * p.v_head_size + c];
      const double stored = screen_number<kElement>(p.output.data, place * p.v_head_size + c);
      errors.add(p.output, stored * p.output.scale, expected);
    }
    ScreenRecord record = errors.record();
    double size = 0.0;
    double spread = 0.0;
    for (int chunk = 0; chunk < p.num_chunks; ++chunk) {
      size += latents[chunk].reference_squares;
      spread += latents[chunk].spread_squares;
    }
    const double growth = p.growth[place % p.num_heads];
    record.spread_squares = growth * growth * (size > spread ? size : spread);
    record.lse = lse;
    if (valid && lane == 0) p.records[place] = record;
  }
};

/// Grid: 16 rows each; CTA: kScreenThreads. Config has no members.
template <class Config>
__global__ void __launch_bounds__(kScreenThreads)
    screen_compare(const __grid_constant__ ScreenCompareParams params) {
  const i64 row = i64{blockIdx.x} * (kScreenThreads / kScreenLanes) + threadIdx.x / kScreenLanes;
  with_screen_element<kScreenOutputElements>(params.output.element, ScreenCompareRow{params, row});
}

}  // namespace attn
