#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/quantise/fp8_code.h"
#include "ops/cpu/tensor_testing.h"
#include "ops/ops.h"
#include "reference/mla/latent_query.h"
#include "reference/quantise/output_quant.h"

namespace attnbench::cpu::fp8_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<std::uint8_t> quantise_static(const Tensor& x, float scale, attn::i64* saturated) {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(x.num_elements()), 0xEE);
  make_cpu_ops(2)->quantise_fp8({element_of(x.dtype()), x.bytes(), x.dim(1), codes.data(), x.dim(1),
                                 &scale, saturated, x.dim(0), x.dim(1)});
  return codes;
}

/// Random values with NaN, infinities, zeros and both ends of the range among them.
Tensor hard_values(Dtype dtype, std::int64_t rows, std::int64_t columns) {
  Tensor x = random_tensor(dtype, {rows, columns}, 3, 2.0f);
  const float special[] = {0.0f,   -0.0f,  kInf,  -kInf, std::nanf(""), 448.0f,
                           464.0f, 465.0f, -1e4f, 1e-7f, 0x1p-10f,      0.75f * 0x1p-9f};
  for (std::int64_t i = 0; i < 12; ++i) x.set(i * 7 % x.num_elements(), special[i]);
  for (std::int64_t i = 0; i < columns; ++i) x.set(x.num_elements() - 1 - i, 0.0f);
  return x;
}

/// Scale layouts of §9.3 by name of reference and strides for T rows and G groups.
struct Layout {
  ScaleLayout layout;
  attn::i64 row_stride;
  attn::i64 group_stride;
  std::int64_t size;
};
std::array<Layout, 3> layouts(std::int64_t rows, std::int64_t groups) {
  const std::int64_t aligned = (rows + 3) / 4 * 4;
  return {{{ScaleLayout::kRowMajor, groups, 1, rows * groups},
           {ScaleLayout::kColumnMajor, 1, rows, rows * groups},
           {ScaleLayout::kTmaAligned, 1, aligned, aligned * groups}}};
}

}  // namespace

TEST_CASE("golden fp8 codes: nearest even, saturation and subnormals") {
  const float values[] = {1.0f, -2.0f, 448.0f, 449.0f, kInf, 0x1p-9f, 0x1p-10f, 1.5f * 0x1p-10f};
  const Tensor x = Tensor::from_f32(values, {1, 8});
  attn::i64 saturated = 5;
  CHECK(quantise_static(x, 1.0f, &saturated) ==
        std::vector<std::uint8_t>{0x38, 0xC0, 0x7E, 0x7E, 0x7E, 0x01, 0x00, 0x01});
  // 449 rounds to 448 anyway; only infinity is lost. The counter is added to.
  CHECK(saturated == 6);
  CHECK(quantise_static(x, 1.0f, nullptr)[0] == 0x38);
}

TEST_CASE("static fp8 is byte for byte that of the reference") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    const Tensor x = hard_values(dtype, 7, 50);
    for (const float scale : {1.0f, 0.3f, 0.0123f, 7.7f, 1e-39f, 1e38f}) {
      std::vector<std::uint8_t> expected(350);
      const std::int64_t expected_saturated = quantise_fp8_static(x, scale, expected);
      attn::i64 saturated = 0;
      CHECK(quantise_static(x, scale, &saturated) == expected);
      CHECK(saturated == expected_saturated);
    }
  }
}

TEST_CASE("static fp8 multiplies by the reciprocal where a division would round otherwise") {
  int telling = 0;
  for (int step = 0; step < 400; ++step) {
    // The tie between codes 1.0 and 1.125, seen through the scale, and the floats around it.
    const float scale = 0.011f + 0.003f * static_cast<float>(step);
    Tensor x(Dtype::kF32, {1, 17});
    float value = 1.0625f * scale;
    for (int i = 0; i < 8; ++i) value = std::nextafterf(value, 0.0f);
    for (int i = 0; i < 17; ++i, value = std::nextafterf(value, 9.0f)) x.set(i, value);
    const std::vector<std::uint8_t> codes = quantise_static(x, scale, nullptr);
    for (int i = 0; i < 17; ++i) {
      const float product = x.at(i) * (1.0f / scale);
      CHECK(codes[static_cast<std::size_t>(i)] == (product > 1.0625f ? 0x39 : 0x38));
      telling += (product > 1.0625f) != (x.at(i) / scale > 1.0625f) ? 1 : 0;
    }
  }
  CHECK(telling > 0);
}

