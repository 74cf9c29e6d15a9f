// Backends side by side: every case that several of them were timed on, with the ratio of each time
// to the best.
#pragma once

#include <cstddef>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// One backend on a case. Numbers that do not exist are NaN.
struct PeerCell {
  const Result* result = nullptr;
  double ratio = std::numeric_limits<double>::quiet_NaN();  // of medians: its own / the least
  /// Least and largest ratio of the medians of a round to those of the best one in the same round,
  /// where the two took turns.
  double least = std::numeric_limits<double>::quiet_NaN();
  double largest = std::numeric_limits<double>::quiet_NaN();
};

struct PeerCase {
  std::string scenario;
  std::string case_name;
  std::vector<PeerCell> cells;  // in the order of the results
  std::size_t rounds = 0;       // in which those with a time took turns; 0 = some did not
};

/// The cases with two times or more, in the order of the results.
std::vector<PeerCase> peer_cases(const std::vector<Result>& results);

/// Three lines a case, a column a backend, where any case was timed in turns; else nothing. Columns
/// that exceed `width` go into a table of their own.
void write_peer_table(std::ostream& out, const std::vector<Result>& results, std::size_t width);
/// The same as GitHub-flavoured Markdown.
void write_peer_markdown(std::ostream& out, const std::vector<Result>& results);

}  // namespace attnbench
