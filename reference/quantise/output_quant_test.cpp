#include "reference/quantise/output_quant.h"

#include <algorithm>
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

OutputQuantArguments arguments(bool has_scale, std::optional<std::int64_t> groups, Dtype dtype,
                               std::int64_t output_dim = 2048) {
  OutputQuantArguments result{has_scale, std::nullopt, dtype, output_dim};
  if (groups) result.output_block_scale = {{3, *groups}};
  return result;
}

struct GroupResult {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  std::int64_t saturated = 0;
};

GroupResult quantise(const Tensor& x, GroupFp8Rule rule) {
  if (rule.scale_rows == 0) rule.scale_rows = x.dim(0);
  const auto strides = scale_strides(rule.layout, rule.scale_rows, x.dim(1) / rule.group_size);
  GroupResult result{std::vector<std::uint8_t>(static_cast<std::size_t>(x.num_elements())),
                     std::vector<float>(static_cast<std::size_t>(strides.size), -7.0f)};
  result.saturated = quantise_fp8_groups(x, rule, result.codes, result.scales);
  return result;
}

}  // namespace

TEST_CASE("the quantisation scheme follows from the arguments") {
  CHECK(detect_output_quant(arguments(false, {}, Dtype::kBF16)) == OutputQuantType::kNone);
  CHECK(detect_output_quant(arguments(false, {}, Dtype::kE4M3)) == OutputQuantType::kNone);
  CHECK(detect_output_quant(arguments(true, {}, Dtype::kE4M3)) == OutputQuantType::kFp8Static);
  CHECK(detect_output_quant(arguments(false, 16, Dtype::kE4M3)) == OutputQuantType::kFp8Group128);
  CHECK(detect_output_quant(arguments(false, 32, Dtype::kE4M3)) == OutputQuantType::kFp8Group64);
  CHECK(detect_output_quant(arguments(true, 128, Dtype::kU8)) == OutputQuantType::kNvfp4);
  CHECK(output_quant_key(OutputQuantType::kFp8Static) == "kFp8StaticTensorSym");
  CHECK(output_quant_key(OutputQuantType::kFp8Group128) == "kFp8Dynamic128Sym");
  CHECK(output_quant_key(OutputQuantType::kFp8Group64) == "kFp8Dynamic64Sym");
  CHECK(output_quant_key(OutputQuantType::kNvfp4) == "kNvfp4Dynamic");
}

TEST_CASE("arguments that fit no scheme are refused") {
  const auto detect = [](bool has_scale, std::optional<std::int64_t> groups, Dtype dtype,
                         std::int64_t output_dim = 2048) {
    return error_of([&] { detect_output_quant(arguments(has_scale, groups, dtype, output_dim)); });
  };
  CHECK(detect(true, 16, Dtype::kE4M3) == ErrorKind::kConfig);
  CHECK(detect(false, 128, Dtype::kU8) == ErrorKind::kConfig);
  CHECK(detect(true, {}, Dtype::kU8) == ErrorKind::kDtype);
  CHECK(detect(true, 16, Dtype::kBF16) == ErrorKind::kDtype);
  CHECK(detect(false, 0, Dtype::kE4M3) == ErrorKind::kConfig);
  // 257 / 2 is 128 only when it is rounded down.
  CHECK(detect(false, 2, Dtype::kE4M3, 257) == ErrorKind::kConfig);

  std::string message;
  CHECK(error_of([] { detect_output_quant(arguments(false, 64, Dtype::kE4M3)); }, &message) ==
        ErrorKind::kConfig);
  CHECK(message.starts_with(
      "Unsupported group FP8 group_size=32; Only group_size 128 and 64 are supported."));
}