TEST_CASE("the MLA query is concatenated, then quantised as one row per head") {
  const Tensor latent = random_tensor(Dtype::kBF16, {3, 2, 16}, 1, 3.0f);
  const Tensor rope = random_tensor(Dtype::kBF16, {3, 2, 4}, 2, 3.0f);
  const float q_scale = 0.007f;
  const auto ops = make_cpu_ops(2);
  Tensor query = poisoned_tensor(Dtype::kBF16, {3, 2, 20});
  ops->concat({attn::Element::kBF16, latent.bytes(), 32, 16, rope.bytes(), 8, 4, query.bytes(), 40,
               20, 3, 2, 16, 4});
  Tensor codes = poisoned_tensor(Dtype::kE4M3, {3, 2, 20});
  attn::i64 saturated = 0;
  ops->quantise_fp8({attn::Element::kBF16, query.bytes(), 20, codes.data<std::uint8_t>(), 20,
                     &q_scale, &saturated, 6, 20});
  const MlaQuantisedQuery expected = quantise_mla_query(latent, rope, q_scale);
  CHECK(same_bytes(codes, expected.codes));
  CHECK(saturated == expected.saturated);
  CHECK(saturated > 0);
}

TEST_CASE("static fp8 keeps to its columns of wider rows") {
  const Tensor x = random_tensor(Dtype::kBF16, {4, 10}, 1);
  std::vector<std::uint8_t> codes(4 * 8, 0xEE);
  const float scale = 0.5f;
  make_cpu_ops(1)->quantise_fp8(
      {attn::Element::kBF16, x.bytes() + 2 * 2, 10, codes.data(), 8, &scale, nullptr, 4, 6});
  for (std::int64_t row = 0; row < 4; ++row) {
    for (std::int64_t column = 0; column < 8; ++column) {
      const auto at = static_cast<std::size_t>(row * 8 + column);
      std::uint8_t expected = 0xEE;
      if (column < 6) store_float(Dtype::kE4M3, &expected, 0, x.at(row * 10 + column + 2) * 2.0f);
      CHECK(codes[at] == expected);
    }
  }
}

TEST_CASE("group fp8 is byte for byte that of the reference in every layout and both scale forms") {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16, Dtype::kF32}) {
    for (const int group_size : {64, 128}) {
      for (const bool ue8m0 : {false, true}) {
        const std::int64_t rows = 5;
        const std::int64_t groups = 6;
        const Tensor x = hard_values(dtype, rows, groups * group_size);
        for (const Layout& layout : layouts(rows, groups)) {
          const auto count = static_cast<std::size_t>(x.num_elements());
          std::vector<std::uint8_t> codes(count, 0xEE), expected(count, 0xEE);
          Tensor scales(Dtype::kF32, {layout.size}), expected_scales(Dtype::kF32, {layout.size});
          for (std::int64_t i = 0; i < layout.size; ++i) {
            scales.set(i, -7.0f);
            expected_scales.set(i, -7.0f);
          }
          const std::int64_t expected_saturated = quantise_fp8_groups(
              x, {group_size, group_size, ue8m0, layout.layout, rows}, expected,
              {expected_scales.data<float>(), static_cast<std::size_t>(layout.size)});
          attn::i64 saturated = 0;
          make_cpu_ops(2)->quantise_fp8_groups({element_of(dtype), x.bytes(), x.dim(1),
                                                codes.data(), x.dim(1), scales.data<float>(),
                                                layout.row_stride, layout.group_stride, &saturated,
                                                rows, x.dim(1), group_size, ue8m0 ? 1 : 0});
          CHECK(codes == expected);
          CHECK(same_bytes(scales, expected_scales));
          CHECK(saturated == expected_saturated);
        }
      }
    }
  }
}

TEST_CASE("golden group scales, rounded up to powers of two") {
  // One group of 64 for each: amax 448, 448 * 1.1, 448 * 0.0045, 0.
  const float amax[] = {448.0f, 448.0f * 1.1f, 448.0f * 0.0045f, 0.0f};
  const float expected[] = {1.0f, 2.0f, 0.0078125f, 0x1p-33f};
  Tensor x(Dtype::kF32, {1, 256});
  for (std::int64_t group = 0; group < 4; ++group) x.set(group * 64 + 9, -amax[group]);
  std::vector<std::uint8_t> codes(256);
  std::vector<float> scales(4);
  attn::GroupQuantiseParams params{attn::Element::kF32,
                                   x.bytes(),
                                   256,
                                   codes.data(),
                                   256,
                                   scales.data(),
                                   4,
                                   1,
                                   nullptr,
                                   1,
                                   256,
                                   64,
                                   1};
  make_cpu_ops(1)->quantise_fp8_groups(params);
  for (std::size_t group = 0; group < 4; ++group) CHECK(scales[group] == expected[group]);
  CHECK(codes[9] == 0xFE);       // -448
  CHECK(codes[64 + 9] == 0xF7);  // -246.4 lies between codes of 240 and 256
  params.ue8m0 = 0;
  make_cpu_ops(1)->quantise_fp8_groups(params);
  CHECK(scales[3] == 1e-10f / 448.0f);
  CHECK(codes[64 + 9] == 0xFE);
}

