// The table is computed in f64 and rounded once, so that it does not depend on a libm's f32 sine.
#include "reference/ops/rope.h"

#include <cmath>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/system/parallel.h"
#include "reference/quantise/number_formats.h"

namespace attnbench {
namespace {

constexpr std::int64_t kTokensPerTask = 64;

void check_rotation(std::int64_t rot) {
  if (rot < 0 || rot % 2 != 0) {
    fail(ErrorKind::kShape, "rotary dimension must be even and >= 0, got {}", rot);
  }
}

void check_rotated(const Tensor& x, std::size_t num_tokens, const Tensor& cos_sin_cache,
                   std::string_view name) {
  require_activation(x.dtype(), name);
  require_rank(x, 3, name);
  if (x.dim(0) != static_cast<std::int64_t>(num_tokens)) {
    fail(ErrorKind::kShape, "{} must have {} rows, one for each position, got {}", name, num_tokens,
         x.dim(0));
  }
  if (cos_sin_cache.dim(1) > x.dim(2)) {
    fail(ErrorKind::kShape, "rotary dimension must be at most the head size {} of {}, got {}",
         x.dim(2), name, cos_sin_cache.dim(1));
  }
  if (cos_sin_cache.dtype() != Dtype::kF32 && cos_sin_cache.dtype() != x.dtype()) {
    fail(ErrorKind::kDtype, "cos_sin_cache must be float32 or {} like {}, got {}",
         dtype_name(x.dtype()), name, dtype_name(cos_sin_cache.dtype()));
  }
}

void check_positions(std::span<const std::int64_t> positions, std::int64_t max_pos) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0 || positions[i] >= max_pos) {
      fail(ErrorKind::kValue, "positions[{}] must lie in [0, {}), got {}", i, max_pos,
           positions[i]);
    }
  }
}

/// `cos_sin` [rot]; `first` is the index of the head's first element in x.
void rotate_head(Tensor& x, std::int64_t first, const std::vector<float>& cos_sin,
                 RopeStyle style) {
  const std::size_t half = cos_sin.size() / 2;
  for (std::size_t k = 0; k < half; ++k) {
    const std::size_t i = style == RopeStyle::kNeox ? k : 2 * k;
    const std::size_t j = style == RopeStyle::kNeox ? k + half : 2 * k + 1;
    const std::int64_t x_index = first + static_cast<std::int64_t>(i);
    const std::int64_t y_index = first + static_cast<std::int64_t>(j);
    const float a = x.at(x_index);
    const float b = x.at(y_index);
    const float cosine = cos_sin[k];
    const float sine = cos_sin[half + k];
    x.set(x_index, a * cosine - b * sine);
    x.set(y_index, b * cosine + a * sine);
  }
}

void rotate(Tensor& x, std::span<const std::int64_t> positions, const Tensor& cos_sin_cache,
            RopeStyle style) {
  const std::int64_t rot = cos_sin_cache.dim(1);
  const std::int64_t num_heads = x.dim(1);
  for_each_chunk(x.dim(0), kTokensPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      const std::vector<float> cos_sin =
          load_row(cos_sin_cache, positions[static_cast<std::size_t>(token)] * rot, rot);
      for (std::int64_t head = 0; head < num_heads; ++head) {
        rotate_head(x, (token * num_heads + head) * x.dim(2), cos_sin, style);
      }
    }
  });
}

}  // namespace

Tensor make_cos_sin_cache(std::int64_t max_pos, std::int64_t rot, Dtype dtype, double base) {
  check_rotation(rot);
  require_activation(dtype, "cos_sin_cache");
  Tensor cache(dtype, {max_pos, rot});
  const std::int64_t half = rot / 2;
  for (std::int64_t k = 0; k < half; ++k) {
    const double exponent = -2.0 * static_cast<double>(k) / static_cast<double>(rot);
    const double inverse_frequency = std::pow(base, exponent);
    for (std::int64_t position = 0; position < max_pos; ++position) {
      const double angle = static_cast<double>(position) * inverse_frequency;
      cache.set(position * rot + k, static_cast<float>(std::cos(angle)));
      cache.set(position * rot + half + k, static_cast<float>(std::sin(angle)));
    }
  }
  return cache;
}

void apply_rope(std::span<const std::int64_t> positions, const Tensor& cos_sin_cache,
                RopeStyle style, Tensor& query, Tensor* key) {
  require_rank(cos_sin_cache, 2, "cos_sin_cache");
  check_rotation(cos_sin_cache.dim(1));
  check_rotated(query, positions.size(), cos_sin_cache, "query");
  if (key != nullptr) check_rotated(*key, positions.size(), cos_sin_cache, "key");
  check_positions(positions, cos_sin_cache.dim(0));
  rotate(query, positions, cos_sin_cache, style);
  if (key != nullptr) rotate(*key, positions, cos_sin_cache, style);
}

std::vector<double> rotated_rows(std::span<const std::int64_t> positions,
                                 const Tensor& cos_sin_cache, RopeStyle style, const Tensor& x) {
  require_rank(cos_sin_cache, 2, "cos_sin_cache");
  check_rotation(cos_sin_cache.dim(1));
  check_rotated(x, positions.size(), cos_sin_cache, "x");
  check_positions(positions, cos_sin_cache.dim(0));
  const std::int64_t rot = cos_sin_cache.dim(1);
  const std::int64_t half = rot / 2;
  std::vector<double> result(static_cast<std::size_t>(x.num_elements()));
  const auto rotate_row = [&](std::int64_t row) {
    const std::int64_t table = positions[static_cast<std::size_t>(row / x.dim(1))] * rot;
    double* rotated = result.data() + row * x.dim(2);
    for (std::int64_t d = 0; d < x.dim(2); ++d) rotated[d] = x.at(row * x.dim(2) + d);
    for (std::int64_t k = 0; k < half; ++k) {
      double& a = rotated[style == RopeStyle::kNeox ? k : 2 * k];
      double& b = rotated[style == RopeStyle::kNeox ? k + half : 2 * k + 1];
      const double cosine = cos_sin_cache.at(table + k);
      const double sine = cos_sin_cache.at(table + half + k);
      const double before = a;
      a = before * cosine - b * sine;
      b = b * cosine + before * sine;
    }
  };
  for_each_chunk(x.dim(0) * x.dim(1), 16 * kTokensPerTask,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) rotate_row(row);
                 });
  return result;
}

}  // namespace attnbench
