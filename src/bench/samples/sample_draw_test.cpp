#include "bench/samples/sample_draw.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "metadata/int_math.h"

namespace attnbench::sample_draw_test {
namespace {

Problem problem_of(std::vector<Request> batch, int heads = 32, int kv_heads = 8) {
  Problem problem;
  problem.attention.num_heads = heads;
  problem.attention.num_kv_heads = kv_heads;
  problem.attention.head_size = problem.attention.v_head_size = 128;
  problem.batch = std::move(batch);
  return problem;
}

std::vector<int> heads_of(const JudgedRequest& one, int all) {
  if (!one.heads.empty()) return one.heads;
  std::vector<int> heads;
  for (int head = 0; head < all; ++head) heads.push_back(head);
  return heads;
}

/// Rows times heads times keys that the reference computes.
std::int64_t cost_of(const Problem& problem, const std::vector<JudgedRequest>& drawn) {
  std::int64_t cost = 0;
  for (const JudgedRequest& one : drawn) {
    const auto heads = std::ssize(heads_of(one, problem.attention.num_heads));
    cost +=
        std::ssize(one.rows) * heads * problem.batch[static_cast<std::size_t>(one.request)].seq_len;
  }
  return cost;
}

const std::vector<std::vector<Request>> kBatches = {
    std::vector<Request>(16, {1, 1000}),      std::vector<Request>(16, {1, 40'960}),
    std::vector<Request>(64, {1, 40'960}),    std::vector<Request>(200, {1, 131'072}),
    std::vector<Request>(64, {1, 2'000'000}), std::vector<Request>(10, {512, 40'960}),
    std::vector<Request>(4, {512, 131'072}),  {{512, 131'072}}};

}  // namespace

TEST_CASE("every request of a sample is looked at, in as many rows and heads as it can afford") {
  const auto looks = [](const std::vector<Request>& batch) {
    const Problem problem = problem_of(batch);
    std::set<std::int64_t> requests;
    const std::vector<JudgedRequest> drawn = SampleDraw(problem, 1).next();
    for (const JudgedRequest& one : drawn) {
      requests.insert(one.request);
      CHECK_FALSE(one.rows.empty());
      CHECK(std::is_sorted(one.rows.begin(), one.rows.end()));
      CHECK(one.rows.back() < one.num_rows);
      CHECK(one.heads.size() < 32);
    }
    REQUIRE(requests.size() == drawn.size());
    return std::pair{requests.size(), drawn[0].heads.size()};
  };
  using Looks = std::pair<std::size_t, std::size_t>;
  CHECK(looks(std::vector<Request>(16, {1, 1000})) == Looks{16, 0});  // all heads
  CHECK(looks(std::vector<Request>(64, {1, 2000})) == Looks{64, 8});
  CHECK(looks(std::vector<Request>(16, {1, 40'960})) == Looks{16, 1});
  CHECK(looks({{4096, 200'000}}) == Looks{1, 5});
  CHECK(looks({{4096, 200'000}, {0, 100}}) == Looks{1, 5});
  // More keys than anyone can afford.
  CHECK(looks(std::vector<Request>(64, {1, 2'000'000})) == Looks{16, 1});
  CHECK(SampleDraw(problem_of({{0, 100}}), 1).next().empty());
}

TEST_CASE("what the reference computes of a sample is bounded") {
  for (const std::vector<Request>& batch : kBatches) {
    CAPTURE(batch.size());
    CAPTURE(batch.front().seq_len);
    const Problem problem = problem_of(batch);
    SampleDraw draw(problem, 3);
    for (int sample = 0; sample < 8; ++sample) {
      // But for one row and head each of sixteen requests that are longer still.
      CHECK(cost_of(problem, draw.next()) <= std::int64_t{1} << 25);
    }
  }
}

TEST_CASE("the samples of a run share heads and requests, KV heads first") {
  SampleDraw heads(problem_of(std::vector<Request>(16, {1, 40'960})), 2);
  std::vector<std::set<int>> kv_heads(16);
  for (int sample = 0; sample < 8; ++sample) {
    for (const JudgedRequest& one : heads.next()) {
      for (const int head : one.heads) {
        CHECK(kv_heads[static_cast<std::size_t>(one.request)].insert(head / 4).second);
      }
    }
  }
  SampleDraw long_ones(problem_of(std::vector<Request>(64, {1, 2'000'000})), 2);
  std::set<std::int64_t> requests;
  for (int sample = 0; sample < 4; ++sample) {
    for (const JudgedRequest& one : long_ones.next()) CHECK(requests.insert(one.request).second);
  }
  CHECK(requests.size() == 64);
}

TEST_CASE("another seed draws other rows and heads") {
  const Problem problem = problem_of(std::vector<Request>(10, {512, 40'960}));
  std::set<std::vector<std::int32_t>> rows;
  std::set<std::vector<int>> heads;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<JudgedRequest> drawn = SampleDraw(problem, seed).next();
    const auto first = std::find_if(drawn.begin(), drawn.end(),
                                    [](const JudgedRequest& one) { return one.request == 0; });
    rows.insert(first->rows);
    heads.insert(first->heads);
  }
  CHECK(rows.size() > 15);
  CHECK(heads.size() > 10);
}

namespace {

/// Of a part of the work, whether it is left out.
using LeftOut = std::function<bool(int sample, std::int64_t request, std::int64_t row, int head)>;

/// How many of `runs` runs judge eight samples and see nothing of it. In `make` it is drawn anew.
int missed(const std::vector<Request>& batch, int runs,
           const std::function<LeftOut(std::mt19937_64& random)>& make) {
  const Problem problem = problem_of(batch);
  std::mt19937_64 random(1);
  int missed = 0;
  for (int run = 0; run < runs; ++run) {
    const LeftOut left_out = make(random);
    SampleDraw draw(problem, random());
    bool seen = false;
    for (int sample = 0; sample < 8 && !seen; ++sample) {
      for (const JudgedRequest& one : draw.next()) {
        for (const std::int32_t row : one.rows) {
          for (const int head : heads_of(one, 32)) {
            seen = seen || left_out(sample, one.request, row, head);
          }
        }
      }
    }
    missed += seen ? 0 : 1;
  }
  return missed;
}

}  // namespace

TEST_CASE("work that is left out of every sample is seen") {
  constexpr int kRuns = 400;
  for (const std::vector<Request>& batch : kBatches) {
    CAPTURE(batch.size());
    CAPTURE(batch.front().seq_len);
    const std::int64_t tenth = ceil_div(std::ssize(batch), 10);
    const std::int64_t rows = batch.front().query_len;
    const bool is_longest = batch.front().seq_len == 2'000'000;
    CHECK(missed(batch, kRuns, [&](std::mt19937_64&) {
            return [=](int, std::int64_t request, std::int64_t, int) { return request < tenth; };
          }) == 0);
    CHECK(missed(batch, kRuns, [&](std::mt19937_64&) {
            return [](int, std::int64_t request, std::int64_t, int) { return request == 0; };
          }) == 0);
    // Three heads of 32 of every request.
    CHECK(missed(batch, kRuns, [&](std::mt19937_64& random) {
            const auto first = static_cast<int>(random() % 29);
            return [=](int, std::int64_t, std::int64_t, int head) {
              return head >= first && head < first + 3;
            };
          }) == 0);
    CHECK(missed(batch, kRuns,
                 [&](std::mt19937_64& random) {
                   const auto kv_head = static_cast<int>(random() % 8);
                   return [=](int, std::int64_t request, std::int64_t, int head) {
                     return request == 0 && head / 4 == kv_head;
                   };
                 }) <= (is_longest            ? 340
                        : batch.size() == 200 ? 190
                                              : 0));
    CHECK(missed(batch, kRuns,
                 [&](std::mt19937_64&) {
                   return [](int, std::int64_t request, std::int64_t, int head) {
                     return request == 0 && head % 2 == 0;
                   };
                 }) <= (is_longest            ? 140
                        : batch.size() == 200 ? 30
                                              : 8));
    if (rows == 1) continue;
    CHECK(missed(batch, kRuns, [&](std::mt19937_64&) {
            return
                [=](int, std::int64_t, std::int64_t row, int) { return row >= rows - rows / 10; };
          }) == 0);
  }
}

TEST_CASE("work that is left out of half of the samples is seen in most runs") {
  for (const std::vector<Request>& batch : kBatches) {
    CAPTURE(batch.size());
    CHECK(missed(batch, 1000, [](std::mt19937_64& random) {
            std::set<int> samples;
            for (int sample = 0; sample < 8; ++sample) {
              if (random() % 2 == 0) samples.insert(sample);
            }
            return [=](int sample, std::int64_t, std::int64_t, int) {
              return samples.contains(sample);
            };
          }) <= 15);
  }
}

TEST_CASE("a look at everything is known as such") {
  const Problem decodes = problem_of(std::vector<Request>(4, {1, 100}));
  CHECK(is_all_of(decodes, SampleDraw(decodes, 1).next()));
  const Problem prompts = problem_of({{100, 100}});
  CHECK_FALSE(is_all_of(prompts, SampleDraw(prompts, 1).next()));
  CHECK_FALSE(is_all_of(decodes, {{0, 0, 1, {0}, {1}}}));
}

TEST_CASE("all rows are screened where that is affordable, else some tiles of them") {
  for (const std::vector<Request>& batch :
       {std::vector<Request>(16, {1, 40'960}), std::vector<Request>(64, {1, 131'072}),
        std::vector<Request>(2, {4096, 4096})}) {
    const Problem problem = problem_of(batch);
    CAPTURE(batch.front().seq_len);
    const std::vector<std::int32_t> rows = draw_screened_rows(problem, 1);
    CHECK(std::ssize(rows) == problem.num_tokens());
    CHECK(std::is_sorted(rows.begin(), rows.end()));
  }
  // 2.2 TFLOP with the mask, and twice as many without it.
  Problem prompt = problem_of({{16'384, 16'384}});
  std::vector<int> seen(16'384);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<std::int32_t> rows = draw_screened_rows(prompt, seed);
    CHECK(rows.size() > 16'384 / 3);
    CHECK(rows.size() < 16'384 / 2);
    CHECK(std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) == rows.end());
    for (const std::int32_t row : rows) ++seen[static_cast<std::size_t>(row)];
  }
  CHECK(*std::min_element(seen.begin(), seen.end()) > 0);
  CHECK(*std::max_element(seen.begin(), seen.end()) < 20);
  const std::size_t with_mask = draw_screened_rows(prompt, 1).size();
  prompt.attention.causal = false;
  CHECK(draw_screened_rows(prompt, 1).size() < with_mask * 2 / 3);
  prompt.attention.causal = true;
  prompt.attention.sliding_window = 1024;
  CHECK(draw_screened_rows(prompt, 1).size() == 16'384);
  // One tile that costs too much is screened all the same.
  CHECK(draw_screened_rows(problem_of({{1, 2'000'000'000}}), 1).size() == 1);
}

TEST_CASE("suspicious rows are judged in all heads, beside others of their request") {
  const Problem problem = problem_of({{1, 10}, {2, 20}, {800, 900}});
  const std::vector<JudgedRequest> judged = judged_with_others(problem, {0, 5, 400});
  REQUIRE(judged.size() == 2);
  CHECK(judged[0].request == 0);
  CHECK(judged[0].rows == std::vector<std::int32_t>{0});
  CHECK(judged[1].request == 2);
  CHECK(judged[1].first_row == 3);
  CHECK(judged[1].num_rows == 800);
  CHECK(judged[1].heads.empty());
  CHECK(judged[1].rows.size() == 10);
  for (const std::int32_t row : {2, 397, 750}) {
    CHECK(std::binary_search(judged[1].rows.begin(), judged[1].rows.end(), row));
  }
  CHECK(judged_with_others(problem, {}).empty());
}

}  // namespace attnbench::sample_draw_test
