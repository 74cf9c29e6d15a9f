// Where a pass of its own over a shared prefix pays: cases that were run with cascade.mode always
// and never, side by side by prefix length (semantics §6).
//
// Pairs are found by name and problem, so one result file may hold both modes or only one; what has
// no partner is simply not in the table. The speedup of one row usually crosses 1 once, at the
// prefix length from which a deployment should turn cascade on:
//
//   prefix    backend      128  1024  8192  pays from
//   32q1s16k  FLASH_ATTN  0.87  1.05  1.92       1024
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// One backend on cases that differ in nothing but cascade.common_prefix_len and cascade.mode.
struct CascadeRow {
  std::string scenario;
  std::string case_name;  // without the two
  std::string backend;
  std::map<std::int64_t, double> speedup;  // by prefix length: median with never / with always
  /// The least prefix length from which on every speedup exceeds 1.
  std::optional<std::int64_t> pays_from;
};

/// In the order of the results; only timed pairs count. Empty when no case was run both ways.
std::vector<CascadeRow> cascade_rows(const std::vector<Result>& results);

/// A line a row, a column a prefix length; `markdown` gives a GitHub-flavoured table. Nothing
/// without rows.
void write_cascade_table(std::ostream& out, const std::vector<Result>& results, bool markdown);

}  // namespace attnbench
