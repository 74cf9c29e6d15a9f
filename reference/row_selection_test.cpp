#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "reference/row_selection.h"

namespace attnbench {
namespace {

Problem problem_with(std::vector<Request> batch, int num_heads = 8) {
  Problem problem;
  problem.attention.num_heads = num_heads;
  problem.attention.num_kv_heads = 2;
  problem.attention.head_size = 128;
  problem.attention.v_head_size = 128;
  problem.batch = std::move(batch);
  return problem;
}

bool is_sorted_and_unique(const std::vector<std::int32_t>& rows) {
  return std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) == rows.end();
}

bool contains(const std::vector<std::int32_t>& rows, std::int32_t row) {
  return std::binary_search(rows.begin(), rows.end(), row);
}

}  // namespace

TEST_CASE("a small case is checked on every row") {
  const auto rows = select_rows(problem_with({{3, 10}, {0, 5}, {4, 4}}), 1);
  CHECK(rows == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6});
}

TEST_CASE("a case without tokens has no rows") {
  CHECK(select_rows(problem_with({}), 1).empty());
  CHECK(select_rows(problem_with({{0, 0}}), 1).empty());
}

TEST_CASE("max_rows bounds the sample even when all rows are affordable") {
  Problem problem = problem_with({{100, 100}});
  problem.validation.max_rows = 7;
  CHECK(select_rows(problem, 1).size() == 7);
  problem.validation.max_rows = 1000;
  CHECK(select_rows(problem, 1).size() == 100);
}

TEST_CASE("a sample holds the first and last row of every request") {
  Problem problem = problem_with({{100, 300}, {1, 50}, {64, 64}, {2, 9}});
  problem.validation.max_rows = 12;
  const auto rows = select_rows(problem, 5);
  CHECK(rows.size() == 12);
  CHECK(is_sorted_and_unique(rows));
  for (const std::int32_t row : {0, 99, 100, 101, 164, 165, 166}) CHECK(contains(rows, row));
}

TEST_CASE("when max_rows is below the number of ends, only ends are taken") {
  Problem problem = problem_with({{100, 100}, {100, 100}});
  problem.validation.max_rows = 3;
  const std::set<std::int32_t> ends{0, 99, 100, 199};
  for (const std::int32_t row : select_rows(problem, 9)) CHECK(ends.count(row) == 1);
}

TEST_CASE("an unaffordable prefill is sampled at page and tile edges and between them") {
  Problem problem = problem_with({{8192, 65536}}, 32);
  problem.kv_cache.block_size = 256;
  const auto rows = select_rows(problem, 3);
  REQUIRE(rows.size() >= 64);
  CHECK(rows.size() < 8192);
  CHECK(is_sorted_and_unique(rows));
  CHECK(contains(rows, 0));
  CHECK(contains(rows, 8191));
  const auto distance_to_edge = [](std::int32_t row) { return std::min(row % 64, 64 - row % 64); };
  const auto edges = std::count_if(rows.begin(), rows.end(),
                                   [&](std::int32_t row) { return distance_to_edge(row) <= 1; });
  CHECK(edges > static_cast<std::ptrdiff_t>(rows.size() / 3));
  CHECK(edges < static_cast<std::ptrdiff_t>(rows.size() * 2 / 3));
}

TEST_CASE("the work of a sample is bounded once it has 64 rows") {
  // One row costs 2 * 64 * 256 * 131072 = 4.3 GFLOP, so that 64 rows exceed any budget of seconds.
  const auto rows = select_rows(problem_with({{4096, 131072}}, 64), 3);
  CHECK(rows.size() == 64);
}

TEST_CASE("a window makes long sequences affordable") {
  Problem problem = problem_with({{4096, 131072}}, 64);
  problem.attention.sliding_window = 128;
  CHECK(select_rows(problem, 3).size() == 4096);
}

TEST_CASE("the sample is a function of the seed alone") {
  Problem problem = problem_with({{5000, 5000}});
  problem.validation.max_rows = 100;
  CHECK(select_rows(problem, 11) == select_rows(problem, 11));
  CHECK(select_rows(problem, 11) != select_rows(problem, 12));
}

TEST_CASE("a quarter of a drawn sample is that of every other draw") {
  Problem problem = problem_with({{100, 300}, {1, 50}, {64, 64}, {2, 9}});
  problem.validation.max_rows = 40;
  const RowSample first = sample_rows(problem, 1);
  const RowSample second = sample_rows(problem, 2);
  CHECK(first.rows.size() == 40);
  CHECK(is_sorted_and_unique(first.rows));
  CHECK(first.repeated.size() == 10);
  CHECK(first.repeated == second.repeated);
  CHECK(first.rows != second.rows);
  CHECK(first.rows == sample_rows(problem, 1).rows);
  for (const std::int32_t row : first.repeated) CHECK(contains(first.rows, row));
  for (const std::int32_t row : {0, 99, 100, 101, 164, 165, 166}) CHECK(contains(first.rows, row));
}

TEST_CASE("a sample of all rows repeats all of them") {
  const RowSample sample = sample_rows(problem_with({{3, 10}}), 1);
  CHECK(sample.rows == std::vector<std::int32_t>{0, 1, 2});
  CHECK(sample.repeated == sample.rows);
}

TEST_CASE("a smaller budget takes fewer rows, and its least") {
  const Problem problem = problem_with({{4096, 65536}}, 32);
  const RowSample usual = sample_rows(problem, 1);
  const RowSample small = sample_rows(problem, 1, {1e9, 16});
  CHECK(usual.rows.size() >= 64);
  CHECK(small.rows.size() == 16);
}

}  // namespace attnbench
