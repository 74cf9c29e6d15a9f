// A block of NVFP4 in the registers of a thread (semantics §9.4, §5.7): what the quantisation of
// outputs and the KV cache share. With the largest magnitude a: sf = rn_e4m3(g * (a / 6)), 6 being
// the largest e2m1 number, and code = rn_e2m1(x * m) with m = 1 / (sf / g). Codes are made with the
// rounded sf, by which they are dequantised as well. Every operation is rounded by itself, in this
// order: that defines the bytes.
#pragma once

#include "kernels/common/division.cuh"
#include "kernels/params_quant.h"
#include "kernels/ptx/element_vector.cuh"
#include "kernels/ptx/scales.cuh"

namespace attn {

/// Two codes a byte.
using Nvfp4Codes = ElementVector<Element::kU8, kNvfp4Block / 2>;

/// e2m1 codes of eight magnitudes below 7, the first in the lowest nibble.
/// With 3 * 2^22 added a number keeps its integer part only, rounded to nearest even, in its lowest
/// bits. Codes are 1/2 apart below 2, then 1, then 2, so the code of x is round(2 x), 2 + round(x)
/// or 4 + round(x / 2): the least of the three, whatever the range. Why so: minima and integers
/// are the slow half of what a multiprocessor issues, additions and products the fast one.
__device__ __forceinline__ u32 e2m1_magnitudes(const float (&magnitudes)[8]) {
  constexpr float kUnit = 12582912.0f;
  u32 codes = 0;
#pragma unroll
  for (int i = 7; i >= 0; --i) {
    const float x = magnitudes[i];
    const float upper = fminf(x + (kUnit + 2.0f), multiply_add(x, 0.5f, kUnit + 4.0f));
    codes = codes * 16u + float_bits(fminf(multiply_add(x, 2.0f, kUnit), upper));
  }
  // The bits of kUnit, eight times, as far as they do not leave the word.
  return codes - 0x3F400000u;
}

/// A block of columns as its codes are made of it.
struct Nvfp4Columns {
  float values[kNvfp4Block];
  float largest;               // of their magnitudes, if all of them are finite
  bool is_finite;              // false: maybe one is not
  u32 signs[kNvfp4Block / 8];  // bit 3 of nibble i: number i is negative
};
/// The larger magnitude of either half of two words of 16-bit numbers, NaN where one is. Whether it
/// has a sign is open.
template <Element kElement>
__device__ __forceinline__ u32 larger_magnitudes(u32 a, u32 b) {
  u32 larger;
#if __CUDA_ARCH__ >= 860
  if constexpr (kElement == Element::kBF16) {
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  }
#elif defined(__CUDA_ARCH__)
  a &= 0x7FFF7FFFu;
  b &= 0x7FFF7FFFu;
  if constexpr (kElement == Element::kBF16) {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  }
#else
  // As integers: NaN is above infinity, and that above all numbers.
  const auto above = [](u32 x, u32 y) { return x > y ? x : y; };
  larger = above(a & 0x7FFFu, b & 0x7FFFu) | above(a & 0x7FFF0000u, b & 0x7FFF0000u);
#endif
  return larger;
}
/// The top bytes of four words, that of words[0] lowest.
__device__ __forceinline__ u32 top_bytes(u32 a, u32 b, u32 c, u32 d) {
  return __byte_perm(__byte_perm(a, b, 0x0073), __byte_perm(c, d, 0x0073), 0x5410);
}

template <Element kSource>
__device__ __forceinline__ Nvfp4Columns
nvfp4_columns(const ElementVector<kSource, kNvfp4Block>& from) {
  Nvfp4Columns columns;
  decode_vector(from, columns.values);
  const float* const values = columns.values;
  if constexpr (size_of(kSource) == 2) {
    u32 most = from.words[0];
#pragma unroll
    for (int i = 1; i < kNvfp4Block / 2; ++i) {
      most = larger_magnitudes<kSource>(most, from.words[i]);
    }
    float two[2];
    decode_vector(ElementVector<kSource, 2>{{most & 0x7FFF7FFFu}}, two);
    columns.largest = fmaxf(two[0], two[1]);
    columns.is_finite = two[0] + two[1] < float_from_bits(0x7F800000u);
#pragma unroll
    for (int i = 0; i < kNvfp4Block / 8; ++i) {
      const u32* const w = from.words + 4 * i;
      // Bytes 1 and 3 of each: the even number of a word and the odd one.
      const u32 first = __byte_perm(w[0], w[1], 0x7351);
      const u32 second = __byte_perm(w[2], w[3], 0x7351);
      const u32 even = __byte_perm(first, second, 0x5410);
      const u32 odd = __byte_perm(first, second, 0x7632);
      columns.signs[i] = (even >> 4 & 0x08080808u) | (odd & 0x80808080u);
    }
  } else {
    columns.largest = 0.0f;
    float zero = 0.0f;  // NaN where one of them is not finite
#pragma unroll
    for (int i = 0; i < kNvfp4Block; ++i) {
      columns.largest = fmaxf(columns.largest, fabsf(values[i]));
      zero = multiply_add(values[i], 0.0f, zero);
    }
    columns.is_finite = zero == 0.0f;
#pragma unroll
    for (int i = 0; i < kNvfp4Block / 8; ++i) {
      const float* const v = values + 8 * i;
      const u32 even =
          top_bytes(float_bits(v[0]), float_bits(v[2]), float_bits(v[4]), float_bits(v[6]));
      const u32 odd =
          top_bytes(float_bits(v[1]), float_bits(v[3]), float_bits(v[5]), float_bits(v[7]));
      columns.signs[i] = (even >> 4 & 0x08080808u) | (odd & 0x80808080u);
    }
  }
  return columns;
}

/// sf of a block: its code, and by what the columns are multiplied.
struct Nvfp4Scale {
  u8 code;
  float factor;
};
__device__ __forceinline__ Nvfp4Scale nvfp4_scale(float largest, float global_scale) {
  const u8 code = static_cast<u8>(
      encode_pair<Element::kE4M3>(__fmul_rn(global_scale, __fdiv_rn(largest, 6.0f)), 0.0f));
  const float scale = f16_low_to_float(e4m3_pair_to_f16(code));
  return {code, scale == 0.0f ? 0.0f : __fdiv_rn(1.0f, __fdiv_rn(scale, global_scale))};
}

/// Two codes a byte, the even column in the low nibble. Returns the code of sf.
__device__ __forceinline__ u8 quantise_nvfp4_block(const Nvfp4Columns& columns, float global_scale,
                                                   Nvfp4Codes& codes) {
  const float* const values = columns.values;
  const Nvfp4Scale scale = nvfp4_scale(columns.largest, global_scale);
  if (columns.is_finite && __fmul_rn(columns.largest, scale.factor) < 7.0f) {
#pragma unroll
    for (int word = 0; word < kNvfp4Block / 8; ++word) {
      float magnitudes[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        magnitudes[i] = __fmul_rn(fabsf(values[word * 8 + i]), scale.factor);
      }
      codes.words[word] = e2m1_magnitudes(magnitudes) | columns.signs[word];
    }
    return scale.code;
  }
  // What saturates, and what is no number: NaN takes no part in the maximum.
  float largest = 0.0f;
  float scaled[kNvfp4Block];
#pragma unroll
  for (int i = 0; i < kNvfp4Block; ++i) {
    scaled[i] = values[i];
    largest = fmaxf(largest, fabsf(values[i]));
  }
  const Nvfp4Scale again = nvfp4_scale(largest, global_scale);
  scale_by(scaled, again.factor);
  codes = {};
#pragma unroll
  for (int i = 0; i < kNvfp4Block; ++i) {
    codes.words[i / 8] |= static_cast<u32>(e2m1_from_float(scaled[i])) << (i % 8 * 4);
  }
  return again.code;
}

}  // namespace attn
