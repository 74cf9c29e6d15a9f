// Products of one warp in float64 (mma.sync; sm_80 and newer), with the rounding of fma. Where
// there are tensor cores for it they are twice as fast, and read shared memory a fraction as often.
#pragma once

#include "kernels/params.h"

namespace attn {

/// c[i] [8, 8] += a [8, 4] @ b[i] [4, 8] for each i. With g = lane / 4 and t = lane % 4: a holds
/// column t of row g, b[i] holds row t of column g, c[i] holds columns 2t, 2t + 1 of row g. All
/// lanes of a warp must call it together, so a loop around it must not begin or end at a number
/// that depends on the lane: the compiler could not know that all make as many turns. A NaN or
/// infinity of a or b reaches c as by fma, also beside a 0.
template <int kTiles>
__device__ __forceinline__ void multiply_add_double(double (&c)[kTiles][2], double a,
                                                    const double (&b)[kTiles]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(c[i][0]), "+d"(c[i][1])
                 : "d"(a), "d"(b[i]));
  }
}

/// Over the four lanes that share a row of c; every one of them gets it.
__device__ __forceinline__ double sum_of_quad(double x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
/// The same of the greatest one; a NaN of another lane is none.
__device__ __forceinline__ double most_of_quad(double x) {
#pragma unroll
  for (int step = 1; step <= 2; ++step) {
    const double other = __shfl_xor_sync(~0u, x, step);
    x = other > x ? other : x;
  }
  return x;
}

}  // namespace attn
