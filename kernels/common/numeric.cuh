// Number formats bit by bit (semantics §0.3, §0.4): one definition for host, device and tests.
// Nearly everything is integer arithmetic on the IEEE bits of a float, which neither the rounding
// mode nor the flushing of subnormals can change; e2m1 and int8 round by one f32 addition, which
// needs round-to-nearest-even and a compiler that does not reassociate (no -ffast-math).
// Kernels use the conversion instructions of their architecture where these exist; the functions
// here say what those must give, and are what runs where they do not.
//
// A format is sign | exponent | mantissa. A code with exponent field e > 0 and mantissa m stands
// for (1 + m / 2^M) * 2^(e - bias), with e = 0 for m / 2^M * 2^(1 - bias), the subnormals.
#pragma once

#include "kernels/common/platform.cuh"

namespace attn {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;

ATTN_FN u32 float_bits(float x) { return __builtin_bit_cast(u32, x); }
ATTN_FN float float_from_bits(u32 bits) { return __builtin_bit_cast(float, bits); }

ATTN_FN bool is_nan_bits(u32 bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; }

/// Rounds the 24-bit significand `value` (implicit one included) right by `shift` bits, nearest
/// even. shift may be 0..31.
ATTN_FN u32 shift_right_nearest_even(u32 value, int shift) {
  if (shift == 0) return value;
  const u32 kept = value >> shift;
  const u32 rest = value & ((1u << shift) - 1u);
  const u32 half = 1u << (shift - 1);
  return kept + ((rest > half || (rest == half && (kept & 1u) != 0u)) ? 1u : 0u);
}

// ---- bfloat16: the upper half of a float ----
/// Nearest even, overflow to infinity. The addition carries from the dropped half into the kept
/// one, and from the mantissa into the exponent. A NaN keeps its upper payload and is made quiet.
ATTN_FN u16 bf16_from_float(float x) {
  const u32 bits = float_bits(x);
  if (is_nan_bits(bits)) return static_cast<u16>((bits >> 16) | 0x0040u);
  return static_cast<u16>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
ATTN_FN float bf16_to_float(u16 code) { return float_from_bits(static_cast<u32>(code) << 16); }

// ---- small binary floats with subnormals ----
/// Magnitude code of |x| in a format with kMantissa mantissa bits and exponent bias kBias, rounded
/// to nearest even, unbounded above (the caller saturates or maps to infinity). `bits` must not be
/// NaN. An infinite x gives a code above every finite one. Codes of magnitudes are in the order of
/// their values, so that a caller saturates by an integer comparison.
template <int kMantissa, int kBias>
ATTN_FN u32 encode_magnitude(u32 bits) {
  const u32 magnitude = bits & 0x7FFFFFFFu;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const u32 significand = (magnitude & 0x7FFFFFu) | (magnitude >= 0x800000u ? 0x800000u : 0u);
  constexpr int kMinExponent = 1 - kBias;
  if (exponent >= kMinExponent) {
    // The significand has its implicit bit, which the subtraction takes off again. A carry of the
    // rounding runs into the exponent field, which is what is wanted: the next power of two.
    const u32 rounded = shift_right_nearest_even(significand, 23 - kMantissa);
    return (static_cast<u32>(exponent + kBias) << kMantissa) + rounded - (1u << kMantissa);
  }
  const int shift = 23 - kMantissa + (kMinExponent - exponent);
  // Below half of the least subnormal everything is zero; 25 bits are shifted out at most.
  return shift > 25 ? 0u : shift_right_nearest_even(significand, shift);
}

/// Value of a magnitude code. Codes that the format keeps for infinity and NaN are the caller's.
template <int kMantissa, int kBias>
ATTN_FN float decode_magnitude(u32 code) {
  const u32 exponent = code >> kMantissa;
  const u32 mantissa = code & ((1u << kMantissa) - 1u);
  if (exponent != 0u) {
    return float_from_bits(((exponent + 127u - kBias) << 23) | (mantissa << (23 - kMantissa)));
  }
  // Exact: a small integer times a power of two.
  return static_cast<float>(mantissa) *
         float_from_bits(static_cast<u32>(127 + 1 - kBias - kMantissa) << 23);
}

// ---- float16: overflow becomes infinity ----
ATTN_FN u16 f16_from_float(float x) {
  const u32 bits = float_bits(x);
  const u32 sign = (bits >> 16) & 0x8000u;
  if (is_nan_bits(bits)) return static_cast<u16>(sign | 0x7E00u);
  const u32 code = encode_magnitude<10, 15>(bits);
  return static_cast<u16>(sign | (code > 0x7C00u ? 0x7C00u : code));
}
ATTN_FN float f16_to_float(u16 code) {
  const u32 sign = static_cast<u32>(code & 0x8000u) << 16;
  const u32 magnitude = code & 0x7FFFu;
  if (magnitude >= 0x7C00u) {
    return float_from_bits(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  }
  return float_from_bits(sign | float_bits(decode_magnitude<10, 15>(magnitude)));
}

// ---- e4m3 (float8_e4m3fn): saturates to 448, NaN is 0x7F ----
ATTN_FN u8 e4m3_from_float(float x) {
  const u32 bits = float_bits(x);
  const u32 sign = (bits >> 24) & 0x80u;
  if (is_nan_bits(bits)) return 0x7F;
  const u32 code = encode_magnitude<3, 7>(bits);
  return static_cast<u8>(sign | (code > 0x7Eu ? 0x7Eu : code));
}
ATTN_FN float e4m3_to_float(u8 code) {
  const u32 sign = static_cast<u32>(code & 0x80u) << 24;
  const u32 magnitude = code & 0x7Fu;
  if (magnitude == 0x7Fu) return float_from_bits(sign | 0x7FC00000u);
  return float_from_bits(sign | float_bits(decode_magnitude<3, 7>(magnitude)));
}

// ---- e5m2: saturates to 57344; infinities and NaNs exist as codes ----
ATTN_FN u8 e5m2_from_float(float x) {
  const u32 bits = float_bits(x);
  const u32 sign = (bits >> 24) & 0x80u;
  if (is_nan_bits(bits)) return 0x7F;
  const u32 code = encode_magnitude<2, 15>(bits);
  return static_cast<u8>(sign | (code > 0x7Bu ? 0x7Bu : code));
}
ATTN_FN float e5m2_to_float(u8 code) {
  const u32 sign = static_cast<u32>(code & 0x80u) << 24;
  const u32 magnitude = code & 0x7Fu;
  if (magnitude >= 0x7Cu) {
    return float_from_bits(sign | 0x7F800000u | ((magnitude & 3u) << 21));
  }
  return float_from_bits(sign | float_bits(decode_magnitude<2, 15>(magnitude)));
}

// ---- e2m1 (fp4): saturates to 6; the code is in the low nibble ----
ATTN_FN u8 e2m1_from_float(float x) {
  // NaN has no code in e2m1; CUDA's conversion gives +6, and so do these comparisons.
  const float below = x < 6.0f ? x : 6.0f;
  const float held = below > -6.0f ? below : -6.0f;
  const float magnitude = float_from_bits(float_bits(held) & 0x7FFFFFFFu);
  // With 2^22 times the power of two below it, or 1, a magnitude becomes a number n of the steps
  // between codes there: 1/2 below 2, then 1, then 2. The code is n + 2 exponent; the exponent lies
  // from bit 23 on, and what else lies there, 2 * 149, becomes a multiple of 8 by 6 steps more.
  const float from = magnitude > 1.0f ? magnitude : 1.0f;
  const u32 unit = (float_bits(from) & 0x7F800000u) + (22u << 23) + 6u;
  const u32 sum = float_bits(magnitude + float_from_bits(unit));
  return static_cast<u8>(((sum + (sum >> 22)) & 7u) | ((float_bits(held) >> 28) & 8u));
}
ATTN_FN float e2m1_to_float(u8 code) {
  const float magnitude = decode_magnitude<1, 1>(code & 7u);
  return (code & 8u) != 0u ? -magnitude : magnitude;
}

// ---- ue8m0: a power of two ----
ATTN_FN float ue8m0_to_float(u8 code) {
  // 2^-127 is a subnormal float; code 255 is NaN.
  if (code == 0u) return float_from_bits(0x00400000u);
  if (code == 255u) return float_from_bits(0x7FC00000u);
  return float_from_bits(static_cast<u32>(code) << 23);
}

// ---- int8 ----
/// Nearest even, saturating; NaN gives 0 (cvt.rni.sat.s8.f32).
ATTN_FN signed char i8_nearest_even(float x) {
  if (!(x == x)) return 0;
  if (x >= 127.0f) return 127;
  if (x <= -128.0f) return -128;
  // Why: adding 1.5 * 2^23 rounds to an integer with the hardware's nearest-even rule.
  const float magic = 12582912.0f;
  return static_cast<signed char>(static_cast<int>((x + magic) - magic));
}
/// Half away from zero: trunc(clamp(x +- 0.5, -128, 127)).
ATTN_FN signed char i8_half_away(float x) {
  if (!(x == x)) return 0;
  const float shifted = x >= 0.0f ? x + 0.5f : x - 0.5f;
  return static_cast<signed char>(
      shifted >= 127.0f ? 127 : (shifted <= -128.0f ? -128 : static_cast<int>(shifted)));
}
ATTN_FN signed char i8_truncate(float x) {
  if (!(x == x)) return 0;
  return static_cast<signed char>(x >= 127.0f ? 127 : (x <= -128.0f ? -128 : static_cast<int>(x)));
}

}  // namespace attn