TEST_CASE("static fp8 multiplies by the rounded reciprocal of the scale") {
  // 1/3 and 1/10 are not exact, so x * (1/s) and x / s part at some of these values. The expected
  // code follows from the product in f64 of exactly the two f32 factors, rounded to f32 once.
  const std::vector<float> values = noise(4096);
  for (float scale : {1.0f / 3.0f, 0.1f, 0.0029f}) {
    std::vector<std::uint8_t> codes(values.size());
    quantise_fp8_static(tensor_of(values, {4, 1024}), scale, codes);
    const double factor = static_cast<double>(static_cast<float>(1.0 / double(scale)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      REQUIRE(codes[i] == rn_e4m3(float(double(values[i]) * factor)));
    }
  }
}

TEST_CASE("static fp8 does not divide by the scale") {
  // 175 / 7 = 25 is half-way between the codes 24 and 26, and a tie goes to 24; fl(1/7) is above
  // 1/7, and so is the product.
  std::uint8_t code = 0;
  quantise_fp8_static(tensor_of({175.0f}, {1, 1}), 7.0f, {&code, 1});
  CHECK(e4m3_value(code) == 26.0f);
}

TEST_CASE("static fp8 saturates, counts what it lost, and leaves later rows alone") {
  const Tensor x = tensor_of({1.0f, -1000.0f, 232.0f, 233.0f, kInf, kNan, 0.0f, -0.0f}, {2, 4});
  std::vector<std::uint8_t> codes(12, 0xAB);
  CHECK(quantise_fp8_static(x, 0.5f, codes) == 3);
  CHECK(codes == std::vector<std::uint8_t>{0x40, 0xFE, 0x7E, 0x7E, 0x7E, 0x7F, 0x00, 0x80, 0xAB,
                                           0xAB, 0xAB, 0xAB});
}

TEST_CASE("static fp8 of nothing writes nothing") {
  std::vector<std::uint8_t> codes(2, 0xAB);
  CHECK(quantise_fp8_static(Tensor(Dtype::kBF16, {0, 64}), 1.0f, codes) == 0);
  CHECK(codes == std::vector<std::uint8_t>{0xAB, 0xAB});
}

TEST_CASE("static fp8 refuses scales that are not finite and positive, and short buffers") {
  const Tensor x = tensor_of({1, 2}, {1, 2});
  std::vector<std::uint8_t> codes(2);
  for (float scale : {0.0f, -1.0f, kInf, kNan}) {
    CHECK(error_of([&] { quantise_fp8_static(x, scale, codes); }) == ErrorKind::kValue);
  }
  CHECK(error_of([&] { quantise_fp8_static(x, 1.0f, std::span(codes).first(1)); }) ==
        ErrorKind::kShape);
  CHECK(error_of([&] {
          quantise_fp8_static(Tensor(Dtype::kI8, {1, 2}), 1.0f, codes);
        }) == ErrorKind::kDtype);
}

TEST_CASE("group fp8 gives every group the scale of its own largest magnitude") {
  for (int group_size : {64, 128}) {
    std::vector<float> values = noise(3 * 256);
    const auto per_row = static_cast<std::size_t>(256 / group_size);
    const Tensor x = tensor_of(values, {3, 256}, Dtype::kBF16);
    const GroupResult result = quantise(x, {group_size, group_size});
    CHECK(result.saturated == 0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t group = i / static_cast<std::size_t>(group_size);
      float largest = 0.0f;
      for (int j = 0; j < group_size; ++j) {
        largest =
            std::fmax(largest, std::fabs(x.at(static_cast<std::int64_t>(group) * group_size + j)));
      }
      const float scale = result.scales[group / per_row * per_row + group % per_row];
      REQUIRE(scale == largest / 448.0f);
      const float y = x.at(static_cast<std::int64_t>(i)) / scale;
      REQUIRE(result.codes[i] == rn_e4m3(y));
    }
  }
}

TEST_CASE("many rows are quantised as each of them alone") {
  constexpr std::int64_t kRows = 300, kColumns = 256;
  std::vector<float> values = noise(kRows * kColumns);
  for (std::size_t i = 11; i < values.size(); i += 1000) values[i] *= 500;
  const Tensor x = tensor_of(values, {kRows, kColumns}, Dtype::kBF16);
  std::vector<std::uint8_t> codes(values.size());
  const std::int64_t saturated = quantise_fp8_static(x, 0.5f, codes);
  const GroupResult groups = quantise(x, {64, 64});
  std::int64_t saturated_alone = 0, wrong = 0;
  for (std::int64_t row = 0; row < kRows; ++row) {
    Tensor alone(Dtype::kBF16, {1, kColumns});
    for (std::int64_t i = 0; i < kColumns; ++i) alone.set(i, x.at(row * kColumns + i));
    std::vector<std::uint8_t> row_codes(kColumns);
    saturated_alone += quantise_fp8_static(alone, 0.5f, row_codes);
    const GroupResult row_groups = quantise(alone, {64, 64});
    const std::ptrdiff_t first = row * kColumns;
    wrong += !std::equal(row_codes.begin(), row_codes.end(), codes.begin() + first);
    wrong +=
        !std::equal(row_groups.codes.begin(), row_groups.codes.end(), groups.codes.begin() + first);
    wrong += !std::equal(row_groups.scales.begin(), row_groups.scales.end(),
                         groups.scales.begin() + row * kColumns / 64);
  }
  CHECK(wrong == 0);
  CHECK(saturated > 0);
  CHECK(saturated == saturated_alone);
}

TEST_CASE("group fp8 divides by the scale") {
  // 39 / (52 / 448) = 336 is half-way between the codes 320 and 352, and the tie goes to 320; the
  // product with the rounded reciprocal is above it.
  std::vector<float> values(64, 39.0f);
  values[0] = 52.0f;
  const GroupResult result = quantise(tensor_of(values, {1, 64}), {64, 64});
  CHECK(e4m3_value(result.codes[1]) == 320.0f);
}

TEST_CASE("group fp8 with ue8m0 uses the next power of two") {
  std::vector<float> values(128, 0.0f);
  values[5] = -448.0f * 1.1f;
  values[6] = 448.0f;
  const GroupResult result = quantise(tensor_of(values, {1, 128}), {128, 128, true});
  CHECK(result.scales[0] == 2.0f);
  CHECK(e4m3_value(result.codes[5]) == -240.0f);  // 246.4 lies between 240 and 256
  CHECK(e4m3_value(result.codes[6]) == 224.0f);
}

TEST_CASE("an all-zero group has the least scale and zero codes") {
  const Tensor x(Dtype::kF16, {1, 128});
  CHECK(quantise(x, {128, 128}).scales[0] == 1e-10f / 448.0f);
  CHECK(quantise(x, {128, 128, true}).scales[0] == 0x1p-33f);
  CHECK(quantise(x, {128, 128}).codes == std::vector<std::uint8_t>(128, 0));
}

TEST_CASE("NaN in a group becomes NaN and does not touch its neighbours") {
  std::vector<float> values(128, 2.0f);
  values[3] = kNan;
  const GroupResult result = quantise(tensor_of(values, {1, 128}), {128, 128});
  CHECK(result.scales[0] == 2.0f / 448.0f);
  CHECK(result.codes[3] == 0x7F);
  CHECK(result.codes[4] == 0x7E);
}

TEST_CASE("scale layouts hold the same scales at their own strides") {
  const Tensor x = tensor_of(noise(5 * 256, 7), {5, 256});
  const GroupResult row_major = quantise(x, {64, 64, false, ScaleLayout::kRowMajor});
  const GroupResult column_major = quantise(x, {64, 64, false, ScaleLayout::kColumnMajor});
  const GroupResult tma = quantise(x, {64, 64, false, ScaleLayout::kTmaAligned});
  CHECK(row_major.scales.size() == 20);
  CHECK(column_major.scales.size() == 20);
  CHECK(tma.scales.size() == 32);  // 5 rows in columns of 8
  CHECK(row_major.codes == tma.codes);
  for (std::size_t row = 0; row < 5; ++row) {
    for (std::size_t group = 0; group < 4; ++group) {
      CHECK(column_major.scales[group * 5 + row] == row_major.scales[row * 4 + group]);
      CHECK(tma.scales[group * 8 + row] == row_major.scales[row * 4 + group]);
    }
  }
  for (std::size_t group = 0; group < 4; ++group) {
    for (std::size_t row = 5; row < 8; ++row) CHECK(tma.scales[group * 8 + row] == -7.0f);
  }
}

TEST_CASE("rows of a larger scale buffer are left untouched") {
  const Tensor x = tensor_of(noise(2 * 128), {2, 128});
  const GroupResult result = quantise(x, {128, 128, false, ScaleLayout::kColumnMajor, 5});
  REQUIRE(result.scales.size() == 5);
  CHECK(result.scales[1] > 0.0f);
  CHECK(result.scales[2] == -7.0f);
}

TEST_CASE("group fp8 refuses group sizes that are missing, odd or different") {
  const Tensor x = tensor_of(noise(192), {1, 192});
  const auto quantise_with = [&](GroupFp8Rule rule) {
    return error_of([&] { quantise(x, rule); });
  };
  CHECK(quantise_with({std::nullopt, 64}) == ErrorKind::kConfig);
  CHECK(quantise_with({128, 64}) == ErrorKind::kConfig);
  CHECK(quantise_with({32, 32}) == ErrorKind::kConfig);
  CHECK(quantise_with({128, 128}) == ErrorKind::kShape);
  CHECK_FALSE(quantise_with({64, 64}));
}

}  // namespace attnbench
