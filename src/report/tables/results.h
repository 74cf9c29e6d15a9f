// The table of results that `run` and `report` print in a terminal.
//
// It must stay readable at any width: cases are told apart by columns of what varies over them,
// with what they share said once above (result_grid.h), and what has no room is named. Numbers that
// deserve doubt have a sign, with a sentence below (marks.h). Texts that come from files or
// libraries are made printable, so that none can move the cursor. Whoever needs all numbers reads a
// file of report/formats.h.
//
//   every row: block_size 16
//   batch   kv.dtype  backend     status  max_abs  err_ratio  quant      time  roof  noise
//   4q1s1k  auto      FLASH_ATTN  passed  4.8e-04       0.22      -  839.2 us   62%   0.9%
//   4q1s1k  fp8       FLASH_ATTN  passed  4.8e-04       0.22   4.6%  816.4 us   92%   1.0%
//
//   2 passed in 12s
//
// A case has its scenario in front only where there are results of several scenarios. Colours only
// repeat what words and signs say, so that nothing is lost where there are none.
//
// The order of lines is that of the results: whoever looks for the worst reads the last lines,
// whose counts begin with what failed.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// Of every table for a terminal.
struct TableOptions {
  bool color = false;
  int width = 80;            // columns of the terminal; tables are made for 40 at least
  bool show_reasons = true;  // all reasons of unsupported results, else the first; and clocks
  std::string elapsed = "";  // how long the run took; empty = not said
  std::string next = "";     // what to do next where nothing is wrong; empty = nothing
};

/// One line a result, aligned and at most `width` columns wide, with the reasons under results that
/// are not passed; then the tables of cascade.h and peers.h, what the signs behind numbers mean,
/// the counts, worst first, and one line about what to do next: the command that repeats the worst
/// result, the option that shows more, or options.next.
void write_table(std::ostream& out, const RunInfo& run, const std::vector<Result>& results,
                 const TableOptions& options);

}  // namespace attnbench
