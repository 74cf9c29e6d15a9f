#include "bench/cases/redrawn_request.h"

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <iterator>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "bench/cases/single_request.h"
#include "core/problem/problem.h"
#include "metadata/int_math.h"

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

TEST_CASE("every request of a sample is looked at, a few in all heads and many rows") {
  std::mt19937_64 random(1);
  Problem problem = small_problem();
  problem.attention.num_heads = 32;
  const auto counts = [&](std::vector<Request> batch) {
    problem.batch = std::move(batch);
    std::set<std::int64_t> requests;
    std::size_t whole = 0;
    for (const JudgedRequest& one : draw_judged(problem, random)) {
      requests.insert(one.request);
      whole += one.heads.empty() ? 1 : 0;
      CHECK_FALSE(one.rows.empty());
    }
    return std::pair{requests.size(), whole};
  };
  using Counts = std::pair<std::size_t, std::size_t>;
  CHECK(counts(std::vector<Request>(64, {1, 100})) == Counts{64, 64});
  CHECK(counts(std::vector<Request>(64, {1, 30'000})) == Counts{64, 2});
  CHECK(counts(std::vector<Request>(16, {1, 40'960})) == Counts{16, 1});
  CHECK(counts({{4096, 200'000}}) == Counts{1, 1});
  // More keys than anyone can afford: still more than a tenth of wrong ones could hide among.
  CHECK(counts(std::vector<Request>(64, {1, 2'000'000})) == Counts{16, 1});
  problem.batch = {{4096, 200'000}, {0, 100}};
  const std::vector<JudgedRequest> drawn = draw_judged(problem, random);
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

namespace {

/// Of a part of the work, whether it is left out.
using LeftOut = std::function<bool(std::int64_t request, std::int64_t row, int head)>;

/// How many of 2,000 runs judge three samples and see nothing of it. In `make` it is drawn anew.
int missed(const std::vector<Request>& batch, int heads,
           const std::function<LeftOut(std::mt19937_64& random)>& make) {
  Problem problem = small_problem();
  problem.attention.num_heads = heads;
  problem.batch = batch;
  std::mt19937_64 random(1);
  int missed = 0;
  for (int run = 0; run < 2000; ++run) {
    const LeftOut left_out = make(random);
    bool seen = false;
    for (int sample = 0; sample < 3 && !seen; ++sample) {
      for (const JudgedRequest& one : draw_judged(problem, random)) {
        std::vector<int> judged = one.heads;
        for (int head = 0; one.heads.empty() && head < heads; ++head) judged.push_back(head);
        for (const std::int32_t row : one.rows) {
          for (const int head : judged) seen = seen || left_out(one.request, row, head);
        }
      }
    }
    missed += seen ? 0 : 1;
  }
  return missed;
}

}  // namespace

TEST_CASE("a tenth of the work that is left out is seen at any length") {
  const std::vector<std::vector<Request>> batches = {
      std::vector<Request>(16, {1, 1000}),      std::vector<Request>(16, {1, 40'960}),
      std::vector<Request>(64, {1, 40'960}),    std::vector<Request>(200, {1, 131'072}),
      std::vector<Request>(64, {1, 2'000'000}), std::vector<Request>(10, {512, 40'960}),
      std::vector<Request>(4, {512, 131'072}),  {{512, 131'072}}};
  for (const std::vector<Request>& batch : batches) {
    const auto requests = std::ssize(batch);
    CAPTURE(requests);
    CAPTURE(batch.front().seq_len);
    // Requests, always the same ones.
    const std::int64_t tenth = ceil_div(requests, 10);
    CHECK(missed(batch, 32, [&](std::mt19937_64&) {
            return [=](std::int64_t request, std::int64_t, int) { return request < tenth; };
          }) < 20);
    // Three heads of 32 of every request.
    CHECK(missed(batch, 32, [&](std::mt19937_64& random) {
            const auto first = static_cast<int>(random() % 29);
            return [=](std::int64_t, std::int64_t, int head) {
              return head >= first && head < first + 3;
            };
          }) == 0);
    // The last tenth of the rows of every request that has more than one.
    const std::int64_t rows = batch.front().query_len;
    if (rows > 1) {
      CHECK(missed(batch, 32, [&](std::mt19937_64&) {
              return [=](std::int64_t, std::int64_t row, int) { return row >= rows - rows / 10; };
            }) < 20);
    }
  }
}

}  // namespace attnbench::redrawn_request_test
