#include "reference/e4m3_products.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/error.h"
#include "core/numbers/dtype.h"

namespace attnbench {
namespace {

/// Sum of left[i] * right[i], codes without scales.
float summed(const std::vector<float>& left, const std::vector<float>& right) {
  E4m3Rows a, b;
  const auto columns = static_cast<std::int64_t>(left.size());
  REQUIRE(a.load(left.data(), 1, columns, 1));
  REQUIRE(b.load(right.data(), 1, columns, 1));
  float product = -1;
  multiply_e4m3(a, 0, 1, b, &product);
  return product;
}

/// A first pair and `count` more of another one.
float summed(float first_left, float first_right, std::size_t count, float left, float right) {
  std::vector<float> a(count + 1, left), b(count + 1, right);
  a[0] = first_left;
  b[0] = first_right;
  return summed(a, b);
}

int exponent_of_code(double code) { return std::max(std::ilogb(code), -6); }

/// The definition, one pair of rows at a time and in float64.
double by_definition(const float* left, const float* right, int columns) {
  double sum = 0;
  for (int begin = 0; begin < columns; begin += 32) {
    const int end = std::min(begin + 32, columns);
    int largest = sum != 0 ? std::ilogb(sum) : -100;
    for (int c = begin; c < end; ++c) {
      if (left[c] == 0 || right[c] == 0) continue;
      largest = std::max(largest, exponent_of_code(left[c]) + exponent_of_code(right[c]));
    }
    const double unit = std::ldexp(1.0, largest - 13);
    double next = std::trunc(sum / unit) * unit;
    for (int c = begin; c < end; ++c) {
      next += std::trunc(double{left[c]} * double{right[c]} / unit) * unit;
    }
    sum = next;
  }
  return sum;
}

}  // namespace

TEST_CASE("e4m3 products more than 13 bits below the largest of their step are lost, one by one") {
  CHECK(summed(1, 1, 31, 0x1p-6f, 0x1p-7f) == 1 + 31 * 0x1p-13f);
  CHECK(summed(1, 1, 31, 0x1p-7f, 0x1p-7f) == 1);  // 31 * 2^-14 of an exact sum
  CHECK(summed(1, 1, 31, 1.75f * 0x1p-6f, 0x1p-7f) == 1 + 31 * 0x1p-13f);
  CHECK(summed(0, 1, 31, 0x1p-7f, 0x1p-7f) == 31 * 0x1p-14f);  // nothing large beside them
}

TEST_CASE("e4m3 products are cut towards zero, whatever their sign") {
  CHECK(summed(1, 1, 1, -1.5f * 0x1p-6f, 0x1p-7f) == 1 - 0x1p-13f);
  CHECK(summed(-1, 1, 1, 1.5f * 0x1p-6f, 0x1p-7f) == -1 + 0x1p-13f);
  CHECK(summed(-1, 1, 1, -1.5f * 0x1p-6f, 0x1p-7f) == -1 - 0x1p-13f);
}

TEST_CASE("an e4m3 product counts by the exponents of its factors, not by its own") {
  // 1.5 * 1.5 = 2.25 has exponent 1, by which 2^-13 would be lost.
  CHECK(summed(1.5f, 1.5f, 1, 0x1p-6f, 0x1p-7f) == 2.25f + 0x1p-13f);
  CHECK(summed(2, 1, 1, 0x1p-6f, 0x1p-7f) == 2);
  // A subnormal code has the exponent -6, so that 2^-9 * 2^8 counts as 2^2.
  CHECK(summed(0x1p-9f, 256, 1, 0x1p-6f, 0x1p-6f) == 0.5f);
}

TEST_CASE("the sum of earlier steps is aligned like a product, and a step has 32 columns") {
  std::vector<float> left(64, 0.0f), right(64, 1.0f);
  left[0] = right[0] = 32;  // 1024 = 2^10: later terms are cut below 2^-3
  left[40] = 0.25f;
  right[40] = 0.5f;
  CHECK(summed(left, right) == 1024 + 0.125f);
  left[40] = 0.125f;
  CHECK(summed(left, right) == 1024);

  left.assign(64, 0.0f);
  right.assign(64, 1.0f);
  left[0] = 1;
  left[1] = 0x1p-6f;
  right[1] = 0x1p-7f;
  left[32] = right[32] = 16;  // 256 = 2^8: 2^-13 of the first step is lost here
  CHECK(summed(left, right) == 257);
  left[32] = 0;
  CHECK(summed(left, right) == 1 + 0x1p-13f);
}

TEST_CASE("scales are no part of the codes: they move no bit that is cut") {
  const std::vector<float> codes{1, 0x1p-7f, 1.5f, -448};
  std::vector<float> left, right;
  for (const float code : codes) {
    left.push_back(code * 0.137f);
    right.push_back(code * 2.9f);
  }
  E4m3Rows a, b;
  REQUIRE(a.load(left.data(), 1, 4, 0.137f));
  REQUIRE(b.load(right.data(), 1, 4, 2.9f));
  float product = 0;
  multiply_e4m3(a, 0, 1, b, &product);
  // 448^2 counts as 2^16, whose unit is 8.
  CHECK(product == 448.0f * 448.0f * (0.137f * 2.9f));
  CHECK_FALSE(a.load(left.data(), 1, 4, 0.138f));
  CHECK_FALSE(a.load(left.data(), 1, 4, 0.0f));
  CHECK_FALSE(a.load(left.data(), 1, 4, std::numeric_limits<float>::quiet_NaN()));
}

TEST_CASE("a row with NaN has NaN with every row, and no other has") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> left{1, nan, 2, 1}, right{1, 1, 1, 1};
  E4m3Rows a, b, of_three;
  REQUIRE(a.load(left.data(), 2, 2, 1));
  REQUIRE(b.load(right.data(), 2, 2, 1));
  std::vector<float> product(4);
  multiply_e4m3(a, 0, 2, b, product.data());
  CHECK(std::isnan(product[0]));
  CHECK(std::isnan(product[1]));
  CHECK(product[2] == 3);
  multiply_e4m3(b, 0, 2, a, product.data());
  CHECK(std::isnan(product[0]));
  CHECK(product[1] == 3);
  multiply_e4m3(b, 1, 1, a, product.data());
  CHECK(std::isnan(product[0]));
  CHECK(product[1] == 3);
  REQUIRE(of_three.load(right.data(), 1, 3, 1));
  CHECK_THROWS_AS(multiply_e4m3(a, 0, 2, of_three, product.data()), Error);
}

