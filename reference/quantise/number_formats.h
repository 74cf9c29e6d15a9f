// Number formats as the quantisers of semantics §8 to §11 use them: conversions, maxima, scale
// rules and the checks of their arguments. A quantiser elsewhere in the reference is written with
// these and with f32 arithmetic in the order of its definition, because codes are compared byte for
// byte: x / s and x * (1 / s) are different definitions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace attnbench {

inline constexpr float kE4m3Max = 448.0f;

/// rn_e4m3 of semantics §0.4: nearest even, saturating at 448; NaN of either sign is 0x7F.
std::uint8_t rn_e4m3(float x);
float e4m3_value(std::uint8_t code);

/// rn_e2m1: code in the low nibble, ties to the even code, saturating at 6; -0 is 8, NaN is 7.
std::uint8_t rn_e2m1(float x);
float e2m1_value(std::uint8_t code);

/// rn_i8: nearest even, saturating; NaN is 0.
std::int8_t rn_i8(float x);

/// Whether saturation costs x more than rounding would: |x| > 464, the values that a plain cast to
/// e4m3 turns into NaN (§0.4).
bool saturates_e4m3(float x);

/// codes[i] = rn_e4m3(values[i]); returns how many saturated.
std::int64_t round_row_to_e4m3(std::span<const float> values, std::uint8_t* codes);

/// x * factor, where zero stays zero. factor = 1 / scale is infinite for scales below 2^-128, such
/// as the floor of §10.6, and 0 * inf would make NaN of a tensor that is zero everywhere.
float scaled_by(float x, float factor);

/// 2^ceil(log2(max(s, 1e-10))), exactly (§9.3). Infinity and NaN stay as they are.
float ue8m0_scale(float s);

/// Largest |x|, 0 for none. NaN takes no part in it, as in CUDA's fmaxf.
float max_abs(std::span<const float> values);

/// Elements [first, first + count) as f32, exact for the 16-bit types.
std::vector<float> load_row(const Tensor& x, std::int64_t first, std::int64_t count);

/// E-DTYPE unless float16, bfloat16 or float32.
void require_activation(Dtype dtype, std::string_view name);
/// E-SHAPE unless the tensor has `rank` axes.
void require_rank(const Tensor& x, std::size_t rank, std::string_view name);
/// E-SHAPE unless actual >= least.
void require_size(std::size_t actual, std::int64_t least, std::string_view name);

}  // namespace attnbench
