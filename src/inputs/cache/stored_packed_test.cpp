#include "inputs/cache/stored_packed.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/common/packed_codes.cuh"

namespace attnbench {
namespace {

Tensor random_vectors(std::int64_t rows, std::int64_t width, unsigned seed) {
  Tensor tensor(Dtype::kBF16, {rows, 2, width});
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) tensor.set(i, normal(random));
  return tensor;
}

double relative_error(const Tensor& stored, const Tensor& source) {
  double error = 0;
  double norm = 0;
  for (std::int64_t i = 0; i < source.num_elements(); ++i) {
    error += std::pow(stored.at(i) - source.at(i), 2);
    norm += std::pow(source.at(i), 2);
  }
  return std::sqrt(error / norm);
}

int code_of(const PackedVectors& stored, std::int64_t cell, std::int64_t d) {
  const int byte = stored.codes.data<std::uint8_t>()[cell * stored.codes.dim(2) + d / 2];
  return d % 2 == 0 ? byte & 15 : byte >> 4;
}

}  // namespace

TEST_CASE("int4 vectors read back near what was stored, also with one column that is far larger") {
  Tensor source = random_vectors(20, 128, 1);
  CHECK(relative_error(store_int4(source).dequantized, source) < 0.15);
  for (std::int64_t row = 0; row < 40; ++row) source.set(row * 128 + 5, 50.0f);
  // Without the rotation the other columns would share a step of 3.3 with the large one.
  CHECK(relative_error(store_int4(source).dequantized, source) < 0.15);
}

TEST_CASE("int4 scales hold the zero point in their low bits, and codes reach both ends") {
  const PackedVectors stored = store_int4(random_vectors(9, 64, 2));
  for (std::int64_t cell = 0; cell < 18; ++cell) {
    int least = 15;
    int most = 0;
    for (std::int64_t d = 0; d < 64; ++d) {
      least = std::min(least, code_of(stored, cell, d));
      most = std::max(most, code_of(stored, cell, d));
    }
    CHECK(least == 0);
    CHECK(most == 15);
    const float scale = stored.scales.at(cell);
    const auto bits = std::bit_cast<std::uint32_t>(scale);
    CHECK(attn::int4_zero_point(scale) == static_cast<int>(bits & 15u));
    CHECK(std::bit_cast<std::uint32_t>(attn::int4_scale(scale)) == (bits & ~15u));
    CHECK(attn::int4_stored_scale(attn::int4_scale(scale), static_cast<int>(bits & 15u)) == scale);
  }
}

TEST_CASE("an int4 vector of zeros has the least scale and reads as zeros") {
  const PackedVectors stored =
      store_int4(Tensor::from_f32(std::vector<float>(32, 0.0f), {1, 1, 32}));
  CHECK(attn::int4_scale(stored.scales.at(0)) == doctest::Approx(1e-6f));
  for (std::int64_t d = 0; d < 32; ++d) CHECK(stored.dequantized.at(d) == 0.0f);
}

TEST_CASE("the table of the kernels has the signs that the generator draws") {
  std::mt19937 random(0x9E3779B9u);
  int negative = 0;
  for (int d = 0; d < 512; ++d) {
    const bool expected = (random() & 0x800000u) != 0;
    CHECK(attn::rotation_is_negative(d) == expected);
    negative += expected ? 1 : 0;
  }
  CHECK(negative > 200);
  CHECK(negative < 312);
}

TEST_CASE("nvfp4 vectors read back near what was stored, by blocks of their own size") {
  Tensor source = random_vectors(20, 64, 3);
  for (std::int64_t i = 0; i < source.num_elements(); ++i) {
    if (i % 64 < 16) source.set(i, source.at(i) * 8.0f);
  }
  const PackedVectors stored = store_nvfp4(source, {0.02f, 0.5f});
  CHECK(stored.scales.shape() == std::vector<std::int64_t>{20, 2, 4});
  CHECK(relative_error(stored.dequantized, source) < 0.15);
  CHECK(stored.scales.at(0) > 3 * stored.scales.at(1));
}

TEST_CASE("an nvfp4 block of zeros has scale 0 and reads as zeros") {
  const PackedVectors stored =
      store_nvfp4(Tensor::from_f32(std::vector<float>(64, 0.0f), {1, 1, 64}), {0.1f});
  for (std::int64_t b = 0; b < 4; ++b) CHECK(stored.scales.at(b) == 0.0f);
  for (std::int64_t d = 0; d < 64; ++d) CHECK(stored.dequantized.at(d) == 0.0f);
}

TEST_CASE("the swizzle of four slots is a permutation of the places of a plane") {
  for (const int blocks : {4, 8, 16}) {
    std::vector<int> seen(static_cast<std::size_t>(16 * blocks), 0);
    for (int slot = 0; slot < 16; ++slot) {
      for (int block = 0; block < blocks; ++block) {
        const attn::SwizzledScale place = attn::swizzled_value_scale(slot, block, blocks);
        CHECK(place.slot / 4 == slot / 4);
        ++seen[static_cast<std::size_t>(place.slot * blocks + place.block)];
      }
    }
    for (const int count : seen) CHECK(count == 1);
  }
}

}  // namespace attnbench
