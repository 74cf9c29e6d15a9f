// Which rows of a case are compared with the reference. A case of 100,000 keys would keep the
// float64 reference busy for hours, so only as many rows are computed as a few seconds allow, and
// the result file says how many they were (`checked_rows` of contract §4).
//
// How many they are depends on the problem and never on cores, devices or measured times. Which
// they are is drawn after the backend has run, but for a quarter that is the same in every run, so
// that what is compared between runs does not depend on the draw. They are also those at which
// kernels go wrong: ends of requests, edges of pages and tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/problem/problem.h"

namespace attnbench {

/// What the reference may cost: rows are taken while 2*H*(D+Dv)*(visible pairs) of them together is
/// at most `flops`, and until they are `least_rows`.
struct RowBudget {
  double flops = 45e9;  // about one and a half seconds on two cores
  std::size_t least_rows = 64;
};

/// Token rows of the batch, ascending and unique. All of them while the reference can afford them,
/// beyond that a sample drawn with `seed`, in which these come first, as far as there is room:
/// - the first and the last row of every request,
/// - rows at page and tile edges (positions k*block_size + {-1,0,1}, likewise for multiples of 64,
///   which include those of 128), by turns with all other rows.
/// With `validation.max_rows` given: min(T, max_rows) rows by the same order, whatever they cost.
std::vector<std::int32_t> select_rows(const Problem& problem, std::uint64_t seed,
                                      const RowBudget& budget = {});

/// Rows of two seeds.
struct RowSample {
  std::vector<std::int32_t> rows;      // ascending
  std::vector<std::int32_t> repeated;  // those of them that another drawn seed would give as well
};

/// As many rows as select_rows() takes, a quarter of them by the problem's seed and the rest by
/// `drawn_seed`.
RowSample sample_rows(const Problem& problem, std::uint64_t drawn_seed,
                      const RowBudget& budget = {});

}  // namespace attnbench
