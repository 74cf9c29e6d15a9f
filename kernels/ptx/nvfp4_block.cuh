// A block of NVFP4 in the registers of a thread (semantics §9.4, §5.7): what the quantisation of
// outputs and the KV cache share. With the largest magnitude a: sf = rn_e4m3(g * (a / 6)), 6 being
// the largest e2m1 number, and code = rn_e2m1(x * m) with m = 1 / (sf / g). Codes are made with the
// rounded sf, by which they are dequantised as well. Every operation is rounded by itself, in this
// order: that defines the bytes.
#pragma once

#include "kernels/params_quant.h"
#include "kernels/ptx/element_vector.cuh"

namespace attn {

/// x * factor, where zero stays zero: the reciprocal of a scale below 2^-128 is infinite.
__device__ __forceinline__ float scaled_by(float x, float factor) {
  return x == 0.0f ? x : __fmul_rn(x, factor);
}
/// values * factor under the rule of scaled_by().
template <int kCount>
__device__ __forceinline__ void scale_by(float (&values)[kCount], float factor) {
  // Why one condition outside: inside the loop it becomes a branch for every value.
  if (factor < float_from_bits(0x7F800000u)) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = __fmul_rn(values[i], factor);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = scaled_by(values[i], factor);
  }
}

/// Two codes a byte, the even column in the low nibble.
using Nvfp4Codes = ElementVector<Element::kU8, kNvfp4Block / 2>;

/// `largest` is that of the magnitudes of `values`, which become values * m. Returns the code of
/// sf.
__device__ __forceinline__ u8 quantise_nvfp4_block(float (&values)[kNvfp4Block], float largest,
                                                   float global_scale, Nvfp4Codes& codes) {
  const u8 scale_code = static_cast<u8>(
      encode_pair<Element::kE4M3>(__fmul_rn(global_scale, __fdiv_rn(largest, 6.0f)), 0.0f));
  const float scale = e4m3_to_float(scale_code);
  const float factor = scale == 0.0f ? 0.0f : __fdiv_rn(1.0f, __fdiv_rn(scale, global_scale));
  scale_by(values, factor);
  codes = {};
#pragma unroll
  for (int i = 0; i < kNvfp4Block; ++i) {
    codes.words[i / 8] |= static_cast<u32>(e2m1_from_float(values[i])) << (i % 8 * 4);
  }
  return scale_code;
}

}  // namespace attn
