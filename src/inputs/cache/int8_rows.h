// Keys, values and queries as int8 attention stores them (semantics §11.2), straight from the
// definitions in float32: what a correct pipeline's codes and scales are compared with, byte by
// byte. A code of -128 is never made, so it can serve as poison.
#pragma once

#include <span>

#include "core/tensor.h"

namespace attnbench {

struct Int8Rows {
  Tensor codes;        // int8 [T, h, D]
  Tensor scales;       // f32 [T, h]; empty when by channel
  Tensor dequantized;  // f32 [T, h, D]: f32(code) * scale
};

/// Mode 2: s = max_d|x| / 127, code = rn_i8(x * (127 / max_d|x|)); a vector of zeros has scale 0. A
/// NaN element does not count towards the maximum and becomes code 0.
Int8Rows quantise_int8_by_token(const Tensor& source);

/// Mode 0 with scales [h, D] given: code = rn_i8(x / s). Errors: E-SHAPE for a wrong number of
/// scales, E-VALUE unless all are finite and > 0.
Int8Rows quantise_int8_by_channel(const Tensor& source, std::span<const float> scale);

}  // namespace attnbench
