// e4m3 and int8 go through the conversions of core/dtype, which the pipelines use too; e2m1, of
// which no tensor has the type, is spelled out.
#include "reference/quantise/number_formats.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"

namespace attnbench {
namespace {

constexpr std::array<float, 8> kE2m1Values{0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

}  // namespace

std::uint8_t rn_e4m3(float x) {
  std::uint8_t code = 0x7F;
  if (!std::isnan(x)) store_float(Dtype::kE4M3, &code, 0, x);
  return code;
}

float e4m3_value(std::uint8_t code) { return load_float(Dtype::kE4M3, &code, 0); }

std::uint8_t rn_e2m1(float x) {
  if (std::isnan(x)) return 7;
  const float magnitude = std::fabs(x);
  std::uint8_t code = 0;
  while (code < 7) {
    // A tie between two codes goes to the even one, that is upwards from an odd code.
    const float middle = (kE2m1Values[code] + kE2m1Values[code + 1u]) / 2.0f;
    const bool stays = magnitude < middle || (magnitude == middle && code % 2 == 0);
    if (stays) break;
    ++code;
  }
  return static_cast<std::uint8_t>(code | (std::signbit(x) ? 8 : 0));
}

float e2m1_value(std::uint8_t code) {
  const float magnitude = kE2m1Values[code & 7u];
  return (code & 8u) != 0 ? -magnitude : magnitude;
}

std::int8_t rn_i8(float x) {
  std::int8_t code = 0;
  store_float(Dtype::kI8, &code, 0, x);
  return code;
}

bool saturates_e4m3(float x) { return std::fabs(x) > 464.0f; }

std::int64_t round_row_to_e4m3(std::span<const float> values, std::uint8_t* codes) {
  store_floats(Dtype::kE4M3, values.data(), static_cast<std::int64_t>(values.size()), codes);
  std::int64_t saturated = 0;
  for (const float value : values) saturated += saturates_e4m3(value) ? 1 : 0;
  return saturated;
}

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
