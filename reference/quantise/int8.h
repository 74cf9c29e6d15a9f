// int8 quantisation of attention inputs, and the running maximum that calibrates value scales
// (semantics §11.2, §11.3). Queries and keys are quantised per token and head (mode 2), values per
// channel (mode 0), whose scales come from a file when the cache holds int8 values. T tokens, h
// heads (query or KV heads), Hk KV heads, D head size.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace attnbench {

/// Codes and the multipliers that turn them back into values. A scale of a row or channel that is
/// zero everywhere is 0, and so are its codes.
struct Int8Quantised {
  Tensor codes;  // int8 [T, h, D]
  Tensor scale;  // f32: mode 2 [T, h], or [h, T] when transposed; mode 0 [h, D]
};

/// x [T, h, D], f16, bf16 or f32.
/// Mode 2, per token and head: s = max|x| / 127, code = rn_i8(x * (127 / max|x|)).
/// Mode 0, per channel: s = scale [h, D] if given, else max over tokens |x| / 127;
/// code = rn_i8(x / s), 0 where the dynamic s is 0.
/// E-CONFIG: another mode ("int8 quant mode"), a scale for mode 2, a transposed scale for mode 0.
/// E-DTYPE, E-SHAPE: x or scale. E-VALUE: a given scale that is not finite and > 0.
Int8Quantised scaled_int8_quant_for_attn(const Tensor& x, int mode, bool transpose_scale,
                                         const Tensor* scale = nullptr);

/// running[i] = max(running[i], step[i]); both [Hk, D]. Start from zeros. Calibration calls it for
/// each step with the mode 0 scales of the step's values, and the file holds the largest of each,
/// so that no value of any step saturates.
void update_value_scale_maximum(std::span<float> running, std::span<const float> step);

/// Checks scales [num_kv_heads, D] that were read from a file: E-SHAPE unless there are that many,
/// E-VALUE unless finite and >= 0. Zeros become 1.0; returns how many, which is worth a warning.
std::int64_t normalise_value_scales(std::span<float> scales, std::int64_t num_kv_heads,
                                    std::int64_t head_size);

}  // namespace attnbench
