#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "metadata/mask/kernel_rules_testing.h"

namespace attnbench {
namespace {

/// Inputs whose key and value are [rows, heads, width] with the same given numbers.
AttentionInputs inputs_of(const std::vector<float>& values, std::int64_t heads, std::int64_t width,
                          Dtype dtype = Dtype::kF32) {
  AttentionInputs inputs;
  const auto rows = static_cast<std::int64_t>(values.size()) / (heads * width);
  inputs.key = convert(Tensor::from_f32(values, {rows, heads, width}), dtype);
  inputs.value = inputs.key;
  return inputs;
}

StoreRule rule_of(KvCacheDtype dtype, Dtype element) {
  StoreRule rule;
  rule.dtype = dtype;
  rule.element = element;
  rule.k_scale = {1.0f};
  rule.v_scale = {1.0f};
  return rule;
}

std::vector<int> int_codes(const Tensor& tensor) {
  std::vector<int> codes;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    codes.push_back(tensor.data<std::int8_t>()[i]);
  }
  return codes;
}

template <typename Function>
ErrorKind kind_thrown_by(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.kind();
  }
  FAIL("no error");
  return ErrorKind::kInternal;
}

TEST_CASE("auto copies the bits, NaN payloads included") {
  AttentionInputs inputs = inputs_of({1, 2, 3, 4}, 1, 2, Dtype::kBF16);
  inputs.key.data<std::uint16_t>()[1] = 0x7FA5;
  const StoredKv stored = store_kv(inputs, rule_of(KvCacheDtype::kAuto, Dtype::kBF16));
  CHECK(stored.key_codes.data<std::uint16_t>()[1] == 0x7FA5);
  CHECK(stored.key_codes.at(3) == 4.0f);
  CHECK(stored.value_codes.at(2) == 3.0f);
  CHECK(stored.key_scales.empty());
}

TEST_CASE("a cache that only copies bits holds no dequantised tensors") {
  const AttentionInputs inputs = inputs_of({1, 2, 3, 4}, 1, 2, Dtype::kBF16);
  const StoredKv copied = store_kv(inputs, rule_of(KvCacheDtype::kAuto, Dtype::kBF16));
  CHECK(copied.key_dequantized.empty());
  CHECK(copied.value_dequantized.empty());
  CHECK_FALSE(store_kv(inputs, rule_of(KvCacheDtype::kFp8, Dtype::kE4M3)).key_dequantized.empty());
}

TEST_CASE("what is stored as it is may be a view of the inputs") {
  const AttentionInputs inputs = inputs_of({1, 2, 3, 4}, 1, 2, Dtype::kBF16);
  const StoreRule rule = rule_of(KvCacheDtype::kAuto, Dtype::kBF16);
  const StoredKv stored = store_kv(inputs, rule, PlainKv::kViewed);
  CHECK(stored.key_codes.bytes() == inputs.key.bytes());
  CHECK(stored.value_codes.bytes() == inputs.value.bytes());
  CHECK(store_kv(inputs, rule).key_codes.bytes() != inputs.key.bytes());
}

TEST_CASE("fp8 values are kept in 16 bits where those have all of them") {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (const Dtype codes : {Dtype::kE4M3, Dtype::kE5M2}) {
      // Every code, as a key that is stored as that code.
      Tensor all(codes, {256, 1, 1});
      for (int code = 0; code < 256; ++code) {
        all.data<std::uint8_t>()[code] = static_cast<std::uint8_t>(code);
      }
      AttentionInputs inputs;
      inputs.key = inputs.value = convert(all, dtype);
      StoreRule rule = rule_of(KvCacheDtype::kFp8, codes);
      const StoredKv stored = store_kv(inputs, rule);
      CHECK(stored.key_dequantized.dtype() == dtype);
      for (std::int64_t i = 0; i < 256; ++i) {
        const float value = stored.key_codes.at(i);
        CAPTURE(value);
        CHECK((stored.key_dequantized.at(i) == value || std::isnan(value)));
        CHECK(std::isnan(stored.key_dequantized.at(i)) == std::isnan(value));
      }
      rule.k_scale = {0.3f};
      const StoredKv scaled = store_kv(inputs, rule);
      CHECK(scaled.key_dequantized.dtype() == Dtype::kF32);
      CHECK(scaled.value_dequantized.dtype() == dtype);
      rule.dequantized_rounding = dtype;
      CHECK(store_kv(inputs, rule).key_dequantized.dtype() == dtype);
    }
  }
  const AttentionInputs inputs = inputs_of({1, 2}, 1, 2);
  CHECK(store_kv(inputs, rule_of(KvCacheDtype::kFp8, Dtype::kE4M3)).key_dequantized.dtype() ==
        Dtype::kF32);
}

