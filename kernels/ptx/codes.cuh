// One-byte codes of keys and values become 16-bit numbers, four at a time: the inner loops of
// attention over quantised caches, where conversions and not copies would otherwise bound the
// speed. The way is always from the bits of a code to those of a number by shifts, masks and one
// addition or multiplication that is exact; every code of e4m3, e5m2 and int8 is exact in f16.
//
// __byte_perm(a, b, s) picks bytes: nibble i of s names the byte of b:a that becomes byte i.
#pragma once

#include "kernels/ptx/packed.cuh"

namespace attn {

/// Four numbers, in the order of their codes.
struct Four16 {
  u32 low;   // numbers 0 and 1
  u32 high;  // numbers 2 and 3
};

/// The numbers of two e4m3 codes, in the upper bytes of the halves of `spread`, times 2^-8 as f16.
/// Shifted right by one, exponent and mantissa of e4m3 lie in the fields of f16, whose exponent
/// bias is 15 instead of 7: hence the 2^-8, for subnormals too. NaN becomes 480 * 2^-8.
ATTN_FN u32 e4m3_fields_in_f16(u32 spread) {
  return (spread & 0x80008000u) | ((spread & 0x7F007F00u) >> 1);
}
/// Of such codes that are NaN (0x7F) the bits that make a finite f16 NaN, else 0: adding one to the
/// magnitude carries into the sign bit for 0x7F and for no other code.
ATTN_FN u32 e4m3_nan_in_f16(u32 spread) {
  return ((((spread & 0x7F007F00u) + 0x01000100u) & 0x80008000u) >> 15) * 0x7E00u;
}

/// Two e4m3 codes as f16, exactly.
__device__ __forceinline__ u32 e4m3_pair_to_f16(u16 codes) {
#if __CUDA_ARCH__ >= 890
  u32 numbers;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(numbers) : "h"(codes));
  return numbers;
#elif defined(__CUDA_ARCH__)
  const u32 spread = __byte_perm(codes, 0, 0x1404);
  u32 numbers;
  asm("{.reg .b32 c; mov.b32 c, 0x5C005C00; mul.rn.f16x2 %0, %1, c;}"  // times 2^8
      : "=r"(numbers)
      : "r"(e4m3_fields_in_f16(spread)));
  return numbers | e4m3_nan_in_f16(spread);
#else
  return f16_from_float(e4m3_to_float(static_cast<u8>(codes))) |
         static_cast<u32>(f16_from_float(e4m3_to_float(static_cast<u8>(codes >> 8)))) << 16;
#endif
}

/// Two int8 codes, in bytes 0 and 2 of `spread` with 0x64 above each: 1024 + (code + 128) in f16,
/// since f16 numbers from 1024 to 2047 have a step of 1 and 0x6400 is 1024. Less 1152 = 0x6480 that
/// is the code, exactly.
__device__ __forceinline__ u32 subtract_1152(u32 spread) {
#ifdef __CUDA_ARCH__
  u32 numbers;
  asm("{.reg .b32 c; mov.b32 c, 0x64806480; sub.rn.f16x2 %0, %1, c;}"
      : "=r"(numbers)
      : "r"(spread));
  return numbers;
#else
  return f16_from_float(f16_to_float(static_cast<u16>(spread)) - 1152.0f) |
         static_cast<u32>(f16_from_float(f16_to_float(static_cast<u16>(spread >> 16)) - 1152.0f))
             << 16;
#endif
}

/// Four codes of a word, byte 0 first, as exact f16.
template <Element kCode>
__device__ __forceinline__ Four16 codes_to_f16(u32 codes) {
  if constexpr (kCode == Element::kE4M3) {
    return {e4m3_pair_to_f16(static_cast<u16>(codes)),
            e4m3_pair_to_f16(static_cast<u16>(codes >> 16))};
  } else if constexpr (kCode == Element::kE5M2) {
    // e5m2 is the upper byte of f16.
    return {__byte_perm(codes, 0, 0x1404), __byte_perm(codes, 0, 0x3424)};
  } else {
    static_assert(kCode == Element::kI8);
    const u32 biased = codes ^ 0x80808080u;  // code + 128
    return {subtract_1152(__byte_perm(biased, 0x64646464u, 0x4140)),
            subtract_1152(__byte_perm(biased, 0x64646464u, 0x4342))};
  }
}

