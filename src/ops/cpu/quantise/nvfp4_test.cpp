#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/tensor_testing.h"
#include "ops/ops.h"
#include "reference/quantise/nvfp4.h"

namespace attnbench::cpu {
namespace {

struct Nvfp4 {
  std::vector<std::uint8_t> packed, scales;
};

Nvfp4 quantise(const Tensor& x, float global_scale, bool swizzled) {
  const std::int64_t rows = x.dim(0);
  const std::int64_t columns = x.dim(1);
  const std::int64_t blocks = columns / 16;
  const std::int64_t scale_bytes =
      swizzled ? (rows + 127) / 128 * 128 * ((blocks + 3) / 4 * 4) : rows * blocks;
  Nvfp4 result{std::vector<std::uint8_t>(static_cast<std::size_t>(rows * columns / 2), 0xEE),
               std::vector<std::uint8_t>(static_cast<std::size_t>(scale_bytes), 0)};
  make_cpu_ops(2)->quantise_nvfp4({element_of(x.dtype()), x.bytes(), columns, result.packed.data(),
                                   columns / 2, result.scales.data(), swizzled ? 1 : 0,
                                   &global_scale, rows, columns});
  return result;
}

}  // namespace

TEST_CASE("golden bytes of the swizzled scales") {
  // K 256: four tiles across. (m, k) -> byte, from the table of §16.
  const long long golden[][3] = {{0, 0, 0},     {0, 3, 3},      {0, 4, 512},
                                 {1, 0, 16},    {31, 3, 499},   {32, 0, 4},
                                 {127, 3, 511}, {128, 0, 2048}, {5, 15, 1619}};
  for (const auto& [row, block, byte] : golden) {
    CHECK(attn::nvfp4_swizzled_offset(row, block, 4) == byte);
  }
}

TEST_CASE("golden e2m1 codes, ties to even, the even column in the low nibble") {
  // Largest 6 with g = 1: scale 1, so the values are the codes' own.
  const float values[] = {0.25f,  0.75f,  1.25f,  1.75f,  2.5f,  3.5f,  5.0f,  6.0f,
                          -0.25f, -0.75f, -1.25f, -1.75f, -2.5f, -3.5f, -5.0f, -6.0f};
  const Nvfp4 result = quantise(Tensor::from_f32(values, {1, 16}), 1.0f, false);
  CHECK(result.scales == std::vector<std::uint8_t>{0x38});
  // 0, 1, 1, 2, 2, 4, 4, 6 are the codes 0, 2, 2, 4, 4, 6, 6, 7; the sign is bit 3.
  CHECK(result.packed == std::vector<std::uint8_t>{0x20, 0x42, 0x64, 0x76, 0xA8, 0xCA, 0xEC, 0xFE});
}

TEST_CASE("NVFP4 is byte for byte that of the reference, swizzled and linear") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    for (const auto& [rows, columns] : {std::pair{3, 16}, std::pair{130, 80}, std::pair{40, 256}}) {
      Tensor x = random_tensor(dtype, {rows, columns}, 4, 2.0f);
      for (int i = 0; i < 16; ++i) x.set(16 + i, 0.0f);
      x.set(3, std::numeric_limits<float>::infinity());
      x.set(x.num_elements() - 1, std::nanf(""));
      x.set(x.num_elements() - 20, 1e-6f);
      for (const float global_scale : {1.0f, 448.0f * 6.0f / 7.3f, 0.01f, 3e4f}) {
        for (const bool swizzled : {false, true}) {
          const Nvfp4 actual = quantise(x, global_scale, swizzled);
          Nvfp4 expected{std::vector<std::uint8_t>(actual.packed.size(), 0xEE),
                         std::vector<std::uint8_t>(actual.scales.size(), 0)};
          REQUIRE(static_cast<std::int64_t>(actual.scales.size()) ==
                  nvfp4_scale_bytes(rows, columns, swizzled));
          attnbench::quantise_nvfp4(x, global_scale, swizzled, expected.packed, expected.scales);
          CHECK(actual.packed == expected.packed);
          CHECK(actual.scales == expected.scales);
        }
      }
    }
  }
}

TEST_CASE("a block of zeros has scale and codes zero") {
  const Nvfp4 result = quantise(Tensor(Dtype::kBF16, {2, 32}), 100.0f, false);
  CHECK(result.packed == std::vector<std::uint8_t>(32, 0));
  CHECK(result.scales == std::vector<std::uint8_t>(4, 0));
}

TEST_CASE("scales of padding rows and columns are not written") {
  // 3 rows, 5 blocks: 128 x 8 scales, of which 15 are real and none of those is zero.
  const Nvfp4 result = quantise(random_tensor(Dtype::kBF16, {3, 80}, 1), 10.0f, true);
  std::vector<bool> real(result.scales.size());
  for (int row = 0; row < 3; ++row) {
    for (int block = 0; block < 5; ++block) {
      real[static_cast<std::size_t>(block / 4 * 512 + row * 16 + block % 4)] = true;
    }
  }
  for (std::size_t i = 0; i < real.size(); ++i) CHECK((result.scales[i] != 0) == real[i]);
}

TEST_CASE("NVFP4 of no rows writes nothing") {
  const Nvfp4 result = quantise(Tensor(Dtype::kBF16, {0, 32}), 1.0f, true);
  CHECK(result.packed.empty());
}

}  // namespace attnbench::cpu
