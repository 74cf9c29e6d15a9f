#include "reference/quantise/int8.h"

#include <cmath>

#include "reference/ops/test_support.h"

namespace attnbench {

using ops_test::error_of;
using ops_test::kInf;
using ops_test::kNan;
using ops_test::noise;
using ops_test::tensor_of;

namespace {

std::vector<int> codes_of(const Int8Quantised& result) {
  const auto* codes = result.codes.data<std::int8_t>();
  return {codes, codes + result.codes.num_elements()};
}

std::vector<float> scales_of(const Int8Quantised& result) {
  const auto* scales = result.scale.data<float>();
  return {scales, scales + result.scale.num_elements()};
}

}  // namespace

TEST_CASE("mode 2 gives the golden codes of two vectors") {
  const Tensor x = tensor_of({1.0f, -2.0f, 0.5f, 0.25f, 3.0f, -1.5f, 0.75f, 0.1f}, {2, 1, 4});
  const Int8Quantised result = scaled_int8_quant_for_attn(x, 2, false);
  CHECK(codes_of(result) == std::vector{64, -127, 32, 16, 127, -64, 32, 4});
  CHECK(result.scale.shape() == std::vector<std::int64_t>{2, 1});
  CHECK(scales_of(result) == std::vector{2.0f / 127.0f, 3.0f / 127.0f});
  CHECK(scales_of(result)[0] == doctest::Approx(0.015748031).epsilon(1e-8));
}

TEST_CASE("mode 2 has a scale for every token and head, stored by head when transposed") {
  const Tensor x = tensor_of(noise(5 * 3 * 16), {5, 3, 16}, Dtype::kBF16);
  const Int8Quantised plain = scaled_int8_quant_for_attn(x, 2, false);
  const Int8Quantised transposed = scaled_int8_quant_for_attn(x, 2, true);
  CHECK(transposed.scale.shape() == std::vector<std::int64_t>{3, 5});
  CHECK(codes_of(plain) == codes_of(transposed));
  for (std::int64_t token = 0; token < 5; ++token) {
    for (std::int64_t head = 0; head < 3; ++head) {
      float largest = 0.0f;
      for (std::int64_t d = 0; d < 16; ++d) {
        largest = std::fmax(largest, std::fabs(x.at((token * 3 + head) * 16 + d)));
      }
      CHECK(plain.scale.at(token * 3 + head) == largest / 127.0f);
      CHECK(transposed.scale.at(head * 5 + token) == largest / 127.0f);
    }
  }
}

TEST_CASE("mode 2 is symmetric: the largest magnitude is 127 with either sign, never -128") {
  for (std::uint32_t seed = 1; seed < 50; ++seed) {
    const std::vector<float> values = noise(64, seed);
    const auto codes =
        codes_of(scaled_int8_quant_for_attn(tensor_of(values, {1, 1, 64}), 2, false));
    int largest = 0;
    for (int code : codes) largest = std::max(largest, std::abs(code));
    CHECK(largest == 127);
  }
}

TEST_CASE("an all-zero vector has scale 0 and codes 0 in both dynamic modes") {
  const Tensor x(Dtype::kF16, {2, 1, 8});
  for (int mode : {0, 2}) {
    const Int8Quantised result = scaled_int8_quant_for_attn(x, mode, false);
    CHECK(codes_of(result) == std::vector<int>(16, 0));
    for (float scale : scales_of(result)) CHECK(scale == 0.0f);
  }
}

TEST_CASE("NaN has code 0 and does not touch its neighbours") {
  const Tensor x = tensor_of({kNan, 4.0f, -2.0f, 0.0f}, {1, 1, 4});
  const Int8Quantised result = scaled_int8_quant_for_attn(x, 2, false);
  CHECK(codes_of(result) == std::vector{0, 127, -64, 0});  // -63.5 goes to the even -64
  CHECK(scales_of(result) == std::vector{4.0f / 127.0f});
}

TEST_CASE("mode 2 multiplies by 127 / max, not by the reciprocal of its scale") {
  // 9 * fl(127/18) = 63.5 goes to 64; 9 / fl(18/127) is just below 63.5.
  const Tensor x = tensor_of({18.0f, 9.0f}, {1, 1, 2});
  CHECK(codes_of(scaled_int8_quant_for_attn(x, 2, false)) == std::vector{127, 64});
}

TEST_CASE("a channel whose scale underflows to zero has codes 0 in mode 0") {
  const Tensor x = tensor_of({1e-45f, -1e-45f}, {1, 1, 2});
  const Int8Quantised result = scaled_int8_quant_for_attn(x, 0, false);
  CHECK(scales_of(result) == std::vector{0.0f, 0.0f});
  CHECK(codes_of(result) == std::vector{0, 0});
}

TEST_CASE("mode 0 finds the scale of a channel over all tokens") {
  // [T = 3, h = 1, D = 2]
  const Tensor x = tensor_of({1.0f, 0.0f, -4.0f, 0.0f, 2.0f, 0.0f}, {3, 1, 2});
  const Int8Quantised result = scaled_int8_quant_for_attn(x, 0, false);
  CHECK(result.scale.shape() == std::vector<std::int64_t>{1, 2});
  CHECK(scales_of(result) == std::vector{4.0f / 127.0f, 0.0f});
  CHECK(codes_of(result) == std::vector{32, 0, -127, 0, 64, 0});  // 31.75 and 63.5
}

TEST_CASE("mode 0 with given scales divides by them, saturates and returns them") {
  const Tensor x = tensor_of({1.0f, -300.0f, 300.0f, 1.25f}, {2, 1, 2});
  const Tensor scale = tensor_of({2.0f, 0.5f}, {1, 2});
  const Int8Quantised result = scaled_int8_quant_for_attn(x, 0, false, &scale);
  CHECK(codes_of(result) == std::vector{0, -128, 127, 2});  // 0.5 and 2.5 tie to even
  CHECK(scales_of(result) == std::vector{2.0f, 0.5f});
}

TEST_CASE("mode 0 divides by the scale") {
  // 45.5 / 7 = 6.5 goes to the even 6; 45.5 * fl(1/7) is above 6.5.
  const Tensor scale = tensor_of({7.0f}, {1, 1});
  CHECK(codes_of(scaled_int8_quant_for_attn(tensor_of({45.5f}, {1, 1, 1}), 0, false, &scale)) ==
        std::vector{6});
}

TEST_CASE("no tokens give zero channel scales and no codes") {
  const Tensor x(Dtype::kBF16, {0, 2, 4});
  CHECK(scales_of(scaled_int8_quant_for_attn(x, 0, false)) == std::vector<float>(8, 0.0f));
  CHECK(scaled_int8_quant_for_attn(x, 2, true).scale.shape() == std::vector<std::int64_t>{2, 0});
}

TEST_CASE("the int8 quantiser refuses other modes, shapes, types and scales") {
  const Tensor x = tensor_of(noise(8), {2, 1, 4});
  const auto quantise = [&](int mode, bool transpose, const Tensor* scale) {
    return error_of([&] { scaled_int8_quant_for_attn(x, mode, transpose, scale); });
  };
  std::string message;
  CHECK(error_of([&] { scaled_int8_quant_for_attn(x, 1, false); }, &message) == ErrorKind::kConfig);
  CHECK(message.find("int8 quant mode") != std::string::npos);
  CHECK(quantise(0, true, nullptr) == ErrorKind::kConfig);
  const Tensor good = tensor_of({1, 1, 1, 1}, {1, 4});
  CHECK_FALSE(quantise(0, false, &good));
  CHECK(quantise(2, false, &good) == ErrorKind::kConfig);
  const Tensor wrong_shape = tensor_of({1, 1, 1, 1}, {4, 1});
  CHECK(quantise(0, false, &wrong_shape) == ErrorKind::kShape);
  const Tensor wrong_type = convert(good, Dtype::kBF16);
  CHECK(quantise(0, false, &wrong_type) == ErrorKind::kDtype);
  for (float bad : {0.0f, -1.0f, kInf, kNan}) {
    const Tensor bad_scale = tensor_of({1, bad, 1, 1}, {1, 4});
    CHECK(quantise(0, false, &bad_scale) == ErrorKind::kValue);
  }
  CHECK(error_of([] {
          scaled_int8_quant_for_attn(Tensor(Dtype::kF64, {1, 1, 4}), 2, false);
        }) == ErrorKind::kDtype);
  CHECK(error_of([] {
          scaled_int8_quant_for_attn(Tensor(Dtype::kF32, {1, 4}), 2, false);
        }) == ErrorKind::kShape);
}

TEST_CASE("calibrated value scales keep the largest of every channel") {
  std::vector<float> running(4, 0.0f);
  update_value_scale_maximum(running, std::vector{1.0f, 0.0f, 3.0f, 0.5f});
  update_value_scale_maximum(running, std::vector{2.0f, 0.0f, 1.0f, 0.5f});
  CHECK(running == std::vector{2.0f, 0.0f, 3.0f, 0.5f});
  CHECK(error_of([&] { update_value_scale_maximum(running, std::vector{1.0f}); }) ==
        ErrorKind::kShape);
}

TEST_CASE("zeros among loaded value scales become 1.0, bad ones are refused") {
  std::vector<float> scales{2.0f, 0.0f, 3.0f, 0.0f};
  CHECK(normalise_value_scales(scales, 2, 2) == 2);
  CHECK(scales == std::vector{2.0f, 1.0f, 3.0f, 1.0f});
  CHECK(error_of([&] { normalise_value_scales(scales, 2, 3); }) == ErrorKind::kShape);
  for (float bad : {-1.0f, kInf, kNan}) {
    std::vector<float> with_bad{0.0f, bad};
    CHECK(error_of([&] { normalise_value_scales(with_bad, 1, 2); }) == ErrorKind::kValue);
    CHECK(with_bad[0] == 0.0f);
  }
}

}  // namespace attnbench
