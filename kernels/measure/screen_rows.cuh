// Rows of float64 attention that lie in memory, beside an output: the same records as those of rows
// that are compared where they are made, with the same sums in the same order.
#pragma once

#include "kernels/measure/screen_compare.cuh"

namespace attn {

struct ScreenComparePart {
  const ScreenRowsParams& p;
  i64 part;  // row * chunks + chunk; 16 threads share it

  template <Element kElement>
  __device__ __forceinline__ void run() const {
    const int lane = static_cast<int>(threadIdx.x) % kScreenLanes;
    const bool valid = part < p.num_rows * p.num_chunks;
    const i64 row = valid ? part / p.num_chunks : 0;
    const int begin = static_cast<int>(valid ? part % p.num_chunks : 0) * p.chunk_columns;
    const int rest = p.v_head_size - begin;
    const int count = rest < p.chunk_columns ? rest : p.chunk_columns;
    const i64 first = row * p.v_head_size + begin;
    ScreenErrors errors;
#pragma unroll 4
    for (int c = lane; valid && c < count; c += kScreenLanes) {
      const double stored = screen_number<kElement>(p.output.data, first + c);
      errors.add(p.output, stored * p.output.scale, p.rows[first + c]);
    }
    ScreenRecord record = errors.record();
    if (!valid || lane != 0) return;
    record.spread_squares = p.sizes[part].spread_squares;
    record.lse = p.sizes[part].lse;
    p.records[part] = record;
  }
};

/// Grid: 16 parts each; CTA: kScreenThreads. Config has no members.
template <class Config>
__global__ void __launch_bounds__(kScreenThreads)
    screen_compare_rows(const __grid_constant__ ScreenRowsParams params) {
  const i64 part = i64{blockIdx.x} * (kScreenThreads / kScreenLanes) + threadIdx.x / kScreenLanes;
  with_screen_element<kScreenOutputElements>(params.output.element,
                                             ScreenComparePart{params, part});
}

}  // namespace attn
