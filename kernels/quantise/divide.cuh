// Division by a scale on the way to fp8 codes.
#pragma once

#include "kernels/common/division.cuh"

namespace attn {

/// values / divisor, rounded to nearest even, or what fp8 codes cannot tell from it.
template <int kCount>
__device__ __forceinline__ void divide_for_codes(float (&values)[kCount], float divisor) {
  if (has_exact_reciprocal_step(divisor)) {
    const float reciprocal = __fdiv_rn(1.0f, divisor);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = quotient_by_reciprocal(values[i], divisor, reciprocal);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = __fdiv_rn(values[i], divisor);
  }
}

}  // namespace attn
