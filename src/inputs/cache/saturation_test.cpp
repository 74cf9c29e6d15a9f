#include "inputs/cache/saturation.h"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "core/error.h"

namespace attnbench {
namespace {

std::int64_t saturated(const std::vector<float>& values, const std::vector<float>& scales,
                       Dtype codes) {
  const auto width = static_cast<std::int64_t>(values.size());
  return count_saturated(Tensor::from_f32(values, {1, width}), scales, codes);
}

/// Keys and values [2, 1, 2] of ones.
AttentionInputs ones() {
  AttentionInputs inputs;
  inputs.key = inputs.value = Tensor::from_f32(std::vector<float>(4, 1.0f), {2, 1, 2});
  return inputs;
}

}  // namespace

TEST_CASE("a value saturates from where its nearest code would be beyond the largest") {
  CHECK(saturated({448, 464, -464}, {1}, Dtype::kE4M3) == 0);
  CHECK(saturated({464.1f, -465, 1e9f}, {1}, Dtype::kE4M3) == 3);
  CHECK(saturated({57344, 61440}, {1}, Dtype::kE5M2) == 0);
  CHECK(saturated({61441, -1e9f}, {1}, Dtype::kE5M2) == 2);
  CHECK(saturated({127, 127.4f, -127.4f}, {1}, Dtype::kI8) == 0);
  CHECK(saturated({127.5f, -128}, {1}, Dtype::kI8) == 2);
  CHECK(saturated({std::numeric_limits<float>::quiet_NaN()}, {1}, Dtype::kE4M3) == 0);
}

TEST_CASE("scales are of equal parts of a row") {
  CHECK(saturated({1, 1, 1, 1}, {1e-3f}, Dtype::kE4M3) == 4);
  CHECK(saturated({1, 1, 1, 1}, {1, 1e-3f}, Dtype::kE4M3) == 2);
  CHECK(saturated({1, 1, 1, 1}, {1, 1, 1, 1e-3f}, Dtype::kE4M3) == 1);
  CHECK_THROWS_AS(saturated({1, 1, 1, 1}, {1, 1, 1}, Dtype::kE4M3), Error);
  CHECK(count_saturated(Tensor(Dtype::kF32, {0, 4}), std::vector<float>{1}, Dtype::kE4M3) == 0);
}

TEST_CASE("only static scales of a cache clip") {
  StoreRule rule;
  rule.dtype = KvCacheDtype::kFp8E4M3;
  rule.element = Dtype::kE4M3;
  rule.k_scale = {1e-3f};
  rule.v_scale = {1};
  CHECK(kv_saturation(ones(), rule).key == 1);
  CHECK(kv_saturation(ones(), rule).value == 0);
  rule.dtype = KvCacheDtype::kFp8PerTokenHead;
  CHECK(kv_saturation(ones(), rule).key == 0);
  rule.dtype = KvCacheDtype::kAuto;
  CHECK(kv_saturation(ones(), rule).key == 0);
}

TEST_CASE("int8 values by channel clip where their scales are too small") {
  StoreRule rule;
  rule.int8_level = 1;
  rule.element = Dtype::kI8;
  AttentionInputs inputs = ones();
  inputs.value_channel_scale = {1, 1e-3f};
  CHECK(kv_saturation(inputs, rule).value == 0.5);
  CHECK(kv_saturation(inputs, rule).key == 0);
  rule.int8_level = 2;
  CHECK(kv_saturation(inputs, rule).value == 0);
}

TEST_CASE("rows behind the tokens of a query do not count") {
  AttentionInputs inputs;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  inputs.query = Tensor::from_f32(std::vector<float>{1, 500, nan, nan}, {2, 1, 2});
  inputs.query_start_loc = {0, 1};
  CHECK(query_saturation(inputs, 1) == 0.5);
  CHECK(query_saturation(inputs, 2) == 0);
}

}  // namespace attnbench
