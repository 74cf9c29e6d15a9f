// Quantisation to int8 as the definitions have it, in float32 and element by element. The division
// and the multiplication by a reciprocal are not interchangeable: they round differently, and the
// codes are compared as bytes.
#include "inputs/cache/int8_rows.h"

#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/system/parallel.h"
#include "kernels/common/numeric.cuh"

namespace attnbench {
namespace {

constexpr std::int64_t kRowsPerTask = 64;

Int8Rows empty_rows(const Tensor& source) {
  return {Tensor(Dtype::kI8, source.shape()), {}, Tensor(Dtype::kF32, source.shape())};
}

/// Elements [first, first + to.size()) of `source`, all at once because that vectorises.
void load(const Tensor& source, std::int64_t first, std::vector<float>& to) {
  const auto element = static_cast<std::int64_t>(dtype_size(source.dtype()));
  load_floats(source.dtype(), source.bytes() + first * element,
              static_cast<std::int64_t>(to.size()), to.data());
}

void store(Int8Rows& rows, std::int64_t index, float y, float scale) {
  const signed char code = attn::i8_nearest_even(y);
  rows.codes.data<signed char>()[index] = code;
  rows.dequantized.data<float>()[index] = static_cast<float>(code) * scale;
}

}  // namespace

Int8Rows quantise_int8_by_token(const Tensor& source) {
  Int8Rows rows = empty_rows(source);
  rows.scales = Tensor(Dtype::kF32, {source.dim(0), source.dim(1)});
  const std::int64_t heads = source.dim(1);
  const std::int64_t width = source.dim(2);
  for_each_chunk(source.dim(0), kRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(static_cast<std::size_t>(width));
    for (std::int64_t cell = begin * heads; cell < end * heads; ++cell) {
      load(source, cell * width, values);
      float largest = 0.0f;
      for (const float x : values) {
        if (std::fabs(x) > largest) largest = std::fabs(x);  // as fmax, which does not vectorise
      }
      const float scale = largest / 127.0f;
      const float factor = largest == 0.0f ? 0.0f : 127.0f / largest;
      rows.scales.data<float>()[cell] = scale;
      for (std::size_t i = 0; i < values.size(); ++i) {
        store(rows, cell * width + static_cast<std::int64_t>(i), values[i] * factor, scale);
      }
    }
  });
  return rows;
}

Int8Rows quantise_int8_by_channel(const Tensor& source, std::span<const float> scale) {
  const std::int64_t channels = source.dim(1) * source.dim(2);
  if (static_cast<std::int64_t>(scale.size()) != channels) {
    fail(ErrorKind::kShape, "value scales of int8 attention: expected {} x {} numbers, got {}",
         source.dim(1), source.dim(2), scale.size());
  }
  for (const float s : scale) {
    if (s > 0.0f && std::isfinite(s)) continue;
    fail(ErrorKind::kValue, "value scales of int8 attention: expected finite numbers > 0, got {}",
         s);
  }
  Int8Rows rows = empty_rows(source);
  for_each_chunk(source.dim(0), kRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(scale.size());
    for (std::int64_t row = begin; row < end; ++row) {
      load(source, row * channels, values);
      for (std::size_t i = 0; i < values.size(); ++i) {
        store(rows, row * channels + static_cast<std::int64_t>(i), values[i] / scale[i], scale[i]);
      }
    }
  });
  return rows;
}

}  // namespace attnbench
