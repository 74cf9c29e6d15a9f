#include "bench/cases/redrawn_request.h"

#include <doctest/doctest.h>

#include <cstring>

#include "core/problem/problem.h"

namespace attnbench {
namespace {

Problem small_problem() {
  Problem problem;
  problem.batch = {{3, 20}, {5, 5}, {1, 40}};
  problem.attention.num_heads = 2;
  problem.attention.num_kv_heads = 1;
  problem.attention.head_size = problem.attention.v_head_size = 8;
  return problem;
}

bool same_row(const Tensor& a, const Tensor& b, std::int64_t row) {
  const std::size_t bytes = a.size_bytes() / static_cast<std::size_t>(a.dim(0));
  const std::size_t at = static_cast<std::size_t>(row) * bytes;
  return std::memcmp(a.bytes() + at, b.bytes() + at, bytes) == 0;
}

}  // namespace

TEST_CASE("the rows of a sample that are judged are those of the whole redraw") {
  const Problem problem = small_problem();
  const AttentionInputs inputs = make_inputs(problem);
  const RedrawBlocks blocks = RedrawBlocks::of_rows(problem);
  JudgedRequest one{1, 3, 5, {1, 4}};
  const AttentionInputs rows = redrawn_request(inputs, one, 77, blocks);
  const AttentionInputs whole = redrawn_whole_request(inputs, 1, 77);
  REQUIRE(rows.query.dim(0) == 5);
  CHECK(same_row(rows.query, whole.query, 1));
  CHECK(same_row(rows.query, whole.query, 4));
  CHECK_FALSE(same_row(rows.query, whole.query, 0));  // nobody reads it
  const AttentionInputs other = redrawn_whole_request(inputs, 1, 78);
  CHECK_FALSE(same_row(rows.query, other.query, 4));
  CHECK(rows.num_tokens() == 5);
  CHECK(rows.key.dim(0) == 5);
}

TEST_CASE("many requests and rows of a sample are looked at, few of long ones") {
  Problem problem = small_problem();
  problem.batch.assign(64, {1, 100});
  CHECK(draw_judged(problem).size() == 16);
  problem.batch.assign(64, {1, 30'000});
  CHECK(draw_judged(problem).size() == 2);
  problem.batch = {{4096, 200'000}};
  const std::vector<JudgedRequest> drawn = draw_judged(problem);
  REQUIRE(drawn.size() == 1);
  CHECK(drawn[0].rows.size() > 8);
}

}  // namespace attnbench