TEST_CASE("a 16-bit cache of another dtype than the keys is E-DTYPE") {
  const AttentionInputs inputs = inputs_of({1, 2}, 1, 2, Dtype::kBF16);
  CHECK(kind_thrown_by([&] { store_kv(inputs, rule_of(KvCacheDtype::kFloat16, Dtype::kF16)); }) ==
        ErrorKind::kDtype);
}

TEST_CASE("fp8 codes come from a division by the scale, not from its reciprocal") {
  // 0.7f * (1 / 0.7f) and 0.7f / 0.7f may differ; search a pair that does across a code boundary.
  int differing = 0;
  for (int i = 1; i < 4000; ++i) {
    const float scale = 0.001f * static_cast<float>(i);
    const float tie = 1.0625f;  // halfway between the e4m3 values 1 and 1.125
    const float x = tie * scale;
    const bool differs =
        round_to(Dtype::kE4M3, x / scale) != round_to(Dtype::kE4M3, x * (1 / scale));
    if (!differs) continue;
    ++differing;
    StoreRule rule = rule_of(KvCacheDtype::kFp8, Dtype::kE4M3);
    rule.k_scale = {scale};
    const StoredKv stored = store_kv(inputs_of({x}, 1, 1), rule);
    CHECK(stored.key_codes.at(0) == round_to(Dtype::kE4M3, x / scale));
    CHECK(stored.key_dequantized.at(0) == stored.key_codes.at(0) * scale);
  }
  CHECK(differing > 0);
}

TEST_CASE("fp8 scales may be one number or one per head, K and V apart") {
  StoreRule rule = rule_of(KvCacheDtype::kFp8E5M2, Dtype::kE5M2);
  rule.k_scale = {0.5f, 2.0f};
  rule.v_scale = {4.0f};
  const StoredKv stored = store_kv(inputs_of({1, 1, 1, 1}, 2, 1), rule);
  CHECK(stored.key_codes.at(0) == 2.0f);
  CHECK(stored.key_codes.at(1) == 0.5f);
  CHECK(stored.key_codes.at(2) == 2.0f);
  CHECK(stored.value_codes.at(0) == 0.25f);
  CHECK(stored.key_dequantized.at(1) == 1.0f);
}

TEST_CASE("TRITON_ATTN rounds dequantised fp8 values to the query dtype, FLASH_ATTN does not") {
  Problem problem;
  problem.attention.dtype = Dtype::kBF16;
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  problem.kv_cache.k_scale = {0.3};
  const AttentionInputs inputs = inputs_of({0.9f}, 1, 1, Dtype::kBF16);
  const StoredKv flash = store_kv(inputs, resolve_store_rule(problem, kFlashRules));
  const StoredKv triton = store_kv(inputs, resolve_store_rule(problem, kTritonRules));
  const float exact = flash.key_codes.at(0) * 0.3f;
  CHECK(flash.key_dequantized.at(0) == exact);
  CHECK(triton.key_dequantized.at(0) == round_to(Dtype::kBF16, exact));
  CHECK(triton.key_dequantized.at(0) != exact);
}

TEST_CASE("e5m2 is stored as e4m3 by TRITON_ATTN only, and only when asked") {
  Problem problem;
  problem.kv_cache.dtype = KvCacheDtype::kFp8E5M2;
  CHECK(resolve_store_rule(problem, kTritonRules).element == Dtype::kE5M2);
  problem.kv_cache.e5m2_as_e4m3 = true;
  CHECK(resolve_store_rule(problem, kTritonRules).element == Dtype::kE4M3);
  CHECK(resolve_store_rule(problem, KernelRules{}).element == Dtype::kE5M2);
}

TEST_CASE("bad scales are refused with their class") {
  const AttentionInputs inputs = inputs_of({1, 2}, 2, 1);
  StoreRule rule = rule_of(KvCacheDtype::kFp8, Dtype::kE4M3);
  for (float scale : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                      std::numeric_limits<float>::quiet_NaN()}) {
    rule.v_scale = {scale};
    CHECK(kind_thrown_by([&] { store_kv(inputs, rule); }) == ErrorKind::kValue);
  }
  rule.v_scale = {1, 1, 1};
  CHECK(kind_thrown_by([&] { store_kv(inputs, rule); }) == ErrorKind::kShape);
}

TEST_CASE("per-token-head int8 gives the golden scales and codes in both rounding modes") {
  const AttentionInputs inputs = inputs_of({1, -2, 0.5f, 0.25f, 3, -1.5f, 0.75f, 0.1f}, 1, 4);
  StoreRule rule = rule_of(KvCacheDtype::kInt8PerTokenHead, Dtype::kI8);
  const StoredKv stored = store_kv(inputs, rule);
  CHECK(stored.key_scales.shape() == std::vector<std::int64_t>{2, 1});
  CHECK(stored.key_scales.at(0) == doctest::Approx(0.015748031).epsilon(1e-7));
  CHECK(stored.key_scales.at(1) == doctest::Approx(0.023622047).epsilon(1e-7));
  CHECK(int_codes(stored.key_codes) == std::vector<int>{64, -127, 32, 16, 127, -64, 32, 4});
  CHECK(stored.key_dequantized.at(0) == 64.0f * stored.key_scales.at(0));
  rule.int8_round = PthInt8Round::kTrunc;
  CHECK(int_codes(store_kv(inputs, rule).value_codes) ==
        std::vector<int>{63, -127, 31, 15, 127, -63, 31, 4});
}

