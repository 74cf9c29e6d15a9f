#include "metadata/mask/visible_pairs.h"

#include <vector>

#include "metadata/test_support.h"

namespace attnbench {
namespace {

using Ranges = std::vector<MmRange>;
using Keys = std::vector<int64_t>;

/// The mask of one row, literally from the definitions.
Keys allowed_keys(const VisibleArgs& args, const Ranges& ranges, int64_t row) {
  const int64_t p = row + args.seq_len - args.query_len;
  Keys keys;
  for (int64_t j = 0; j < args.seq_len; ++j) {
    bool allowed = (args.window_left < 0 || j >= p - args.window_left) &&
                   (args.window_right < 0 || j <= p + args.window_right) &&
                   (!args.causal || j <= p);
    for (const auto& [start, end] : ranges) {
      allowed = allowed || (start < end && start <= p && p <= end && start <= j && j <= end);
    }
    if (allowed) keys.push_back(j);
  }
  return keys;
}

int64_t count_by_definition(const VisibleArgs& args, const Ranges& ranges) {
  int64_t pairs = 0;
  for (int64_t row = 0; row < args.query_len; ++row) {
    pairs += static_cast<int64_t>(allowed_keys(args, ranges, row).size());
  }
  return pairs;
}

/// Keys that row `row` alone sees, from the difference of two counts: the rows from `row` on are
/// the same rows in a batch with fewer queries.
int64_t pairs_of_row(VisibleArgs args, int64_t row, const Ranges& ranges = {}) {
  args.query_len -= row;
  const int64_t from_row = visible_pairs(args, ranges);
  args.query_len -= 1;
  return from_row - visible_pairs(args, ranges);
}

TEST_CASE("mm_prefix rows see the golden keys") {
  const VisibleArgs args = {.query_len = 6, .seq_len = 6, .window_left = 1, .window_right = 0};
  const Ranges ranges = {{1, 4}};
  const std::vector<Keys> golden = {{0},          {0, 1, 2, 3, 4}, {1, 2, 3, 4},
                                    {1, 2, 3, 4}, {1, 2, 3, 4},    {4, 5}};
  for (int64_t row = 0; row < 6; ++row) {
    const Keys& expected = golden[static_cast<size_t>(row)];
    CHECK(allowed_keys(args, ranges, row) == expected);
    CHECK(pairs_of_row(args, row, ranges) == static_cast<int64_t>(expected.size()));
  }
  const int64_t plain = visible_pairs(args);
  CHECK(visible_pairs(args, Ranges{{3, 3}}) == plain);
  CHECK(visible_pairs(args, Ranges{{0, 0}}) == plain);
  CHECK(visible_pairs(args, Ranges{{0, 1}}) == plain + 1);
}

TEST_CASE("windows show the golden keys") {
  const VisibleArgs encoder = {5, 5, false, 2, 2};
  CHECK(pairs_of_row(encoder, 0) == 3);
  CHECK(pairs_of_row(encoder, 2) == 5);
  CHECK(pairs_of_row(encoder, 4) == 3);
  const VisibleArgs decoder = {5, 5, true, 2, 0};
  CHECK(pairs_of_row(decoder, 4) == 3);
  CHECK(pairs_of_row(decoder, 1) == 2);
}

TEST_CASE("visible pairs equal the mask counted by definition") {
  Draw draw(4);
  for (int round = 0; round < 20000; ++round) {
    const int sk = draw(0, 14);
    VisibleArgs args = {draw(0, 18), sk, draw(0, 1) == 1, draw(-1, 16), draw(-1, 16)};
    Ranges ranges;
    for (int r = draw(-2, 3); r > 0; --r) {
      const int start = draw(0, 15);
      ranges.push_back({start, start + draw(0, 8)});
    }
    CAPTURE(args.query_len);
    CAPTURE(args.seq_len);
    CAPTURE(args.causal);
    CAPTURE(args.window_left);
    CAPTURE(args.window_right);
    REQUIRE(visible_pairs(args, ranges) == count_by_definition(args, ranges));
  }
}

TEST_CASE("the largest lengths are counted without overflow") {
  const int64_t n = 2147483647;
  CHECK(visible_pairs({n, n, true, -1, -1}) == n * (n + 1) / 2);
  CHECK(visible_pairs({n, n, false, -1, -1}) == n * n);
  CHECK(visible_pairs({n, n, true, INT64_MAX, INT64_MAX}) == n * (n + 1) / 2);
  CHECK(visible_pairs({n, n, true, 0, 0}) == n);
  CHECK(error_of([&] { visible_pairs({n, n + 1, true, -1, -1}); }) == "E-CAPACITY");
  CHECK(error_of([] { visible_pairs({-1, 4, true, -1, -1}); }) == "E-VALUE");
}

}  // namespace
}  // namespace attnbench
