// What quantisers and cache writes share. e4m3 codes as semantics §8 and §9 have them stored:
// saturating at 448, where a plain cast would give NaN, and with one code for NaN of either sign.
// The quantisers count what saturates beyond rounding, because a scale that cuts off real values
// shows in that number first.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/common/numeric.cuh"

namespace attnbench::cpu {

inline constexpr float kE4m3Max = 448.0f;  // the largest value of e4m3

/// rn_e4m3 (semantics §0.4): nearest even, saturating at 448; NaN of either sign is 0x7F, whose
/// sign a cast would keep.
inline attn::u8 encode_e4m3(float x) {
  return std::isnan(x) ? attn::u8{0x7F} : attn::e4m3_from_float(x);
}

/// Whether saturation costs more than rounding would: from 464, halfway between 448 and the next
/// code that e4m3 would have, a plain cast gives NaN (§0.4).
inline bool is_saturated_e4m3(float x) { return std::fabs(x) > 464.0f; }

/// Codes of values [count], which have been scaled; returns how many saturated.
inline std::int64_t encode_e4m3_row(const float* values, std::int64_t count, attn::u8* codes) {
  std::int64_t saturated = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    saturated += is_saturated_e4m3(values[i]) ? 1 : 0;
    codes[i] = encode_e4m3(values[i]);
  }
  return saturated;
}

/// What the code of x reads back as, for x from 0 to 448, without a branch: compilers make vectors
/// of it.
inline float read_back_e4m3(float x) {
  constexpr float kLeastNormal = 0x1p-6f;
  constexpr float kToSubnormal = 0x1p14f;  // its last place is that of a subnormal code
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t three_bits = (bits + 0x7FFFFu + ((bits >> 20) & 1u)) & 0xFFF00000u;
  const float subnormal = (x + kToSubnormal) - kToSubnormal;
  const float rounded = x < kLeastNormal ? subnormal : std::bit_cast<float>(three_bits);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(rounded) | (bits & 0x80000000u));
}

/// Values [count] as they read back from e4m3 when stored times `shift`, a power of two.
inline void read_back_e4m3_row(float* values, std::int64_t count, float shift) {
  constexpr std::int64_t kChunk = 64;
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    const std::int64_t end = std::min(count, begin + kChunk);
    bool is_plain = true;
    for (std::int64_t i = begin; i < end; ++i) {
      const float x = values[i] * shift;
      is_plain &= (x >= 0.0f) & (x <= kE4m3Max);
    }
    for (std::int64_t i = begin; i < end && is_plain; ++i) {
      values[i] = read_back_e4m3(values[i] * shift) / shift;
    }
    for (std::int64_t i = begin; i < end && !is_plain; ++i) {
      values[i] = attn::e4m3_to_float(attn::e4m3_from_float(values[i] * shift)) / shift;
    }
  }
}

/// x * factor, where zero stays zero: the reciprocal of a scale below 2^-128 is infinite, and 0
/// times infinity would turn a tensor of zeros into NaN.
inline float scaled_by(float x, float factor) { return x == 0.0f ? x : x * factor; }

/// Writes the codes of 16 values as NVFP4 (§9.4, §5.7) to 8 bytes, the even column in the low
/// nibble, and returns the e4m3 code of their scale.
attn::u8 quantise_nvfp4_block(const float* values, float global_scale, attn::u8* packed);

/// The rotation before 4-bit codes (§5.6): values [width], a power of two up to 512, become
/// H (signs * values), or signs * (H values) / width when inverse.
void rotate_head(float* values, int width, bool inverse);

/// H values in place, with the unnormalised matrix of Hadamard; width a power of two.
void multiply_hadamard(float* values, int width);

}  // namespace attnbench::cpu