TEST_CASE("per-token-head scales multiply by the rounded reciprocal of the largest code") {
  // 1 / 448 and 1 / 127 rounded to float32, by hand from the binary expansion of Python's
  // numpy.float32(1) / numpy.float32(448) and the same for 127.
  const float inverse448 = 0x1.24924ap-9f;
  const float inverse127 = 0x1.020408p-7f;
  int differs_from_division = 0;
  for (int i = 1; i < 200; ++i) {
    const float x = 0.013f * static_cast<float>(i);
    const AttentionInputs inputs = inputs_of({x, 0, 0, 0}, 1, 4);
    const StoredKv fp8 = store_kv(inputs, rule_of(KvCacheDtype::kFp8PerTokenHead, Dtype::kE4M3));
    const StoredKv int8 = store_kv(inputs, rule_of(KvCacheDtype::kInt8PerTokenHead, Dtype::kI8));
    CHECK(fp8.key_scales.at(0) == x * inverse448);
    CHECK(int8.key_scales.at(0) == x * inverse127);
    CHECK(fp8.key_codes.at(0) == 448.0f);
    CHECK(int8.key_codes.at(0) == 127.0f);
    differs_from_division += fp8.key_scales.at(0) != x / 448.0f;
  }
  CHECK(differs_from_division > 0);
}

TEST_CASE("an all-zero vector keeps the least scale and dequantises to zero") {
  for (auto [dtype, element] : {std::pair{KvCacheDtype::kInt8PerTokenHead, Dtype::kI8},
                                std::pair{KvCacheDtype::kFp8PerTokenHead, Dtype::kE4M3}}) {
    const StoredKv stored = store_kv(inputs_of({0, 0, 0, 0}, 1, 4), rule_of(dtype, element));
    CHECK(stored.key_scales.at(0) == 1e-6f);
    for (std::int64_t i = 0; i < 4; ++i) CHECK(stored.key_dequantized.at(i) == 0.0f);
  }
}

TEST_CASE("a NaN element does not spoil the scale of its vector") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const AttentionInputs inputs = inputs_of({nan, 2, 0, 1}, 1, 4);
  const StoredKv fp8 = store_kv(inputs, rule_of(KvCacheDtype::kFp8PerTokenHead, Dtype::kE4M3));
  CHECK(std::isfinite(fp8.key_scales.at(0)));
  CHECK(std::isnan(fp8.key_dequantized.at(0)));
  CHECK(fp8.key_codes.at(1) == 448.0f);
}

TEST_CASE("only FLASH_ATTN with an e4m3 cache, or an explicit query dtype, quantises the query") {
  Problem problem;
  CHECK_FALSE(query_is_quantised(problem, kFlashRules));
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  CHECK(query_is_quantised(problem, kFlashRules));
  CHECK_FALSE(query_is_quantised(problem, kTritonRules));
  CHECK_FALSE(query_is_quantised(problem, kFlashIxRules));
  problem.kv_cache.dtype = KvCacheDtype::kFp8PerTokenHead;
  CHECK_FALSE(query_is_quantised(problem, kFlashRules));
  problem.attention.query_dtype = QueryDtype::kFp8E4M3;
  CHECK(query_is_quantised(problem, KernelRules{}));
}

TEST_CASE(
    "the quantised query multiplies by the reciprocal of q_scale and keeps NaN padding rows") {
  Problem problem;
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  problem.kv_cache.q_scale = 0.7;
  AttentionInputs inputs;
  inputs.query = Tensor(Dtype::kBF16, {2, 1, 2});
  inputs.query.set(0, 1.25f);
  inputs.query.set(1, -900.0f);
  inputs.query.set(2, std::numeric_limits<float>::quiet_NaN());
  const StoredQuery stored = store_query(problem, inputs, kFlashRules);
  CHECK(stored.query.dtype() == Dtype::kE4M3);
  CHECK(stored.scale == 0.7f);
  CHECK(stored.query.at(0) == round_to(Dtype::kE4M3, 1.25f * (1.0f / 0.7f)));
  CHECK(stored.query.at(1) == -448.0f);
  CHECK(std::isnan(stored.query.at(2)));
  CHECK(stored.dequantized->at(0) == stored.query.at(0) * 0.7f);
  const StoredQuery plain = store_query(problem, inputs, kTritonRules);
  CHECK(plain.query.dtype() == Dtype::kBF16);
  CHECK_FALSE(plain.dequantized.has_value());
}

}  // namespace
}  // namespace attnbench
