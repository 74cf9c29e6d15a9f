// The two modes round differently on purpose: mode 2 multiplies by 127 / max, mode 0 divides by the
// scale. Codes differ by one in places if either is written the other way.
#include "reference/quantise/int8.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "core/error.h"
#include "metadata/validation.h"
#include "reference/quantise/number_formats.h"

namespace attnbench {
namespace {

Int8Quantised quantise_per_token(const Tensor& x, bool transpose_scale) {
  const std::int64_t num_tokens = x.dim(0);
  const std::int64_t num_heads = x.dim(1);
  const std::int64_t head_size = x.dim(2);
  const std::vector<std::int64_t> scale_shape =
      transpose_scale ? std::vector{num_heads, num_tokens} : std::vector{num_tokens, num_heads};
  Int8Quantised result{Tensor(Dtype::kI8, x.shape()), Tensor(Dtype::kF32, scale_shape)};
  for (std::int64_t row = 0; row < num_tokens * num_heads; ++row) {
    const std::vector<float> values = load_row(x, row * head_size, head_size);
    const float amax = max_abs(values);
    const std::int64_t token = row / num_heads;
    const std::int64_t head = row % num_heads;
    const std::int64_t at = transpose_scale ? head * num_tokens + token : row;
    result.scale.data<float>()[at] = amax / 127.0f;
    if (amax == 0.0f) continue;  // codes are zero already
    const float factor = 127.0f / amax;
    for (std::int64_t d = 0; d < head_size; ++d) {
      result.codes.data<std::int8_t>()[row * head_size + d] =
          rn_i8(values[static_cast<std::size_t>(d)] * factor);
    }
  }
  return result;
}

Tensor dynamic_channel_scales(const Tensor& x) {
  const std::int64_t num_channels = x.dim(1) * x.dim(2);
  Tensor scale(Dtype::kF32, {x.dim(1), x.dim(2)});
  float* scales = scale.data<float>();
  for (std::int64_t token = 0; token < x.dim(0); ++token) {
    for (std::int64_t channel = 0; channel < num_channels; ++channel) {
      const float magnitude = std::fabs(x.at(token * num_channels + channel));
      scales[channel] = std::fmax(scales[channel], magnitude);
    }
  }
  for (std::int64_t channel = 0; channel < num_channels; ++channel) scales[channel] /= 127.0f;
  return scale;
}

Tensor checked_channel_scales(const Tensor& x, const Tensor& scale) {
  if (scale.dtype() != Dtype::kF32) {
    fail(ErrorKind::kDtype, "int8 scale must be float32, got {}", dtype_name(scale.dtype()));
  }
  if (scale.shape() != std::vector{x.dim(1), x.dim(2)}) {
    fail(ErrorKind::kShape, "int8 scale must be [{}, {}], got {} elements of rank {}", x.dim(1),
         x.dim(2), scale.num_elements(), scale.shape().size());
  }
  for (std::int64_t i = 0; i < scale.num_elements(); ++i) check_scale(scale.at(i), "int8 scale");
  return scale;
}

Int8Quantised quantise_per_channel(const Tensor& x, const Tensor* scale) {
  Int8Quantised result{Tensor(Dtype::kI8, x.shape()),
                       scale ? checked_channel_scales(x, *scale) : dynamic_channel_scales(x)};
  const std::int64_t num_channels = x.dim(1) * x.dim(2);
  for (std::int64_t i = 0; i < x.num_elements(); ++i) {
    const float s = result.scale.at(i % num_channels);
    if (s == 0.0f) continue;  // codes are zero already
    result.codes.data<std::int8_t>()[i] = rn_i8(x.at(i) / s);
  }
  return result;
}

}  // namespace

Int8Quantised scaled_int8_quant_for_attn(const Tensor& x, int mode, bool transpose_scale,
                                         const Tensor* scale) {
  require_activation(x.dtype(), "x");
  require_rank(x, 3, "x");
  if (mode == 2) {
    if (scale) fail(ErrorKind::kConfig, "int8 quant mode 2 is dynamic, it takes no scale");
    return quantise_per_token(x, transpose_scale);
  }
  if (mode == 0) {
    if (transpose_scale) {
      fail(ErrorKind::kConfig, "transpose_scale must be false for int8 quant mode 0");
    }
    return quantise_per_channel(x, scale);
  }
  fail(ErrorKind::kConfig, "int8 quant mode: must be 0 or 2, got {}", mode);
}

void update_value_scale_maximum(std::span<float> running, std::span<const float> step) {
  if (running.size() != step.size()) {
    fail(ErrorKind::kShape, "value scales must have {} elements, got {}", running.size(),
         step.size());
  }
  for (std::size_t i = 0; i < step.size(); ++i) running[i] = std::max(running[i], step[i]);
}

std::int64_t normalise_value_scales(std::span<float> scales, std::int64_t num_kv_heads,
                                    std::int64_t head_size) {
  if (static_cast<std::int64_t>(scales.size()) != num_kv_heads * head_size) {
    fail(ErrorKind::kShape, "value scales must be [{}, {}], got {} elements", num_kv_heads,
         head_size, scales.size());
  }
  for (float scale : scales) {
    if (scale != 0.0f) check_scale(scale, "value scale");
  }
  std::int64_t replaced = 0;
  for (float& scale : scales) {
    if (scale != 0.0f) continue;
    scale = 1.0f;
    ++replaced;
  }
  return replaced;
}

}  // namespace attnbench
