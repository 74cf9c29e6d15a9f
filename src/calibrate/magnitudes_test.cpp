#include "calibrate/magnitudes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace attnbench {
namespace {

std::vector<float> random_values(std::size_t count, Dtype dtype) {
  std::mt19937_64 generator(7);
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i) {
    const double uniform = static_cast<double>(generator() >> 11) * 0x1p-53;
    const double sign = (generator() & 1) != 0 ? -1 : 1;
    values.push_back(round_to(dtype, static_cast<float>(sign * std::exp(8 * uniform - 4))));
  }
  return values;
}

Tensor tensor_of(const std::vector<float>& values, Dtype dtype, std::vector<std::int64_t> shape) {
  Tensor tensor(dtype, std::move(shape));
  for (std::size_t i = 0; i < values.size(); ++i) {
    tensor.set(static_cast<std::int64_t>(i), values[i]);
  }
  return tensor;
}

}  // namespace

TEST_CASE("magnitudes of 16-bit types are counted exactly") {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kE4M3}) {
    CAPTURE(dtype_name(dtype));
    std::vector<float> values = random_values(100'000, dtype);
    values[17] = 0;
    Magnitudes magnitudes;
    magnitudes.add(values);
    std::vector<float> sorted;
    for (const float value : values) sorted.push_back(std::fabs(value));
    std::sort(sorted.begin(), sorted.end());
    std::vector<float> counted(static_cast<std::size_t>(magnitudes.num_zeros()), 0.0f);
    for (const MagnitudeBin& bin : magnitudes.bins()) {
      counted.insert(counted.end(), static_cast<std::size_t>(bin.count), bin.value);
    }
    CHECK(counted == sorted);
    CHECK(magnitudes.amax() == sorted.back());
    CHECK(magnitudes.signed_max() == *std::max_element(values.begin(), values.end()));
    for (const double percent : {1e-6, 10.0, 50.0, 99.0, 99.99, 100.0}) {
      const auto rank = static_cast<std::size_t>(std::ceil(percent / 100 * 100'000));
      CHECK(magnitudes.percentile(percent) == sorted[rank - 1]);
    }
  }
}

TEST_CASE("counting the patterns of 16-bit types finds what looking at their values does") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    std::vector<std::vector<float>> cases = {
        random_values(70'000, dtype), {-0.0f, -2, -1}, {-3, -1, -2},          {0, -1},
        {NAN, kInf, -kInf, 1},        {NAN},           {1e-7f, -6e-8f, 3e-6f}};
    cases[0].insert(cases[0].end(), {0, -0.0f, kInf, NAN, NAN});
    for (std::vector<float>& values : cases) {
      for (float& value : values) value = round_to(dtype, value);
      CAPTURE(dtype_name(dtype));
      CAPTURE(values[0]);
      Magnitudes expected;
      expected.add(values);
      std::vector<Magnitudes> found(1);
      const auto count = static_cast<std::int64_t>(values.size());
      add_magnitudes(tensor_of(values, dtype, {count}), ScaleGroups::kTensor, 1, found);
      CHECK(found[0].num_elements() == expected.num_elements());
      CHECK(found[0].num_not_finite() == expected.num_not_finite());
      CHECK(found[0].num_zeros() == expected.num_zeros());
      CHECK(found[0].amax() == expected.amax());
      CHECK(found[0].signed_max() == expected.signed_max());
      REQUIRE(found[0].bins().size() == expected.bins().size());
      for (std::size_t i = 0; i < expected.bins().size(); ++i) {
        CHECK(found[0].bins()[i].value == expected.bins()[i].value);
        CHECK(found[0].bins()[i].count == expected.bins()[i].count);
      }
    }
  }
}

TEST_CASE("magnitudes of float32 that agree in eleven bits count as the largest of them") {
  const float a = 1.0f + 0x1p-12f;
  const float b = 1.0f + 0x1p-11f;
  const float c = 1.0f + 0x1p-10f;
  Magnitudes whole;
  whole.add(std::vector<float>{b, -a, c, -3.00001f});
  Magnitudes parts;
  for (const float value : {-3.00001f, a, c, b}) parts.add(std::vector<float>{value});
  for (const Magnitudes& found : {whole, parts}) {
    REQUIRE(found.bins().size() == 3);
    CHECK(found.bins()[0].value == b);
    CHECK(found.bins()[0].count == 2);
    CHECK(found.bins()[1].value == c);
    CHECK(found.bins()[2].value == 3.00001f);
    CHECK(found.amax() == 3.00001f);
    CHECK(found.percentile(75) == c);
  }
  // Many are counted in a table, few are sorted.
  std::vector<float> many(40'000, a);
  many.push_back(b);
  many.push_back(c);
  Magnitudes table;
  table.add(many);
  REQUIRE(table.bins().size() == 2);
  CHECK(table.bins()[0].value == b);
  CHECK(table.bins()[0].count == 40'001);
}

TEST_CASE("what is not finite is counted apart, and the least float is no zero") {
  Magnitudes magnitudes;
  const float inf = std::numeric_limits<float>::infinity();
  magnitudes.add(std::vector<float>{inf, -inf, std::nanf(""), 0, -0.0f,
                                    std::numeric_limits<float>::denorm_min(), -2});
  CHECK(magnitudes.num_not_finite() == 3);
  CHECK(magnitudes.num_zeros() == 2);
  CHECK(magnitudes.num_elements() == 7);
  CHECK(magnitudes.amax() == 2);
  CHECK(magnitudes.signed_max() == std::numeric_limits<float>::denorm_min());
  CHECK(magnitudes.bins().size() == 2);
  Magnitudes negative;
  negative.add(std::vector<float>{-3, -2});
  CHECK(negative.signed_max() == -2);
}

TEST_CASE("groups, parts and threads give the same counts") {
  const std::vector<float> values = random_values(12 * 3 * 4, Dtype::kBF16);
  const Tensor tensor = tensor_of(values, Dtype::kBF16, {12, 3, 4});
  for (const ScaleGroups groups :
       {ScaleGroups::kTensor, ScaleGroups::kHead, ScaleGroups::kChannel}) {
    const auto count = static_cast<std::size_t>(num_groups(tensor, groups));
    REQUIRE(count == (groups == ScaleGroups::kTensor ? 1u
                      : groups == ScaleGroups::kHead ? 3u
                                                     : 12u));
    for (const int threads : {1, 3}) {
      std::vector<Magnitudes> found(count);
      add_magnitudes(tensor, groups, threads, found);
      for (std::size_t group = 0; group < count; ++group) {
        float largest = 0;
        std::int64_t elements = 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (i % 12 * count / 12 != group) continue;
          largest = std::max(largest, std::fabs(values[i]));
          ++elements;
        }
        CHECK(found[group].amax() == largest);
        CHECK(found[group].num_elements() == elements);
      }
    }
  }
}

}  // namespace attnbench
