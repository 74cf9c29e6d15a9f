#include "reference/row_blocks.h"

#include <doctest/doctest.h>

#include <map>
#include <numeric>
#include <utility>

namespace attnbench {
namespace {

struct Plan {
  std::vector<std::int32_t> query_start_loc{0};
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int32_t> rows;
  std::vector<RowBlock> blocks;
};

/// Plan of all rows, or of every `stride`-th.
Plan plan_of(const AttentionMath& math, const std::vector<Request>& batch, int num_heads,
             int num_kv_heads, int stride = 1) {
  Plan plan;
  for (const Request& request : batch) {
    plan.query_start_loc.push_back(plan.query_start_loc.back() +
                                   static_cast<std::int32_t>(request.query_len));
    plan.seq_lens.push_back(static_cast<std::int32_t>(request.seq_len));
  }
  for (std::int32_t row = 0; row < plan.query_start_loc.back(); row += stride) {
    plan.rows.push_back(row);
  }
  plan.blocks = plan_row_blocks(
      math, {plan.query_start_loc, plan.seq_lens, num_heads, num_kv_heads}, plan.rows);
  return plan;
}

/// Whether every (row, head) is in exactly one block, with its request, one KV head and its keys.
bool covers_everything_once(const AttentionMath& math, const Plan& plan, int num_heads,
                            int num_kv_heads) {
  std::map<std::pair<std::int64_t, int>, int> visits;
  const int group_size = num_heads / num_kv_heads;
  for (const RowBlock& block : plan.blocks) {
    const int last_head = block.first_head + block.num_heads - 1;
    if (block.first_head / group_size != last_head / group_size) return false;
    const auto request = static_cast<std::size_t>(block.request);
    for (std::int64_t i = block.row_begin; i < block.row_end; ++i) {
      const std::int64_t row = plan.rows[static_cast<std::size_t>(i)];
      const std::int64_t query_end = plan.query_start_loc[request + 1];
      if (row < plan.query_start_loc[request] || row >= query_end) return false;
      const std::int64_t seq_len = plan.seq_lens[request];
      const KeyRange keys = visible_range(math, row - query_end + seq_len, seq_len);
      const bool empty = keys.begin == keys.end;
      if (!empty && (keys.begin < block.keys.begin || keys.end > block.keys.end)) return false;
      for (int head = block.first_head; head <= last_head; ++head) ++visits[{row, head}];
    }
  }
  for (const auto& visit : visits) {
    if (visit.second != 1) return false;
  }
  return visits.size() == plan.rows.size() * static_cast<std::size_t>(num_heads);
}

std::int64_t area(const RowBlock& block) {
  return block.num_matrix_rows() * (block.keys.end - block.keys.begin);
}

AttentionMath causal_math(std::int64_t window_left = -1) {
  AttentionMath math;
  math.window_left = window_left;
  math.window_right = 0;
  return math;
}

}  // namespace

TEST_CASE("blocks hold every row and head exactly once") {
  const std::vector<Request> batch{{300, 700}, {0, 0}, {1, 5000}, {9, 4}, {0, 12}, {70, 70}};
  for (const std::int64_t window : {-1, 0, 100}) {
    for (const auto& [heads, kv_heads] : {std::pair{8, 8}, {12, 4}, {7, 1}, {600, 2}}) {
      const AttentionMath math = causal_math(window);
      CHECK(covers_everything_once(math, plan_of(math, batch, heads, kv_heads), heads, kv_heads));
      CHECK(
          covers_everything_once(math, plan_of(math, batch, heads, kv_heads, 13), heads, kv_heads));
    }
  }
}

TEST_CASE("the scores of a block fit 16 MiB however long the keys are") {
  for (const std::int64_t seq_len : {2000, 50000, 1000000}) {
    const Plan plan = plan_of(causal_math(), {{64, seq_len}}, 128, 1);
    for (const RowBlock& block : plan.blocks) REQUIRE(area(block) * 8 <= 16 << 20);
  }
}

TEST_CASE("one long decode of many heads is work for several threads") {
  CHECK(plan_of(causal_math(), {{1, 65536}}, 128, 1).blocks.size() >= 4);
}

TEST_CASE("rows far apart under a window do not share a block") {
  const AttentionMath math = causal_math(127);
  const Plan plan = plan_of(math, {{100000, 100000}}, 1, 1, 1000);
  CHECK(plan.blocks.size() == plan.rows.size());
}

TEST_CASE("a causal prefill computes few scores that nobody sees") {
  const Plan plan = plan_of(causal_math(), {{4096, 4096}}, 1, 1);
  std::int64_t computed = 0;
  for (const RowBlock& block : plan.blocks) computed += area(block);
  CHECK(computed < 4096 * 4097 / 2 * 11 / 10);
  CHECK(plan.blocks.size() <= 2 * 4096 / 256);
}

TEST_CASE("the costliest block comes first") {
  const Plan plan = plan_of(causal_math(), {{10, 10}, {300, 3000}, {1, 9000}}, 4, 2);
  for (std::size_t i = 1; i < plan.blocks.size(); ++i) {
    CHECK(area(plan.blocks[i - 1]) >= area(plan.blocks[i]));
  }
}

TEST_CASE("visible ranges are disjoint, ascending and merged where they touch") {
  AttentionMath math = causal_math(1);
  math.mm_prefix_ranges = {{{20, 30}, {4, 9}, {9, 12}, {9, 99}}};
  std::vector<KeyRange> ranges;
  append_visible_ranges(math, 0, 9, 50, ranges);
  REQUIRE(ranges.size() == 1);
  CHECK(ranges[0].begin == 4);
  CHECK(ranges[0].end == 50);
  CHECK(count_visible(math, 0, 9, 50) == 46);
  // Position 25 sees 24 and 25 by its window, 20..30 by the first range and 9..49 by the last.
  CHECK(count_visible(math, 0, 25, 50) == 41);
  math.mm_prefix_ranges = {{{0, 90}}};
  math.window_left = 0;
  CHECK(count_visible(math, 0, 91, 200) == 1);
}

}  // namespace attnbench
