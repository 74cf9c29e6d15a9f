#include "metadata/validation.h"

#include <limits>

#include "metadata/test_support.h"

namespace attnbench {
namespace {

using Ints = std::vector<int32_t>;

TEST_CASE("a cumulative array starts at 0, never falls and ends at the token count") {
  CHECK(error_of([] { check_cumulative(Ints{0, 2, 2, 5}, 5, "x"); }) == "none");
  CHECK(error_of([] { check_cumulative(Ints{0}, 0, "x"); }) == "none");
  CHECK(error_of([] { check_cumulative(Ints{1, 2}, 2, "x"); }) == "E-VALUE");
  CHECK(error_of([] { check_cumulative(Ints{0, 3, 2}, 2, "x"); }) == "E-VALUE");
  CHECK(error_of([] { check_cumulative(Ints{0, 2}, 3, "x"); }) == "E-VALUE");
  CHECK(error_of([] { check_cumulative(Ints{}, 0, "x"); }) == "E-SHAPE");
}

TEST_CASE("only the used entries of the block table are looked at") {
  const Ints table = {3, -1, 99, 2, 0, -7};  // [2, 3]
  CHECK(error_of([&] { check_block_table(table, 3, Ints{16, 32}, 16, 4); }) == "none");
  CHECK(error_of([&] { check_block_table(table, 3, Ints{17, 32}, 16, 4); }) == "E-VALUE");
  CHECK(error_of([&] { check_block_table(table, 3, Ints{16, 32}, 16, 3); }) == "E-VALUE");
  CHECK(error_of([&] { check_block_table(table, 3, Ints{0, 33}, 16, 4); }) == "E-VALUE");
  CHECK(error_of([&] { check_block_table(table, 3, Ints{0, 49}, 16, 4); }) == "E-SHAPE");
  CHECK(error_of([&] { check_block_table(table, 2, Ints{0, 0}, 16, 4); }) == "E-SHAPE");
}

TEST_CASE("slots are padding or distinct places inside the cache") {
  using Slots = std::vector<int64_t>;
  CHECK(error_of([] { check_slot_mapping(Slots{-1, 0, 31, -5, -1}, 2, 16); }) == "none");
  CHECK(error_of([] { check_slot_mapping(Slots{32}, 2, 16); }) == "E-VALUE");
  CHECK(error_of([] { check_slot_mapping(Slots{4, -1, 4}, 2, 16); }) == "E-VALUE");
}

TEST_CASE("a dividing scale is finite and positive") {
  CHECK(error_of([] { check_scale(1e-30F, "k_scale"); }) == "none");
  for (const float bad : {0.0F, -1.0F, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    CHECK(error_of([&] { check_scale(bad, "k_scale"); }) == "E-VALUE");
  }
}

TEST_CASE("contexts are what precedes the new tokens and never negative") {
  CHECK(context_lens_of(Ints{0, 2, 2, 5}, Ints{10, 0, 3}) == Ints{8, 0, 0});
  CHECK(error_of([] { context_lens_of(Ints{0, 2}, Ints{1}); }) == "E-VALUE");
  CHECK(error_of([] { context_lens_of(Ints{0, 2}, Ints{3, 4}); }) == "E-SHAPE");
}

TEST_CASE("key_start_loc is the exclusive sum of the sequence lengths") {
  CHECK(cumulative(Ints{5, 0, 7}) == Ints{0, 5, 5, 12});
  CHECK(error_of([] { check_key_start_loc(Ints{0, 5, 12}, Ints{5, 7}); }) == "none");
  CHECK(error_of([] { check_key_start_loc(Ints{0, 5, 11}, Ints{5, 7}); }) == "E-VALUE");
  CHECK(error_of([] { cumulative(Ints{2147483647, 1}); }) == "E-CAPACITY");
}

}  // namespace
}  // namespace attnbench
