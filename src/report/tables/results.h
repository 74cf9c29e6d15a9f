// The table of results that `run` and `report` print in a terminal.
//
// It must stay readable at any width: columns that do not fit are left out, what says least of a
// result first (roofline, noise, err_ratio, rate), and only then are the names of cases shortened
// in the middle. Texts that come from files or libraries are made printable, so that none can move
// the cursor. Whoever needs all numbers reads a file of report/formats.h.
#pragma once

#include <ostream>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// Of every table for a terminal.
struct TableOptions {
  bool color = false;
  int width = 80;            // columns of the terminal; tables are made for 40 at least
  bool show_reasons = true;  // all reasons of unsupported results, else the first
};

/// One line a result, aligned and at most `width` columns wide, with the reasons under results that
/// are not passed; then the tables of cascade.h and peers.h, the counts, worst first, and what to
/// do next: the command that repeats the worst result, or the option that shows more.
void write_table(std::ostream& out, const RunInfo& run, const std::vector<Result>& results,
                 const TableOptions& options);

}  // namespace attnbench