TEST_CASE("group fp8 divides where the product with the reciprocal would round otherwise") {
  int telling = 0;
  for (int step = 0; step < 400; ++step) {
    Tensor x(Dtype::kF32, {1, 64});
    x.set(0, 5.0f + 1.3f * static_cast<float>(step));
    const float scale = x.at(0) / 448.0f;
    // The tie between codes 1.0 and 1.125, seen through the scale, and the floats around it.
    float value = 1.0625f * scale;
    for (int i = 0; i < 8; ++i) value = std::nextafterf(value, 0.0f);
    for (int i = 1; i < 18; ++i, value = std::nextafterf(value, 9.0f)) x.set(i, value);
    std::vector<std::uint8_t> codes(64);
    float stored_scale = 0;
    make_cpu_ops(1)->quantise_fp8_groups({attn::Element::kF32, x.bytes(), 64, codes.data(), 64,
                                          &stored_scale, 1, 1, nullptr, 1, 64, 64, 0});
    CHECK(stored_scale == scale);
    for (int i = 1; i < 18; ++i) {
      CHECK(codes[static_cast<std::size_t>(i)] == (x.at(i) / scale > 1.0625f ? 0x39 : 0x38));
      telling += (x.at(i) / scale > 1.0625f) != (x.at(i) * (1.0f / scale) > 1.0625f) ? 1 : 0;
    }
  }
  CHECK(telling > 0);
}

TEST_CASE("TMA-aligned scales leave their padding rows alone") {
  const Tensor x = random_tensor(Dtype::kBF16, {5, 128}, 1);
  std::vector<std::uint8_t> codes(5 * 128);
  std::vector<float> scales(16, -7.0f);
  make_cpu_ops(2)->quantise_fp8_groups({attn::Element::kBF16, x.bytes(), 128, codes.data(), 128,
                                        scales.data(), 1, 8, nullptr, 5, 128, 64, 0});
  for (std::size_t i = 0; i < 16; ++i) CHECK((scales[i] == -7.0f) == (i % 8 >= 5));
}

TEST_CASE("quantising no rows writes nothing and counts nothing") {
  attn::i64 saturated = 3;
  const float scale = 1.0f;
  const auto ops = make_cpu_ops(2);
  ops->quantise_fp8({attn::Element::kBF16, nullptr, 8, nullptr, 8, &scale, &saturated, 0, 8});
  ops->quantise_fp8_groups(
      {attn::Element::kBF16, nullptr, 128, nullptr, 128, nullptr, 1, 1, &saturated, 0, 128, 64, 0});
  CHECK(saturated == 3);
}

TEST_CASE("a row reads back from e4m3 as its codes do, bit for bit") {
  std::vector<float> values;
  // Every code and every middle between two, with what lies beside them; and values of all sizes.
  for (int code = 0; code < 0x7E; ++code) {
    const float low = attn::e4m3_to_float(static_cast<attn::u8>(code));
    const float high = attn::e4m3_to_float(static_cast<attn::u8>(code + 1));
    for (const float x : {low, (low + high) / 2, high}) {
      for (const float y : {std::nextafter(x, 0.0f), x, std::nextafter(x, kInf)})
        values.push_back(y);
    }
  }
  for (std::uint32_t bits = 0; bits < 0x7F800000u; bits += 9973) {
    values.push_back(std::bit_cast<float>(bits));
  }
  const auto check = [&](float shift) {
    std::vector<float> row = values;
    for (float& x : row) x /= shift;
    std::vector<float> expected = row;
    for (float& x : expected) x = attn::e4m3_to_float(attn::e4m3_from_float(x * shift)) / shift;
    read_back_e4m3_row(row.data(), static_cast<std::int64_t>(row.size()), shift);
    std::size_t differences = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      differences +=
          std::bit_cast<std::uint32_t>(row[i]) != std::bit_cast<std::uint32_t>(expected[i]);
    }
    CHECK(differences == 0);
  };
  check(1.0f);
  check(256.0f);
  for (const float x : {-0.0f, -1.0f, 449.0f, kInf, -kInf, std::nanf("")}) {
    values.insert(values.begin() + 5, x);
    check(256.0f);
  }
}

}  // namespace attnbench::cpu::fp8_test