TEST_CASE("e4m3 products of many rows follow the definition to the last bit") {
  constexpr int kRows = 5, kKeys = 150;
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  for (const int columns : {8, 64, 72, 80, 576}) {
    CAPTURE(columns);
    const auto draw = [&](int rows) {
      std::vector<float> codes;
      for (int i = 0; i < rows * columns; ++i) {
        const float outlier = i % columns == 3 ? 40.0f : 1.0f;
        codes.push_back(round_to(Dtype::kE4M3, outlier * normal(random)));
      }
      return codes;
    };
    const std::vector<float> left = draw(kRows), right = draw(kKeys);
    E4m3Rows a, b;
    REQUIRE(a.load(left.data(), kRows, columns, 1));
    REQUIRE(b.load(right.data(), kKeys, columns, 1));
    std::vector<float> product(kRows * kKeys);
    multiply_e4m3(a, 0, kRows, b, product.data());
    int differ = 0, cut = 0;
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kKeys; ++j) {
        const float* const x = left.data() + i * columns;
        const float* const y = right.data() + j * columns;
        double exact = 0;
        for (int c = 0; c < columns; ++c) exact += double{x[c]} * double{y[c]};
        const double value = product[static_cast<std::size_t>(i * kKeys + j)];
        differ += value != by_definition(x, y, columns) ? 1 : 0;
        cut += value != exact ? 1 : 0;
      }
    }
    CHECK(differ == 0);
    CHECK(cut > kRows * kKeys / 4);
  }
}

}  // namespace attnbench
