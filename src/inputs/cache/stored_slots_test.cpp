// Slots that a key and its value share (semantics §5.8), with bytes that are worked out by hand.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "inputs/cache/stored_packed.h"

namespace attnbench {
namespace {

std::vector<int> bytes_of(const PackedVectors& stored, std::int64_t cell = 0) {
  const std::int64_t width = stored.codes.dim(2);
  const std::uint8_t* first = stored.codes.data<std::uint8_t>() + cell * width;
  return {first, first + width};
}

Tensor vector_of(const std::vector<float>& values) {
  return Tensor::from_f32(values, {1, 1, static_cast<std::int64_t>(values.size())});
}

double slot_error(const Tensor& stored, const Tensor& source) {
  double error = 0;
  double norm = 0;
  for (std::int64_t i = 0; i < source.num_elements(); ++i) {
    error += std::pow(stored.at(i) - source.at(i), 2);
    norm += std::pow(source.at(i), 2);
  }
  return std::sqrt(error / norm);
}

Tensor normal_vectors(std::int64_t rows, std::int64_t width) {
  Tensor tensor(Dtype::kBF16, {rows, 2, width});
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) tensor.set(i, normal(random));
  return tensor;
}

}  // namespace

TEST_CASE("values of 4 bits are steps from the least one, the even column in the low nibble") {
  // Step (11 - -4) / 15 = 1, so codes are distances from -4; halves go up.
  const PackedVectors stored =
      store_slot_values(vector_of({-4, 11, 0, 0.5f, 1.25f, -3.5f, 10.9f, 2}),
                        SlotCodes{.key_bits = 8, .value_bits = 4});
  // Codes 0 15, 4 5, 5 1, 15 6; the step 1 as f16 is 0x3C00, the least value -4 is 0xC400.
  CHECK(bytes_of(stored) == std::vector<int>{0xF0, 0x54, 0x15, 0x6F, 0x00, 0x3C, 0x00, 0xC4});
  CHECK(stored.scales.empty());
  const float read[] = {-4, 11, 0, 1, 1, -3, 11, 2};
  for (int d = 0; d < 8; ++d) CHECK(stored.dequantized.at(d) == read[d]);
}

TEST_CASE("values of 3 bits fill three bytes by eight columns, from the low bits on") {
  const PackedVectors stored = store_slot_values(vector_of({0, 7, 1, 6, 2, 5, 3, 4}),
                                                 SlotCodes{.key_bits = 3, .value_bits = 3});
  // 0 + 7 * 8 + 1 * 64 + 6 * 512 + 2 * 4096 + 5 * 32768 + 3 * 262144 + 4 * 2097152 = 0x8EAC78; the
  // step 1 is what 7 * fl(1 / 7) rounds to.
  CHECK(bytes_of(stored) == std::vector<int>{0x78, 0xAC, 0x8E, 0x00, 0x3C, 0x00, 0x00});
  CHECK(stored.dequantized.at(7) == 4.0f);
}

TEST_CASE("equal values have a step that f16 has no number for, and read as the least one") {
  const PackedVectors stored = store_slot_values(vector_of(std::vector<float>(8, 1.5f)),
                                                 SlotCodes{.key_bits = 8, .value_bits = 4});
  CHECK(bytes_of(stored) == std::vector<int>{0, 0, 0, 0, 0, 0, 0x00, 0x3E});
  CHECK(stored.dequantized.at(3) == 1.5f);
}

TEST_CASE("a least value of zero is negative where one of the zeros is, wherever it stands") {
  for (const int place : {0, 1, 7}) {
    std::vector<float> values{0, 0, 1, 2, 15, 3, 4, 0};
    values[place] = -0.0f;
    const std::vector<int> bytes =
        bytes_of(store_slot_values(vector_of(values), SlotCodes{.key_bits = 8, .value_bits = 4}));
    CHECK(std::vector<int>(bytes.end() - 2, bytes.end()) == std::vector<int>{0x00, 0x80});
  }
}

TEST_CASE("keys of 8 bits are e4m3 without a scale, saturated") {
  const PackedVectors stored =
      store_slot_keys(vector_of({1, -2, 0.5f, 448, 1000, -0.0f, 1.0625f, 0}),
                      SlotCodes{.key_bits = 8, .value_bits = 4});
  CHECK(bytes_of(stored) == std::vector<int>{0x38, 0xC0, 0x30, 0x7E, 0x7E, 0x80, 0x38, 0});
  CHECK(stored.dequantized.at(4) == 448.0f);
}

TEST_CASE("a key along one column is rotated into columns of one size") {
  // H turns 4 e_0 into 4 in every column; of length 1 that is 1 / sqrt(32) in each, so one standard
  // deviation: the centroid of 3 bits above 0.7556 of them and below 1.3432.
  std::vector<float> key(32, 0.0f);
  key[0] = 4.0f;
  const PackedVectors stored =
      store_slot_keys(vector_of(key), SlotCodes{.key_bits = 3, .value_bits = 3});
  const std::vector<int> bytes = bytes_of(stored);
  REQUIRE(bytes.size() == 14);
  // Eight codes 5: 0b101101101101101101101101.
  for (std::size_t i = 0; i < 12; i += 3) {
    CHECK(bytes[i] == 0x6D);
    CHECK(bytes[i + 1] == 0xDB);
    CHECK(bytes[i + 2] == 0xB6);
  }
  CHECK(bytes[12] == 0x00);
  CHECK(bytes[13] == 0x44);  // 4 as f16
  // All columns are the same centroid, so that the correction of the norm gives the key back.
  CHECK(stored.dequantized.at(0) == doctest::Approx(4.0f).epsilon(1e-6));
  for (int d = 1; d < 32; ++d) CHECK(std::fabs(stored.dequantized.at(d)) < 1e-6f);
}

TEST_CASE("a key of zeros reads as zeros") {
  const PackedVectors stored = store_slot_keys(vector_of(std::vector<float>(64, 0.0f)),
                                               SlotCodes{.key_bits = 4, .value_bits = 4});
  for (int d = 0; d < 64; ++d) CHECK(stored.dequantized.at(d) == 0.0f);
}

TEST_CASE("slots read back near what was stored, nearer with more bits, with the norm of the key") {
  const Tensor source = normal_vectors(20, 128);
  const auto key_error = [&](int bits) {
    return slot_error(store_slot_keys(source, SlotCodes{bits, 4}).dequantized, source);
  };
  const auto value_error = [&](int bits) {
    return slot_error(store_slot_values(source, SlotCodes{8, bits}).dequantized, source);
  };
  CHECK(key_error(8) < 0.04);
  CHECK(key_error(4) < 0.12);  // Max (1960): mean square 0.0095 of 16 levels, 0.0345 of 8
  CHECK(key_error(3) < 0.22);
  CHECK(key_error(3) > key_error(4));
  CHECK(value_error(4) < 0.13);
  CHECK(value_error(3) < 0.27);
  const Tensor read = store_slot_keys(source, SlotCodes{3, 3}).dequantized;
  for (std::int64_t cell = 0; cell < 40; ++cell) {
    double stored_norm = 0;
    double norm = 0;
    for (std::int64_t d = cell * 128; d < (cell + 1) * 128; ++d) {
      stored_norm += std::pow(read.at(d), 2);
      norm += std::pow(source.at(d), 2);
    }
    CHECK(std::sqrt(stored_norm / norm) == doctest::Approx(1.0).epsilon(1e-3));
  }
}

}  // namespace attnbench
