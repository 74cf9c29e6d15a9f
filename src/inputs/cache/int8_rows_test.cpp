#include "inputs/cache/int8_rows.h"
#include "core/error.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "inputs/test_problem.h"
#include "metadata/mask/kernel_rules_testing.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace attnbench {
namespace {

std::vector<int> codes_of(const Tensor& tensor) {
  std::vector<int> codes;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    codes.push_back(tensor.data<std::int8_t>()[i]);
  }
  return codes;
}

ErrorKind kind_of_error(const Tensor& source, const std::vector<float>& scale) {
  try {
    quantise_int8_by_channel(source, scale);
  } catch (const Error& error) {
    return error.kind();
  }
  FAIL("no error");
  return ErrorKind::kInternal;
}

}  // namespace

TEST_CASE("the golden vectors of int8 attention are rounded to the nearest even code") {
  const Int8Rows rows = quantise_int8_by_token(
      Tensor::from_f32(std::vector<float>{1, -2, 0.5, 0.25, 3, -1.5, 0.75, 0.1f}, {2, 1, 4}));
  CHECK(codes_of(rows.codes) == std::vector<int>{64, -127, 32, 16, 127, -64, 32, 4});
  CHECK(rows.scales.shape() == std::vector<std::int64_t>{2, 1});
  CHECK(rows.scales.at(0) == 2.0f / 127.0f);
  CHECK(rows.dequantized.at(3) == 16.0f * (2.0f / 127.0f));
}

TEST_CASE("a vector of zeros has scale zero and codes zero, and a NaN does not count") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Int8Rows rows =
      quantise_int8_by_token(Tensor::from_f32(std::vector<float>{0, -0.0f, nan, 2}, {2, 1, 2}));
  CHECK(codes_of(rows.codes) == std::vector<int>{0, 0, 0, 127});
  CHECK(rows.scales.at(0) == 0.0f);
  CHECK(rows.dequantized.at(0) == 0.0f);
  CHECK(rows.scales.at(1) == 2.0f / 127.0f);
}

TEST_CASE("channel scales divide and saturate") {
  const Tensor source = Tensor::from_f32(std::vector<float>{1, -1000, 0.3f, 5}, {2, 1, 2});
  const Int8Rows rows = quantise_int8_by_channel(source, std::vector<float>{0.4f, 2.0f});
  CHECK(codes_of(rows.codes) == std::vector<int>{2, -128, 1, 2});  // 2.5 goes to the even 2
  CHECK(rows.dequantized.at(1) == -256.0f);
  CHECK(rows.scales.empty());
}

TEST_CASE("channel scales that are too few, zero, negative or not finite are errors") {
  const Tensor source = Tensor::from_f32(std::vector<float>{1, 2}, {1, 1, 2});
  CHECK(kind_of_error(source, {1.0f}) == ErrorKind::kShape);
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    CHECK(kind_of_error(source, {1.0f, bad}) == ErrorKind::kValue);
  }
}

TEST_CASE("int8 levels store int8 keys, and values as the level says") {
  for (const int level : {1, 2}) {
    Problem problem = small_problem();
    problem.kv_cache.int8_level = level;
    const AttentionInputs inputs = make_inputs(problem);
    const StoredKv stored = store_kv(inputs, resolve_store_rule(problem, kFlashIxRules));
    CHECK(stored.key_codes.dtype() == Dtype::kI8);
    CHECK(stored.key_scales.shape() == std::vector<std::int64_t>{problem.num_keys(), 2});
    CHECK(stored.value_codes.dtype() == (level == 1 ? Dtype::kI8 : Dtype::kBF16));
    CHECK(inputs.value_channel_scale.size() == (level == 1 ? 16u : 0u));
    for (std::int64_t i = 0; i < inputs.value.num_elements(); ++i) {
      const float value = inputs.value.at(i);
      const float step =
          level == 1 ? inputs.value_channel_scale[static_cast<std::size_t>(i % 16)] : 0.0f;
      REQUIRE(std::fabs(stored.value_dequantized.at(i) - value) <= 0.501f * step);
      const float key_step = stored.key_scales.at(i / 8);
      REQUIRE(std::fabs(stored.key_dequantized.at(i) - inputs.key.at(i)) <= 0.501f * key_step);
    }
    const StoredQuery query = store_query(problem, inputs, kFlashIxRules);
    CHECK(query.query.dtype() == Dtype::kI8);
    CHECK(query.scales.dim(1) == 4);
    CHECK(query.scale == 1.0f);
    CHECK(query.dequantized->at(5) == query.query.at(5) * query.scales.at(0));
  }
}

}  // namespace attnbench
