#include "reference/vector_math.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/tensor.h"

namespace attnbench::vector_math_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename Real>
Real exp_of(Real x, Real maximum = 0) {
  exp_minus(&x, 1, maximum);
  return x;
}

/// Largest relative error of exp_minus over arguments where the result is a normal number.
template <typename Real>
double worst_exp_error(double least) {
  double worst = 0;
  for (int i = 0; i <= 200000; ++i) {
    const auto x = static_cast<Real>(least * i / 200000);
    const long double exact = std::exp(static_cast<long double>(x));
    const long double error = std::abs(static_cast<long double>(exp_of(x)) - exact) / exact;
    worst = std::max(worst, static_cast<double>(error));
  }
  return worst;
}

}  // namespace

TEST_CASE("exp_minus is within about an ulp of the exponential") {
  CHECK(worst_exp_error<double>(-708) < 1.5 * 0x1p-52);
  CHECK(worst_exp_error<float>(-87) < 1.5 * 0x1p-23);
}

TEST_CASE("exp_minus of the maximum itself is exactly one") {
  CHECK(exp_of(3.7, 3.7) == 1.0);
  CHECK(exp_of(3.7f, 3.7f) == 1.0f);
}

TEST_CASE("exp_minus underflows gradually and then to exactly zero") {
  CHECK(exp_of(-740.0) == doctest::Approx(std::exp(-740.0)).epsilon(0.1));
  CHECK(exp_of(-740.0) > 0);
  CHECK(exp_of(-746.0) == 0.0);
  CHECK(exp_of(-1e300) == 0.0);
  CHECK(exp_of(-kInfinity) == 0.0);
  CHECK(exp_of(-100.0f) > 0.0f);
  CHECK(exp_of(-1e30f) == 0.0f);
}

TEST_CASE("exp_minus propagates NaN and infinity minus infinity") {
  CHECK(std::isnan(exp_of(std::nan(""))));
  CHECK(std::isnan(exp_of(kInfinity, kInfinity)));
  CHECK(std::isnan(exp_of(std::nanf(""))));
  CHECK(std::isnan(exp_of(1.0, std::nan(""))));
}

TEST_CASE("soft_cap is the scaled hyperbolic tangent with full relative precision") {
  for (const double x : {0.0, 1e-300, 1e-12, 0.01, 0.3, 1.0, 7.0, 49.0, 200.0, 1e6, kInfinity}) {
    for (const double sign : {1.0, -1.0}) {
      double value = sign * x;
      soft_cap(&value, 1, 30.0);
      const long double exact = 30.0L * std::tanh(static_cast<long double>(sign * x / 30.0));
      CHECK(std::abs(static_cast<long double>(value) - exact) <= 8e-16L * std::abs(exact));
    }
  }
  double nan = std::nan("");
  soft_cap(&nan, 1, 30.0);
  CHECK(std::isnan(nan));
}

TEST_CASE("rounding whole arrays equals rounding one value at a time") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kE4M3, Dtype::kE5M2}) {
    std::vector<float> values;
    for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099) {
      values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    }
    // Every 16-bit prefix with tails at and beside the ties of the formats.
    for (std::uint32_t prefix = 0; prefix < (1u << 16); ++prefix) {
      for (const std::uint32_t tail :
           {0u, 1u, 0x0FFFu, 0x1000u, 0x1001u, 0x3000u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
        values.push_back(std::bit_cast<float>(prefix << 16 | tail));
      }
    }
    std::vector<float> rounded = values;
    round_values(dtype, rounded.data(), static_cast<std::int64_t>(rounded.size()));
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float expected = round_to(dtype, values[i]);
      const bool same = std::isnan(expected) ? std::isnan(rounded[i])
                                             : std::bit_cast<std::uint32_t>(rounded[i]) ==
                                                   std::bit_cast<std::uint32_t>(expected);
      if (!same) ++wrong;
    }
    CHECK_MESSAGE(wrong == 0, dtype_name(dtype));
  }
}

TEST_CASE("every code of a storage format loads as its value") {
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16, Dtype::kE4M3, Dtype::kE5M2}) {
    const std::int64_t count = std::int64_t{1} << (8 * dtype_size(dtype));
    std::vector<std::uint16_t> codes(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      if (dtype_size(dtype) == 2) {
        codes[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(i);
      } else {
        reinterpret_cast<std::uint8_t*>(codes.data())[i] = static_cast<std::uint8_t>(i);
      }
    }
    std::vector<double> wide(static_cast<std::size_t>(count));
    load_values(dtype, codes.data(), 0, count, wide.data());
    std::size_t wrong = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double expected = load_float(dtype, codes.data(), i);
      const double actual = wide[static_cast<std::size_t>(i)];
      if (std::isnan(expected) ? !std::isnan(actual) : actual != expected) ++wrong;
    }
    CHECK_MESSAGE(wrong == 0, dtype_name(dtype));
  }
}

TEST_CASE("loading starts at the given element and keeps f64 as it is") {
  const Tensor tensor = Tensor::from_f64(std::vector<double>{0.0, 1.0 / 3.0, 1e-300});
  double loaded[2] = {};
  load_values(Dtype::kF64, tensor.bytes(), 1, 2, loaded);
  CHECK(loaded[0] == 1.0 / 3.0);
  CHECK(loaded[1] == 1e-300);
}

}  // namespace attnbench::vector_math_test
