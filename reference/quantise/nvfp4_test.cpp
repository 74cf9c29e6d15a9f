#include "reference/quantise/nvfp4.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "reference/ops/test_support.h"
#include "reference/quantise/number_formats.h"

namespace attnbench::nvfp4_test {

using ops_test::error_of;
using ops_test::kInf;
using ops_test::kNan;
using ops_test::noise;
using ops_test::tensor_of;

namespace {

struct Nvfp4Result {
  std::vector<std::uint8_t> packed;
  std::vector<std::uint8_t> scales;
};

Nvfp4Result quantise(const Tensor& x, float global_scale, bool swizzled) {
  const auto scale_bytes = nvfp4_scale_bytes(x.dim(0), x.dim(1), swizzled);
  Nvfp4Result result{std::vector<std::uint8_t>(static_cast<std::size_t>(x.num_elements() / 2)),
                     std::vector<std::uint8_t>(static_cast<std::size_t>(scale_bytes))};
  quantise_nvfp4(x, global_scale, swizzled, result.packed, result.scales);
  return result;
}

}  // namespace

TEST_CASE("swizzled scales lie at the golden bytes") {
  CHECK(nvfp4_swizzled_offset(0, 0, 256) == 0);
  CHECK(nvfp4_swizzled_offset(0, 3, 256) == 3);
  CHECK(nvfp4_swizzled_offset(0, 4, 256) == 512);
  CHECK(nvfp4_swizzled_offset(1, 0, 256) == 16);
  CHECK(nvfp4_swizzled_offset(31, 3, 256) == 499);
  CHECK(nvfp4_swizzled_offset(32, 0, 256) == 4);
  CHECK(nvfp4_swizzled_offset(127, 3, 256) == 511);
  CHECK(nvfp4_swizzled_offset(128, 0, 256) == 2048);
  CHECK(nvfp4_swizzled_offset(5, 15, 256) == 1619);
}

TEST_CASE("the swizzle is one-to-one onto its buffer, also when the last tile is not full") {
  for (std::int64_t num_columns : {16, 80, 128, 336}) {
    const std::int64_t size = nvfp4_scale_bytes(200, num_columns, true);
    CHECK(size % 512 == 0);
    std::set<std::int64_t> seen;
    for (std::int64_t row = 0; row < 200; ++row) {
      for (std::int64_t block = 0; block < num_columns / 16; ++block) {
        const std::int64_t offset = nvfp4_swizzled_offset(row, block, num_columns);
        REQUIRE(offset < size);
        seen.insert(offset);
      }
    }
    CHECK(static_cast<std::int64_t>(seen.size()) == 200 * (num_columns / 16));
  }
}

TEST_CASE("the scale buffer is padded to whole tiles only when swizzled") {
  CHECK(nvfp4_scale_bytes(1, 80, true) == 128 * 8);
  CHECK(nvfp4_scale_bytes(129, 256, true) == 256 * 16);
  CHECK(nvfp4_scale_bytes(129, 80, false) == 129 * 5);
  CHECK(nvfp4_scale_bytes(0, 256, true) == 0);
}

TEST_CASE("many rows of NVFP4 are quantised as each of them alone") {
  constexpr std::int64_t kRows = 70, kColumns = 32;
  const Tensor x = tensor_of(noise(kRows * kColumns), {kRows, kColumns});
  const Nvfp4Result whole = quantise(x, 100, false);
  std::int64_t wrong = 0;
  for (std::int64_t row = 0; row < kRows; ++row) {
    Tensor alone(Dtype::kF32, {1, kColumns});
    for (std::int64_t i = 0; i < kColumns; ++i) alone.set(i, x.at(row * kColumns + i));
    const Nvfp4Result result = quantise(alone, 100, false);
    wrong += !std::equal(result.packed.begin(), result.packed.end(),
                         whole.packed.begin() + row * kColumns / 2);
    wrong += !std::equal(result.scales.begin(), result.scales.end(),
                         whole.scales.begin() + row * kColumns / kNvfp4BlockSize);
  }
  CHECK(wrong == 0);
}

TEST_CASE("the even column is the low nibble") {
  // max 6 and g 1: sf = 1, m = 1, so the codes are those of the values themselves.
  std::vector<float> values{6.0f, -0.5f, 1.0f, 0.0f, 0.25f, 0.75f, 1.25f,  1.75f,
                            2.5f, 3.5f,  5.0f, 4.0f, 3.0f,  -6.0f, -1.25f, 1.5f};
  const Nvfp4Result result = quantise(tensor_of(values, {1, 16}, Dtype::kBF16), 1.0f, false);
  CHECK(result.scales == std::vector<std::uint8_t>{0x38});
  CHECK(result.packed == std::vector<std::uint8_t>{0x97, 0x02, 0x20, 0x42, 0x64, 0x66, 0xF5, 0x3A});
}

TEST_CASE("dequantised NVFP4 stays within half a step of its block's scale") {
  const std::vector<float> values = noise(3 * 64);
  const Tensor x = tensor_of(values, {3, 64});
  const float global_scale = 448.0f * 6.0f;
  for (bool swizzled : {true, false}) {
    const Nvfp4Result result = quantise(x, global_scale, swizzled);
    const Tensor back =
        dequantise_nvfp4(result.packed, result.scales, global_scale, swizzled, 3, 64);
    for (std::int64_t i = 0; i < x.num_elements(); ++i) {
      float largest = 0.0f;
      for (std::int64_t j = i / 16 * 16; j < i / 16 * 16 + 16; ++j) {
        largest = std::fmax(largest, std::fabs(x.at(j)));
      }
      // Half of the widest step (4 to 6) is 1/6 of the block's largest value; its scale itself is
      // off by up to 1/16.
      CHECK(std::fabs(back.at(i) - x.at(i)) <= largest * (1.0f / 6.0f + 1.0f / 16.0f));
    }
  }
}

TEST_CASE("swizzled and linear buffers hold the same scales and the rest stays zero") {
  const Tensor x = tensor_of(noise(130 * 80, 3), {130, 80});
  const Nvfp4Result linear = quantise(x, 100.0f, false);
  const Nvfp4Result swizzled = quantise(x, 100.0f, true);
  CHECK(linear.packed == swizzled.packed);
  std::vector<std::uint8_t> rest = swizzled.scales;
  for (std::int64_t row = 0; row < 130; ++row) {
    for (std::int64_t block = 0; block < 5; ++block) {
      const auto offset = static_cast<std::size_t>(nvfp4_swizzled_offset(row, block, 80));
      REQUIRE(swizzled.scales[offset] == linear.scales[static_cast<std::size_t>(row * 5 + block)]);
      rest[offset] = 0;
    }
  }
  CHECK(rest == std::vector<std::uint8_t>(rest.size(), 0));
}

TEST_CASE("NVFP4 elements are multiplied by the reciprocal of sf / g") {
  // g = 3, max 13: sf = 6.5. 1.625 * 3 / 6.5 = 0.75 would be a tie that goes to 1, but the two
  // rounded divisions leave the product below it.
  const float factor = 1.0f / (6.5f / 3.0f);
  REQUIRE(1.625f * factor < 0.75f);
  std::vector<float> values(16, 1.625f);
  values[0] = 13.0f;
  const Nvfp4Result result = quantise(tensor_of(values, {1, 16}), 3.0f, false);
  CHECK(e4m3_value(result.scales[0]) == 6.5f);
  CHECK(result.packed[1] == 0x11);
}

TEST_CASE("a block whose scale rounds to zero has zero codes") {
  std::vector<float> values(16, 0.0f);
  values[2] = 1e-3f;  // sf = 1e-3/6 is below half of the least e4m3 number
  const Nvfp4Result result = quantise(tensor_of(values, {1, 16}), 1.0f, true);
  CHECK(result.scales[0] == 0);
  CHECK(result.packed == std::vector<std::uint8_t>(8, 0));
  CHECK(quantise(Tensor(Dtype::kBF16, {1, 16}), 448.0f * 6.0f, true).packed ==
        std::vector<std::uint8_t>(8, 0));
}

TEST_CASE("a block scale saturates at 448 and its codes at 6") {
  std::vector<float> values(16, 1.0f);
  values[0] = 6.0f * 448.0f * 4.0f;
  values[1] = -kInf;
  const Nvfp4Result result = quantise(tensor_of(values, {1, 16}), 1.0f, false);
  CHECK(result.scales[0] == 0x7E);
  CHECK(result.packed[0] == 0xF7);
}

TEST_CASE("NVFP4 writes only the rows it was given") {
  const Tensor x = tensor_of(noise(2 * 32), {2, 32});
  std::vector<std::uint8_t> packed(3 * 16, 0xAB);
  std::vector<std::uint8_t> scales(3 * 2, 0xCD);
  quantise_nvfp4(x, 1.0f, false, packed, scales);
  CHECK(packed[31] != 0xAB);
  CHECK(packed[32] == 0xAB);
  CHECK(scales[4] == 0xCD);
}

TEST_CASE("NVFP4 refuses columns that are no multiple of 16, short buffers and bad scales") {
  std::vector<std::uint8_t> buffer(4096);
  const auto quantise_into = [&](const Tensor& x, float scale, std::size_t packed_bytes) {
    return error_of(
        [&] { quantise_nvfp4(x, scale, true, std::span(buffer).first(packed_bytes), buffer); });
  };
  CHECK(quantise_into(Tensor(Dtype::kF32, {1, 24}), 1.0f, 12) == ErrorKind::kShape);
  CHECK(quantise_into(Tensor(Dtype::kF32, {1, 32}), 1.0f, 15) == ErrorKind::kShape);
  CHECK(quantise_into(Tensor(Dtype::kF32, {1, 32}), 0.0f, 16) == ErrorKind::kValue);
  CHECK(quantise_into(Tensor(Dtype::kF32, {1, 32}), kNan, 16) == ErrorKind::kValue);
  CHECK(quantise_into(Tensor(Dtype::kI32, {1, 32}), 1.0f, 16) == ErrorKind::kDtype);
  CHECK_FALSE(quantise_into(Tensor(Dtype::kF32, {0, 32}), 1.0f, 0));
}

}  // namespace attnbench::nvfp4_test
