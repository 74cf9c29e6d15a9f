// Where a pass of its own over a shared prefix pays: cases that were run with cascade.mode always
// and never, side by side by prefix length (semantics §6).
//
// Pairs are found by name and problem, so one result file may hold both modes or only one; what has
// no partner is simply not in the table. The speedup of one row usually crosses 1 once, at the
// prefix length from which a deployment should turn cascade on:
//
//   prefix    backend      128  1024  8192  pays from
//   32q1s16k  FLASH_ATTN  0.87  1.05  1.92       1024
//
// Behind it, where the results say what cascade.mode auto would have chosen (§6.1, with the
// device's multiprocessors), both times of every pair and whether that choice was the faster one:
//
//   prefix    backend     keys  plain us  cascade us  heuristic
//   32q1s16k  FLASH_ATTN  1024      31.0        29.5  plain
//   32q1s16k  FLASH_ATTN  8192      60.2        31.4  plain: heuristic wrong here
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// Both ways of one pair of cases.
struct CascadePair {
  double plain_us = 0;
  double cascade_us = 0;
  std::optional<bool> heuristic;  // whether auto would attend the prefix apart; empty = not known

  /// Whether what the heuristic did not choose is faster by more than 5 %.
  bool is_heuristic_wrong() const;
};

/// One backend on cases that differ in nothing but cascade.common_prefix_len and cascade.mode.
struct CascadeRow {
  std::string scenario;
  std::string case_name;  // without the two
  std::string backend;
  std::map<std::int64_t, double> speedup;     // by prefix length: median with never / with always
  std::map<std::int64_t, CascadePair> pairs;  // by prefix length
  /// The least prefix length from which on every speedup exceeds 1.
  std::optional<std::int64_t> pays_from;
};

/// In the order of the results; only timed pairs count. Empty when no case was run both ways.
std::vector<CascadeRow> cascade_rows(const std::vector<Result>& results);

/// A line a row, a column a prefix length; then a line a pair where the heuristic's choice is
/// known. `markdown` gives GitHub-flavoured tables. Nothing without rows.
void write_cascade_table(std::ostream& out, const std::vector<Result>& results, bool markdown);

}  // namespace attnbench