/// Two int8 codes, in bytes 0 and 2 of `spread`, as bf16: 128 + the low seven bits, less 128 or,
/// for a set sign bit, 256. Every step is exact. Why not as for f16: bf16 has 128 numbers with a
/// step of 1 (128 to 255), half as many as there are codes.
__device__ __forceinline__ u32 i8_pair_to_bf16(u32 spread) {
  const u32 plus = (spread & 0x007F007Fu) | 0x43004300u;
  const u32 minus = (spread & 0x00800080u) | 0x43004300u;
  u32 numbers;
  // plus - minus as a fused operation, which sm_80 has: -1 * minus + plus.
  asm("{.reg .b32 c; mov.b32 c, 0xBF80BF80; fma.rn.bf16x2 %0, %1, c, %2;}"
      : "=r"(numbers)
      : "r"(minus), "r"(plus));
  return numbers;
}

/// One half of a word of two f16 as f32.
__device__ __forceinline__ float f16_low_to_float(u32 packed) {
#ifdef __CUDA_ARCH__
  float x;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(x) : "r"(packed));
  return x;
#else
  return f16_to_float(static_cast<u16>(packed));
#endif
}
__device__ __forceinline__ float f16_high_to_float(u32 packed) {
#ifdef __CUDA_ARCH__
  float x;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "r"(packed));
  return x;
#else
  return f16_to_float(static_cast<u16>(packed >> 16));
#endif
}

/// Codes as kTo. kScaled: code * scale in f32, rounded once (semantics §4.4 mode 1); otherwise the
/// codes themselves, which are exact in f16 and in bf16.
template <Element kCode, Element kTo, bool kScaled>
__device__ __forceinline__ Four16 decode_codes(u32 codes, float scale) {
  if constexpr (kCode == Element::kI8 && kTo == Element::kBF16 && !kScaled) {
    return {i8_pair_to_bf16(__byte_perm(codes, 0, 0x4140)),
            i8_pair_to_bf16(__byte_perm(codes, 0, 0x4342))};
  }
  const Four16 exact = codes_to_f16<kCode>(codes);
  if constexpr (kTo == Element::kF16 && !kScaled) return exact;
  const float factor = kScaled ? scale : 1.0f;
  return {pack<kTo>(f16_low_to_float(exact.low) * factor, f16_high_to_float(exact.low) * factor),
          pack<kTo>(f16_low_to_float(exact.high) * factor, f16_high_to_float(exact.high) * factor)};
}

/// A mask of ones for every code that is NaN or infinite. One more than the magnitude 0x7F of an
/// e4m3 NaN, or than the exponent field 0x7C of e5m2's infinity and NaN, carries into the sign bit,
/// which becomes the mask. int8 has neither.
template <Element kCode>
__device__ __forceinline__ u32 nonfinite_codes_mask(u32 codes) {
  u32 carries = 0;
  if constexpr (kCode == Element::kE4M3) {
    carries = (codes & 0x7F7F7F7Fu) + 0x01010101u;
  } else if constexpr (kCode == Element::kE5M2) {
    carries = (codes & 0x7C7C7C7Cu) + 0x04040404u;
  }
  return ((carries & 0x80808080u) >> 7) * 0xFFu;
}

/// Bytes transposed: word i of the result holds byte i of each of the four words, byte j from word
/// j. Two rounds of four permutes: first pairs of words are interleaved, then pairs of those.
__device__ __forceinline__ void transpose_bytes(u32 (&words)[4]) {
  const u32 low01 = __byte_perm(words[0], words[1], 0x5140);
  const u32 high01 = __byte_perm(words[0], words[1], 0x7362);
  const u32 low23 = __byte_perm(words[2], words[3], 0x5140);
  const u32 high23 = __byte_perm(words[2], words[3], 0x7362);
  words[0] = __byte_perm(low01, low23, 0x5410);
  words[1] = __byte_perm(low01, low23, 0x7632);
  words[2] = __byte_perm(high01, high23, 0x5410);
  words[3] = __byte_perm(high01, high23, 0x7632);
}

}  // namespace attn
