#include "reference/mla/kv_b_proj.h"

#include "reference/ops/test_support.h"

namespace attnbench {

using ops_test::error_of;

namespace {

float bf16_of(float value) {
  Tensor rounded(Dtype::kBF16, {1});
  rounded.set(0, value);
  return rounded.at(0);
}

}  // namespace

TEST_CASE("kv_b_proj is split per head into K rows and V columns") {
  // N = 2, P = 3, V = 2, Lkv = 4; element (row, l) is 10 * row + l.
  Tensor weight(Dtype::kBF16, {10, 4});
  for (std::int64_t i = 0; i < 40; ++i) weight.set(i, static_cast<float>(i / 4 * 10 + i % 4));
  const MlaWeights weights = split_kv_b_proj(weight, 2, 4, 3, 2);
  CHECK(weights.w_uk_t.shape() == std::vector<std::int64_t>{2, 3, 4});
  CHECK(weights.w_uv.shape() == std::vector<std::int64_t>{2, 4, 2});
  CHECK(weights.w_uk_t.dtype() == Dtype::kBF16);
  for (std::int64_t n = 0; n < 2; ++n) {
    for (std::int64_t l = 0; l < 4; ++l) {
      for (std::int64_t p = 0; p < 3; ++p) {
        CHECK(weights.w_uk_t.at((n * 3 + p) * 4 + l) == static_cast<float>((n * 5 + p) * 10 + l));
      }
      for (std::int64_t v = 0; v < 2; ++v) {
        CHECK(weights.w_uv.at((n * 4 + l) * 2 + v) == static_cast<float>((n * 5 + 3 + v) * 10 + l));
      }
    }
  }
}

TEST_CASE("kv_b_proj of another size or a quantised type is refused") {
  const auto split = [](Dtype dtype, std::vector<std::int64_t> shape) {
    return error_of([&] { split_kv_b_proj(Tensor(dtype, std::move(shape)), 2, 4, 3, 2); });
  };
  CHECK_FALSE(split(Dtype::kF16, {10, 4}));
  CHECK(split(Dtype::kF16, {4, 10}) == ErrorKind::kShape);
  CHECK(split(Dtype::kF16, {12, 4}) == ErrorKind::kShape);
  CHECK(split(Dtype::kF16, {40}) == ErrorKind::kShape);
  CHECK(split(Dtype::kE4M3, {10, 4}) == ErrorKind::kDtype);
}

TEST_CASE("e4m3 weights times the scale of their block are rounded to the activation type") {
  Tensor codes(Dtype::kE4M3, {3, 4});
  for (std::int64_t i = 0; i < 12; ++i) codes.set(i, static_cast<float>(i + 1));
  const auto scales = [](std::vector<float> values) {
    Tensor result(Dtype::kF32, {static_cast<std::int64_t>(values.size())});
    std::copy(values.begin(), values.end(), result.data<float>());
    return result;
  };
  const Tensor whole = dequantise_kv_b_proj(codes, scales({0.3f}), std::nullopt, Dtype::kBF16);
  CHECK(whole.at(6) == bf16_of(7 * 0.3f));
  CHECK(whole.at(6) != 7 * 0.3f);
  // Blocks of 3: the second has one column.
  const Tensor blocks = dequantise_kv_b_proj(codes, scales({2, 0.5f}), 3, Dtype::kF32);
  CHECK(blocks.at(2) == 6);
  CHECK(blocks.at(3) == 2);
  CHECK(blocks.at(8) == 18);
  CHECK(blocks.at(11) == 6);
  CHECK(error_of([&] { dequantise_kv_b_proj(codes, scales({1}), 2, Dtype::kF32); }) ==
        ErrorKind::kShape);
  CHECK(error_of([&] { dequantise_kv_b_proj(whole, scales({1}), std::nullopt, Dtype::kF32); }) ==
        ErrorKind::kDtype);
}

}  // namespace attnbench
