#include "inputs/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/numbers/dtype.h"

namespace attnbench {
namespace {

using Block = std::array<std::uint32_t, 4>;

std::uint64_t fnv1a(const void* data, std::size_t size) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::size_t i = 0; i < size; ++i) {
    hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
  }
  return hash;
}

std::vector<float> drawn(const RandomStream& stream, Distribution distribution, double std,
                         std::uint64_t first, std::size_t count) {
  std::vector<float> values(count);
  draw(stream, distribution, std, first, values);
  return values;
}

struct Moments {
  double mean = 0, std = 0, skew = 0, kurtosis = 0;
};
Moments moments(const std::vector<float>& values) {
  const auto count = static_cast<double>(values.size());
  Moments m;
  for (float x : values) m.mean += x / count;
  double m2 = 0, m3 = 0, m4 = 0;
  for (float x : values) {
    const double d = x - m.mean;
    m2 += d * d / count;
    m3 += d * d * d / count;
    m4 += d * d * d * d / count;
  }
  m.std = std::sqrt(m2);
  m.skew = m3 / (m2 * m.std);
  m.kurtosis = m4 / (m2 * m2);
  return m;
}

TEST_CASE("Philox4x32-10 reproduces the known-answer vectors of Random123") {
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
        Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("the portable logarithm agrees with the maths library to a few ulps") {
  double worst = 0;
  for (int e = -40; e <= 40; ++e) {
    for (double m = 1.0; m < 2.0; m += 0.00137) {
      const double x = std::ldexp(m, e);
      const double exact = std::log(x);
      worst =
          std::max(worst, std::fabs(portable_log(x) - exact) / std::max(std::fabs(exact), 1e-9));
    }
  }
  CHECK(worst < 1e-15);
  CHECK(portable_log(1.0) == 0.0);
}

TEST_CASE("the normal quantile inverts the distribution function and is odd") {
  for (double z : {0.01, 0.5, 1.0, 1.4, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0}) {
    const double p = 0.5 * std::erfc(z / std::sqrt(2.0));  // lower tail
    CHECK(normal_quantile(p) == doctest::Approx(-z).epsilon(1e-13));
    const double on_grid = (std::floor(p * 0x1p32) + 0.5) * 0x1p-32;  // 1 - on_grid is exact
    CHECK(normal_quantile(on_grid) == -normal_quantile(1.0 - on_grid));
  }
  CHECK(normal_quantile(0.5) == 0.0);
  CHECK(normal_quantile(0x1p-33) == doctest::Approx(-6.33).epsilon(0.01));
}

TEST_CASE("seeded draws have the bytes of an independent implementation") {
  // Hashes (FNV-1a 64) computed apart from this program with Python integers for Philox,
  // statistics.NormalDist().inv_cdf for the quantile and numpy for the rounding to float32 and
  // bfloat16; no value came nearer than 9 ulps of a double to a rounding boundary of float32.
  auto normal = drawn({0x123456789abcdef, StreamId::kKey}, Distribution::kNormal, 1.0, 2, 20000);
  CHECK(fnv1a(normal.data(), normal.size() * sizeof(float)) == 0x524be4755b3d64eb);
  std::vector<std::uint16_t> rounded(normal.size());
  store_floats(Dtype::kBF16, normal.data(), static_cast<std::int64_t>(normal.size()),
               rounded.data());
  CHECK(fnv1a(rounded.data(), rounded.size() * 2) == 0x8ec20727906a4953);
  const auto uniform = drawn({7, StreamId::kValue}, Distribution::kUniform, 0.5, 0, 4000);
  CHECK(fnv1a(uniform.data(), uniform.size() * sizeof(float)) == 0xd067248c18c5b2aa);
}

TEST_CASE("a drawn element has the bits of the quantile of its own random bits") {
  const RandomStream stream{0xfeedface12345678, StreamId::kQuery};
  for (const std::uint64_t first : {std::uint64_t{0}, (std::uint64_t{1} << 34) - 1000}) {
    const auto values = drawn(stream, Distribution::kNormal, 0.3, first, 5000);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double exact = normal_quantile(stream.uniform(first + i)) * 0.3;
      REQUIRE(values[i] == static_cast<float>(exact));
    }
  }
}

TEST_CASE("an element does not depend on where the draw begins") {
  const RandomStream stream{99, StreamId::kQuery};
  const auto whole = drawn(stream, Distribution::kNormal, 2.0, 0, 64);
  for (std::size_t first = 0; first < 12; ++first) {
    for (std::size_t count = 0; count < 9; ++count) {
      const auto part = drawn(stream, Distribution::kNormal, 2.0, first, count);
      for (std::size_t i = 0; i < count; ++i) CHECK(part[i] == whole[first + i]);
    }
  }
}

TEST_CASE("normal draws have the moments and the tails of the normal distribution") {
  const auto values = drawn({1, StreamId::kValue}, Distribution::kNormal, 3.0, 0, 1'000'000);
  const Moments m = moments(values);
  CHECK(std::fabs(m.mean) < 3.0 * 4e-3);
  CHECK(m.std == doctest::Approx(3.0).epsilon(4e-3));
  CHECK(std::fabs(m.skew) < 0.01);
  CHECK(m.kurtosis == doctest::Approx(3.0).epsilon(0.01));
  int beyond3 = 0;
  for (float x : values) beyond3 += std::fabs(x) > 9.0f;
  CHECK(beyond3 > 2500);  // expected 2700
  CHECK(beyond3 < 2900);
}

TEST_CASE("uniform draws keep the standard deviation and stay inside their interval") {
  const auto values = drawn({1, StreamId::kValue}, Distribution::kUniform, 0.5, 0, 1'000'000);
  const Moments m = moments(values);
  CHECK(std::fabs(m.mean) < 2e-3);
  CHECK(m.std == doctest::Approx(0.5).epsilon(4e-3));
  CHECK(m.kurtosis == doctest::Approx(1.8).epsilon(0.01));
  const double bound = 0.5 * std::sqrt(3.0);
  double largest = 0;
  for (float x : values) largest = std::max(largest, std::fabs(double{x}));
  CHECK(largest <= bound * (1 + 1e-7));
  CHECK(largest > 0.999 * bound);
}

TEST_CASE("streams and seeds are independent of one another") {
  const auto a = drawn({1, StreamId::kKey}, Distribution::kNormal, 1.0, 0, 100'000);
  const auto others = {
      drawn({1, StreamId::kValue}, Distribution::kNormal, 1.0, 0, 100'000),
      drawn({2, StreamId::kKey}, Distribution::kNormal, 1.0, 0, 100'000),
      drawn({1ull << 32 | 1, StreamId::kKey}, Distribution::kNormal, 1.0, 0, 100'000)};
  for (const auto& b : others) {
    double correlation = 0;
    for (std::size_t i = 0; i < a.size(); ++i) correlation += a[i] * b[i] / 1e5;
    CHECK(std::fabs(correlation) < 0.015);
  }
}

}  // namespace
}  // namespace attnbench
