#include "ops/plan_rows.h"

#include <doctest/doctest.h>

#include <vector>

#include "core/error.h"

namespace attnbench {

TEST_CASE("only requests with several splits have partial rows, one for each token and split") {
  // Splits 2, 1, 1, 3 of requests with 1, 1, 0 and 2 tokens.
  const std::vector<std::int32_t> num_splits{0, 2, 3, 4, 7};
  const std::vector<std::int32_t> query_start_loc{0, 1, 2, 2, 4};
  CHECK(plan_partial_start_loc(num_splits, query_start_loc) ==
        std::vector<attn::i64>{0, 2, 2, 2, 8});
}

TEST_CASE("a plan without requests has no partial rows") {
  const std::vector<std::int32_t> zero{0};
  CHECK(plan_partial_start_loc(zero, zero) == std::vector<attn::i64>{0});
}

TEST_CASE("a plan of another batch is refused") {
  const std::vector<std::int32_t> two{0, 1}, three{0, 1, 2};
  CHECK_THROWS_WITH_AS(plan_partial_start_loc(two, three),
                       "num_splits must be [3] like query_start_loc, got [2]", Error);
}

}  // namespace attnbench
