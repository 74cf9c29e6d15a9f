// The indexer's definition by values that were calculated by hand, and what a choice of keys may
// be.
#include "reference/mla/indexer.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace attnbench {
namespace {

/// One block of two keys: the first has 2 in column 0 and -1 in column 1, the second 4 in column 1.
/// The largest code 448 lies 448 / 2 = 224 below 2, so the scales are 2 / 448 and 4 / 448, and with
/// powers of two 2^-7 (2 / 448 = 2^-7.8) and 2^-6.
Tensor two_keys(bool ue8m0) {
  Tensor keys(Dtype::kF32, {2, 128});
  keys.set(0, 2.0f);
  keys.set(1, -1.0f);
  keys.set(128 + 1, 4.0f);
  Tensor cache(Dtype::kU8, {1, 2 * 132});
  store_index_key(keys, 0, ue8m0, 2, 1, cache);  // in the second slot
  store_index_key(keys, 1, ue8m0, 2, 0, cache);
  return cache;
}

float scale_at(const Tensor& cache, int slot) {
  float scale = 0;
  std::memcpy(&scale, cache.bytes() + 2 * 128 + slot * 4, sizeof scale);
  return scale;
}

}  // namespace

TEST_CASE("codes of a block lie before its scales, each key in its slot") {
  const Tensor plain = two_keys(false);
  const auto* codes = plain.data<std::uint8_t>();
  CHECK(scale_at(plain, 1) == 2.0f / 448.0f);
  CHECK(scale_at(plain, 0) == 4.0f / 448.0f);
  CHECK(codes[128] == 0x7E);      // 448
  CHECK(codes[128 + 1] == 0xF6);  // -224 = -1.75 * 2^7
  CHECK(codes[0] == 0x00);
  CHECK(codes[1] == 0x7E);
  const Tensor rounded = two_keys(true);
  CHECK(scale_at(rounded, 1) == std::ldexp(1.0f, -7));
  CHECK(scale_at(rounded, 0) == std::ldexp(1.0f, -6));
  CHECK(rounded.data<std::uint8_t>()[128] == 0x78);      // 256
  CHECK(rounded.data<std::uint8_t>()[128 + 1] == 0xF0);  // -128
}

TEST_CASE("a logit is the weighted sum of the positive products times the scale of the key") {
  const Tensor cache = two_keys(true);
  Tensor query(Dtype::kE4M3, {1, 2, 128});
  query.set(0, 1.5f);
  query.set(1, 0.5f);
  query.set(128 + 1, -2.0f);
  const Tensor weights = Tensor::from_f32(std::vector<float>{3.0f, -0.25f}, {1, 2});
  const std::vector<std::int32_t> blocks{0};
  // Slot 0 is position 0, the key with 4 in column 1; slot 1 the one with 2 and -1.
  // Head 0: 0.5 * 4 = 2 and 1.5 * 2 - 0.5 = 2.5. Head 1: -8, which is not positive, and 2.
  const std::vector<double> logits = index_logits_of({query, weights, cache, blocks, 2, 0, 2});
  REQUIRE(logits.size() == 2);
  CHECK(logits[0] == 6.0);            // 3 * 2
  CHECK(logits[1] == 3 * 2.5 - 0.5);  // 3 * 2.5 - 0.25 * 2
  CHECK(index_logits_of({query, weights, cache, blocks, 2, 0, 1}).size() == 1);
}

TEST_CASE("any order and any choice among equal logits is right, no other key is") {
  const std::vector<float> logits{1.0f, 3.0f, 2.0f, 2.0f, -std::numeric_limits<float>::infinity()};
  const std::vector<std::int32_t> blocks{7, 2, 5};
  const auto wrong = [&](std::vector<std::int32_t> slots, double rounding = 0) {
    return wrong_choice(logits, slots, blocks, 2, rounding);
  };
  // Positions 0 to 4 are the slots 14, 15, 4, 5 and 10.
  CHECK(wrong({15, 4}) == "");
  CHECK(wrong({5, 15}) == "");
  CHECK(wrong({15, 4, 5, 14, 10, -1}) == "");
  CHECK(wrong({15, 14}) == "position 0 with logit 1 is chosen, position 2 with 2 is not");
  CHECK(wrong({15, 14}, 1.0) == "");
  CHECK(wrong({15, 14}, 0.5) != "");
  CHECK(wrong({15, -1}) == "1 keys are chosen, expected 2");
  CHECK(wrong({15, 15}) == "entry 1 is slot 15 of position 1, which is chosen already");
  CHECK(wrong({15, 11}) == "entry 1 is slot 11, which holds no key that the token sees");
}

TEST_CASE("a logit that is no number is less than every number") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits{nan, -5.0f};
  const std::vector<std::int32_t> blocks{0};
  const std::vector<std::int32_t> second{1}, first{0};
  CHECK(wrong_choice(logits, second, blocks, 2, 0) == "");
  CHECK(wrong_choice(logits, first, blocks, 2, 0) != "");
}

}  // namespace attnbench
