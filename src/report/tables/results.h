// The table of results that `run` and `report` print in a terminal.
//
// It must stay readable at any width: columns that do not fit are left out, what says least of a
// result first (roofline, noise, err_ratio, rate), and only then are the names of cases shortened
// in the middle. Texts that come from files or libraries are made printable, so that none can move
// the cursor. Whoever needs all numbers reads a file of report/formats.h.
//
//   case    backend     status  max_abs  err_ratio      time           rate   roof  noise
//   4q1s1k  FLASH_ATTN  passed  4.8e-04       0.22  839.2 us  10.00 GFLOP/s    62%   0.9%
//   q64     FLASH_ATTN  passed  7.7e-03       0.82  216.4 us   19.7 GFLOP/s    92%   1.0%
//
//   2 passed
//
// A case has its scenario in front only where there are results of several scenarios. Colours are
// of the status only, so that nothing is lost where there are none.
//
// The order of lines is that of the results: whoever looks for the worst reads the last lines,
// whose counts begin with what failed.
#pragma once

#include <ostream>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// Of every table for a terminal.
struct TableOptions {
  bool color = false;
  int width = 80;            // columns of the terminal; tables are made for 40 at least
  bool show_reasons = true;  // all reasons of unsupported results, else the first; and clocks
};

/// One line a result, aligned and at most `width` columns wide, with the reasons under results that
/// are not passed; then the tables of cascade.h and peers.h, the counts, worst first, and what to
/// do next: the command that repeats the worst result, or the option that shows more.
void write_table(std::ostream& out, const RunInfo& run, const std::vector<Result>& results,
                 const TableOptions& options);

}  // namespace attnbench
