#include "bench/samples/redrawn_request.h"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "bench/cases/single_request.h"
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
  Tensor whole = inputs.query;
  redraw_signs(whole, 77, whole.num_elements());
  const RedrawnRows rows = redrawn_rows(inputs, {1, 3, 5, {1, 4}, {}}, 77, {});
  REQUIRE(rows.inputs.query.dim(0) == 2);
  CHECK(same_row(rows.inputs.query, slice_rows(whole, 4, 1), 0));
  CHECK(same_row(slice_rows(rows.inputs.query, 1, 1), slice_rows(whole, 7, 1), 0));
  CHECK_FALSE(same_row(rows.inputs.query, slice_rows(inputs.query, 4, 1), 0));
}

TEST_CASE("judged rows read the keys of the batch where the redraw has them from") {
  Problem problem = small_problem();
  problem.batch = {{1, 64}, {2, 80}, {1, 48}};
  const AttentionInputs inputs = make_inputs(problem);
  const RedrawBlocks blocks = RedrawBlocks::of_rows(problem);
  const JudgedRequest one{1, 1, 2, {0, 1}, {}};
  const std::size_t row_bytes = inputs.key.size_bytes() / static_cast<std::size_t>(192);
  int moved = 0;
  for (std::uint64_t nonce = 1; nonce < 20; ++nonce) {
    const std::vector<MovedRows> moves = blocks.moved_rows(1, nonce);
    AttentionInputs copied = keys_of_request(inputs, 1);
    move_rows(copied.key, inputs.key, inputs.key_start_loc, moves);
    move_rows(copied.value, inputs.value, inputs.key_start_loc, moves);
    const RedrawnRows redrawn = redrawn_rows(inputs, one, nonce, moves);
    CHECK(redrawn.inputs.key.bytes() == inputs.key.bytes());
    CHECK(redrawn.inputs.key_start_loc[0] == 64);
    CHECK(redrawn.inputs.seq_lens == copied.seq_lens);
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

TEST_CASE("an output has the rows and heads that are judged") {
  PipelineOutput output;
  output.output = Tensor(Dtype::kF32, {6, 3, 2});
  output.lse = Tensor(Dtype::kF32, {3, 6});
  for (std::int64_t i = 0; i < 36; ++i) output.output.set(i, static_cast<float>(i));
  for (std::int64_t i = 0; i < 18; ++i) output.lse->set(i, static_cast<float>(100 + i));
  const PipelineOutput all = output_of_request(output, {1, 2, 3, {1}, {}});
  CHECK(all.output.at(0) == 12);
  CHECK(all.lse->at(2 * 3 + 1) == 100 + 2 * 6 + 3);
  const PipelineOutput some = output_of_request(output, {1, 2, 3, {1}, {0, 2}});
  REQUIRE(some.output.shape() == std::vector<std::int64_t>{3, 2, 2});
  CHECK(some.output.at((1 * 2 + 1) * 2 + 1) == (3 * 3 + 2) * 2 + 1);
  CHECK(some.lse->at(1 * 3 + 1) == 100 + 2 * 6 + 3);
  const Tensor heads = only_heads(output.output, 0, {4});
  CHECK(heads.at(0) == 24);
}

TEST_CASE("the redraw of a batch is that of its rows") {
  Problem problem = small_problem();
  problem.batch = {{1, 64}, {30, 80}, {1, 48}};
  const AttentionInputs inputs = make_inputs(problem);
  Tensor whole = inputs.query;
  redraw_signs(whole, 5, inputs.num_tokens() * 16);
  const AttentionInputs redrawn = redrawn_batch(inputs, 5);
  REQUIRE(redrawn.query.size_bytes() == whole.size_bytes());
  CHECK(std::memcmp(redrawn.query.bytes(), whole.bytes(), whole.size_bytes()) == 0);
  CHECK(redrawn.key.bytes() == inputs.key.bytes());
  CHECK(redrawn.seq_lens == inputs.seq_lens);
}

TEST_CASE("places of all keys are those of every request's moved ones") {
  Problem problem = small_problem();
  problem.batch = {{1, 64}, {2, 80}, {1, 48}};
  const AttentionInputs inputs = make_inputs(problem);
  const RedrawBlocks blocks = RedrawBlocks::of_rows(problem);
  const std::uint64_t nonce = 11;
  const RedrawBlocks::Sources sources = blocks.sources(nonce);
  const auto places = places_of_keys(inputs.key_start_loc, 192, blocks, sources);
  REQUIRE(places);
  REQUIRE(places->size() == 192);
  std::int64_t moved = 0;
  for (std::int64_t b = 0; b < 3; ++b) {
    const std::int64_t first = inputs.key_start_loc[static_cast<std::size_t>(b)];
    const RedrawnRows own =
        redrawn_rows(inputs, {b, b == 2 ? 3 : b, 1, {0}, {}}, nonce, blocks.moved_rows(b, sources));
    for (std::int64_t key = 0; key < own.inputs.seq_lens[0]; ++key) {
      std::int64_t from = first + key;
      for (const MovedKeys& keys : own.moved) {
        if (key < keys.first || key >= keys.first + keys.count) continue;
        from = keys.source + key - keys.first;
        ++moved;
      }
      CHECK((*places)[static_cast<std::size_t>(first + key)] == from);
    }
  }
  CHECK(moved > 0);
  CHECK_FALSE(places_of_keys({0}, std::int64_t{1} << 31, blocks, sources));
}

}  // namespace attnbench::redrawn_request_test
