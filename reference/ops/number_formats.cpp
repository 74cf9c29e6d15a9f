#include "reference/ops/number_formats.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/common/numeric.cuh"

namespace attnbench {

std::uint8_t rn_e4m3(float x) {
  constexpr std::uint8_t kNan = 0x7F;
  return std::isnan(x) ? kNan : attn::e4m3_from_float(x);
}

bool saturates_e4m3(float x) { return std::fabs(x) > 464.0f; }

float scaled_by(float x, float factor) { return x == 0.0f ? x : x * factor; }

float ue8m0_scale(float s) {
  if (!std::isfinite(s)) return s;
  int exponent = 0;
  // max(s, 1e-10) = fraction * 2^exponent with fraction in [0.5, 1)
  const float fraction = std::frexp(std::max(s, 1e-10f), &exponent);
  return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

float max_abs(std::span<const float> values) {
  float largest = 0.0f;
  for (float value : values) largest = std::fmax(largest, std::fabs(value));
  return largest;
}

std::vector<float> load_row(const Tensor& x, std::int64_t first, std::int64_t count) {
  std::vector<float> row(static_cast<std::size_t>(count));
  const auto offset = static_cast<std::size_t>(first) * dtype_size(x.dtype());
  load_floats(x.dtype(), x.bytes() + offset, count, row.data());
  return row;
}

void require_activation(Dtype dtype, std::string_view name) {
  if (dtype != Dtype::kF16 && dtype != Dtype::kBF16 && dtype != Dtype::kF32) {
    fail(ErrorKind::kDtype, "{} must be float16, bfloat16 or float32, got {}", name,
         dtype_name(dtype));
  }
}

void require_rank(const Tensor& x, std::size_t rank, std::string_view name) {
  if (x.shape().size() != rank) {
    fail(ErrorKind::kShape, "{} must have rank {}, got {}", name, rank, x.shape().size());
  }
}

void require_size(std::size_t actual, std::int64_t least, std::string_view name) {
  if (actual < static_cast<std::size_t>(least)) {
    fail(ErrorKind::kShape, "{} must hold at least {} elements, got {}", name, least, actual);
  }
}

}  // namespace attnbench
