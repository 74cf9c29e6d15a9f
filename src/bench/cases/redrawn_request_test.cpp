#include "bench/cases/redrawn_request.h"

#include <doctest/doctest.h>

#include <cstring>

#include "core/problem/problem.h"

namespace attnbench::redrawn_request_test {
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

TEST_CASE("judged rows read the keys of the batch where the redraw has them from") {
  Problem problem = small_problem();
  problem.batch = {{1, 64}, {2, 80}, {1, 48}};
  const AttentionInputs inputs = make_inputs(problem);
  const RedrawBlocks blocks = RedrawBlocks::of_rows(problem);
  const JudgedRequest one{1, 1, 2, {0, 1}};
  const std::size_t row_bytes = inputs.key.size_bytes() / static_cast<std::size_t>(192);
  int moved = 0;
  for (std::uint64_t nonce = 1; nonce < 20; ++nonce) {
    const AttentionInputs copied = redrawn_request(inputs, one, nonce, blocks);
    const RedrawnRows redrawn = redrawn_rows(inputs, one, nonce, blocks);
    CHECK(redrawn.inputs.key.bytes() == inputs.key.bytes());
    CHECK(redrawn.inputs.key_start_loc[0] == 64);
    CHECK(redrawn.inputs.seq_lens == copied.seq_lens);
    REQUIRE(redrawn.inputs.query.size_bytes() == copied.query.size_bytes());
    CHECK(std::memcmp(redrawn.inputs.query.bytes(), copied.query.bytes(),
                      copied.query.size_bytes()) == 0);
    for (std::int64_t key = 0; key < 80; ++key) {
      std::int64_t from = 64 + key;
      for (const MovedKeys& keys : redrawn.moved) {
        if (key < keys.first || key >= keys.first + keys.count) continue;
        from = keys.source + key - keys.first;
        ++moved;
      }
      const auto own = static_cast<std::size_t>(key) * row_bytes;
      const auto source = static_cast<std::size_t>(from) * row_bytes;
      CHECK(std::memcmp(copied.key.bytes() + own, inputs.key.bytes() + source, row_bytes) == 0);
      CHECK(std::memcmp(copied.value.bytes() + own, inputs.value.bytes() + source, row_bytes) == 0);
    }
  }
  CHECK(moved > 0);
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

TEST_CASE("a sample of a batch without new tokens has nothing to judge") {
  Problem problem = small_problem();
  problem.batch = {{0, 0}, {0, 20}};
  int judged = 0;
  const std::optional<SampleVerdict> verdict =
      judge_drawn(problem, {}, [&](const JudgedRequest&, const ReferenceOptions&) {
        ++judged;
        return std::optional<Judgement>();
      });
  REQUIRE(verdict.has_value());
  CHECK_FALSE(verdict->is_judged);
  CHECK(judged == 0);
}

}  // namespace attnbench::redrawn_request_test
