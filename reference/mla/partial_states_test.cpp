#include "reference/mla/partial_states.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "core/error.h"

namespace attnbench::partial_states_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// One row and head of one value.
ReferenceOutput state(double output, double lse) {
  ReferenceOutput result;
  result.rows = {0};
  result.num_heads = 1;
  result.v_head_size = 1;
  result.output = {output};
  result.lse = {lse};
  return result;
}

TEST_CASE("two partial results merge as in the golden values") {
  const auto merged = merge_partials(state(1, 0), state(3, std::log(3.0)), 1);
  CHECK(merged.output[0] == doctest::Approx(2.5));
  CHECK(merged.lse[0] == doctest::Approx(1.3862944));
  const auto empty_prefix = merge_partials(state(2, -kInfinity), state(5, 0.25), 1);
  CHECK(empty_prefix.output[0] == 5);
  CHECK(empty_prefix.lse[0] == 0.25);
}

TEST_CASE("an empty side may be marked by either infinity and hold NaN") {
  for (const double empty : {-kInfinity, kInfinity}) {
    CHECK(merge_partials(state(kNan, empty), state(5, 0.25), 1).output[0] == 5);
    CHECK(merge_partials(state(5, 0.25), state(kNan, empty), 1).output[0] == 5);
    const auto none = merge_partials(state(kNan, empty), state(kNan, empty), 1);
    CHECK(none.output[0] == 0);
    CHECK(none.lse[0] == -kInfinity);
  }
}

TEST_CASE("rows from merge_end on are the suffix as it is") {
  const auto result = merge_partials(state(kNan, kNan), state(5, kInfinity), 0);
  CHECK(result.output[0] == 5);
  CHECK(result.lse[0] == kInfinity);
}

TEST_CASE("an LSE that is NaN propagates through a merge and is empty for ranks") {
  CHECK(std::isnan(merge_partials(state(1, kNan), state(5, 0), 1).lse[0]));
  CHECK(std::isnan(merge_partials(state(1, kNan), state(5, 0), 1).output[0]));
  const std::vector<ReferenceOutput> ranks{state(1, kNan), state(5, 0), state(kNan, kInfinity)};
  CHECK(combine_partials(ranks).output[0] == 5);
  CHECK(combine_partials(ranks).lse[0] == 0);
}

TEST_CASE("several partial results combine to what one softmax over all of them is") {
  const std::vector<ReferenceOutput> parts{state(1, 0), state(2, std::log(2.0)),
                                           state(4, std::log(5.0))};
  const auto combined = combine_partials(parts);
  CHECK(combined.output[0] == doctest::Approx((1 + 2 * 2 + 4 * 5) / 8.0).epsilon(1e-14));
  CHECK(combined.lse[0] == doctest::Approx(std::log(8.0)).epsilon(1e-14));
}

TEST_CASE("ranks that are all empty give zero and minus infinity") {
  const std::vector<ReferenceOutput> ranks{state(kNan, -kInfinity), state(3, kInfinity)};
  CHECK(combine_partials(ranks).output[0] == 0);
  CHECK(combine_partials(ranks).lse[0] == -kInfinity);
}

TEST_CASE("a slice holds its own heads") {
  ReferenceOutput whole;
  whole.rows = {4, 9};
  whole.num_heads = 3;
  whole.v_head_size = 1;
  whole.output = {10, 11, 12, 20, 21, 22};
  whole.lse = {0, 1, 2, 3, 4, 5};
  const auto part = slice_heads(whole, 1, 3);
  CHECK(part.output == std::vector<double>{11, 12, 21, 22});
  CHECK(part.lse == std::vector<double>{2, 3, 4, 5});
  CHECK(part.rows == whole.rows);
}

TEST_CASE("partial results of different shapes are refused") {
  ReferenceOutput other = state(1, 0);
  other.rows = {1};
  CHECK_THROWS_AS(merge_partials(state(1, 0), other, 1), Error);
}

}  // namespace
}  // namespace attnbench::partial_states_test
