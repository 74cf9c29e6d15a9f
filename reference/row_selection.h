// Which rows of a case are compared with the reference. A case of 100,000 keys would keep the
// float64 reference busy for hours, so only as many rows are computed as about two seconds allow,
// and the result file says how many they were (`checked_rows` of contract §4).
//
// The choice must be the same on every machine and for every backend of a case: it depends on the
// problem and its seed, never on cores, devices or measured times. Otherwise two results of one
// case would be judged by different rows, and the gate would compare what cannot be compared. The
// rows are also those at which kernels go wrong: ends of requests, edges of pages and tiles.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem/problem.h"

namespace attnbench {

/// Token rows of the batch, ascending and unique. All of them while the reference can afford them:
/// 2*H*(D+Dv)*(visible pairs) of the rows together is at most 60 GFLOP. Beyond that a sample drawn
/// with `seed`, of at least 64 rows, in which these come first, as far as there is room:
/// - the first and the last row of every request,
/// - rows at page and tile edges (positions k*block_size + {-1,0,1}, likewise for multiples of 64,
///   which include those of 128), by turns with all other rows.
/// With `validation.max_rows` given: min(T, max_rows) rows by the same order, whatever they cost.
std::vector<std::int32_t> select_rows(const Problem& problem, std::uint64_t seed);

}  // namespace attnbench
