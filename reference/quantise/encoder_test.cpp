#include "reference/quantise/encoder.h"

#include <cmath>

#include "reference/ops/test_support.h"
#include "reference/quantise/number_formats.h"

namespace attnbench {

using ops_test::error_of;
using ops_test::kInf;
using ops_test::kNan;
using ops_test::noise;
using ops_test::tensor_of;

namespace {

constexpr float kScaleFloor = 0x1p-126f / 448.0f;

std::vector<std::uint8_t> codes_of(const MmQuantised& result) {
  const auto* codes = result.codes.data<std::uint8_t>();
  return {codes, codes + result.codes.num_elements()};
}

MmQuantised quantise(const Tensor& x, float scale, bool skip_scale = false) {
  return quantise_fp8_maybe_pad_head_dim(view_of(x), scale, skip_scale);
}

}  // namespace

TEST_CASE("a head dimension that is no multiple of 16 is padded with zeros") {
  const Tensor x = tensor_of(noise(3 * 2 * 72), {3, 2, 72}, Dtype::kBF16);
  const MmQuantised result = quantise(x, 0.01f);
  CHECK(result.codes.shape() == std::vector<std::int64_t>{3, 2, 80});
  CHECK(result.codes.dtype() == Dtype::kE4M3);
  const auto codes = codes_of(result);
  for (std::int64_t row = 0; row < 6; ++row) {
    for (std::int64_t d = 0; d < 80; ++d) {
      const auto code = codes[static_cast<std::size_t>(row * 80 + d)];
      if (d >= 72) {
        CHECK(code == 0);
      } else {
        CHECK(code == rn_e4m3(x.at(row * 72 + d) / 0.01f));
      }
    }
  }
}

TEST_CASE("padded heads divide by the scale, others multiply by its reciprocal") {
  // 175 / 7 = 25 is half-way between the codes 24 and 26, and a tie goes to 24; fl(1/7) is above
  // 1/7, and so is the product.
  for (auto [head_size, expected] : {std::pair{16, 26.0f}, std::pair{8, 24.0f}}) {
    const std::vector<float> values(static_cast<std::size_t>(head_size), 175.0f);
    const MmQuantised result = quantise(tensor_of(values, {1, 1, head_size}), 7.0f);
    CHECK(result.codes.at(0) == expected);
  }
}

TEST_CASE("skip_scale leaves the values as they are and never looks at the scale") {
  for (std::int64_t head_size : {8, 16}) {
    const std::vector<float> values(static_cast<std::size_t>(head_size), 3.0f);
    const auto codes = codes_of(quantise(tensor_of(values, {1, 1, head_size}), 0.0f, true));
    CHECK(e4m3_value(codes[0]) == 3.0f);
  }
}

TEST_CASE("a plain cast saturates and the lost elements are counted") {
  std::vector<float> values(16, 1.0f);
  values[0] = 500.0f;
  values[1] = -kInf;
  values[2] = 464.0f;
  values[3] = kNan;
  const MmQuantised result = quantise(tensor_of(values, {1, 1, 16}), 1.0f, true);
  CHECK(result.saturated == 2);
  const auto codes = codes_of(result);
  CHECK(codes[0] == 0x7E);
  CHECK(codes[1] == 0xFE);
  CHECK(codes[2] == 0x7E);
  CHECK(codes[3] == 0x7F);
}

TEST_CASE("an all-zero tensor with the least dynamic scale has zero codes") {
  for (std::int64_t head_size : {16, 40}) {
    const MmQuantised result = quantise(Tensor(Dtype::kBF16, {2, 3, head_size}), kScaleFloor);
    for (std::uint8_t code : codes_of(result)) CHECK(code == 0);
    CHECK(result.saturated == 0);
  }
}

TEST_CASE("the value part of an interleaved QKV buffer is read through its strides") {
  // [B = 2, S = 3, 3 parts, H = 2, D = 20]
  const Tensor qkv = tensor_of(noise(2 * 3 * 3 * 2 * 20), {2, 3, 3, 2, 20}, Dtype::kF16);
  const StridedTensor value{
      Dtype::kF16, qkv.bytes() + 2 * 40 * 2, {2, 3, 2, 20}, {360, 120, 20, 1}};
  const MmQuantised result = quantise_fp8_maybe_pad_head_dim(value, 0.5f, false);
  CHECK(result.codes.shape() == std::vector<std::int64_t>{2, 3, 2, 32});
  const auto codes = codes_of(result);
  for (std::int64_t token = 0; token < 6; ++token) {
    for (std::int64_t head = 0; head < 2; ++head) {
      for (std::int64_t d = 0; d < 20; ++d) {
        const float x = qkv.at(((token * 3 + 2) * 2 + head) * 20 + d);
        const auto at = static_cast<std::size_t>((token * 2 + head) * 32 + d);
        REQUIRE(codes[at] == rn_e4m3(x / 0.5f));
      }
    }
  }
}

TEST_CASE("no tokens give an empty result of the padded shape") {
  const MmQuantised result = quantise(Tensor(Dtype::kBF16, {0, 4, 72}), 1.0f);
  CHECK(result.codes.shape() == std::vector<std::int64_t>{0, 4, 80});
  CHECK(result.saturated == 0);
}

TEST_CASE("encoder quantisation refuses other ranks, other types and bad scales") {
  CHECK(error_of([] { quantise(Tensor(Dtype::kF32, {4, 16}), 1.0f); }) == ErrorKind::kShape);
  CHECK(error_of([] {
          quantise(Tensor(Dtype::kF32, {1, 1, 1, 4, 16}), 1.0f);
        }) == ErrorKind::kShape);
  CHECK(error_of([] { quantise(Tensor(Dtype::kE4M3, {1, 4, 16}), 1.0f); }) == ErrorKind::kDtype);
  for (float scale : {0.0f, -1.0f, kInf, kNan}) {
    CHECK(error_of([&] { quantise(Tensor(Dtype::kF32, {1, 4, 16}), scale); }) == ErrorKind::kValue);
  }
}

}  // namespace attnbench
