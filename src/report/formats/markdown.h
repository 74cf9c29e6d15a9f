// GitHub-flavoured Markdown: the table of a run, and the summary that a bot posts under a pull
// request.
//
// Names, reasons and paths come from files of users and from libraries, so every text goes through
// markdown_cell() or printable() first: none can end a cell, open a tag or reach the terminal of
// whoever prints the file.
//
//   | case | backend | status | max_abs | err_ratio | time | rate | roof | peak | noise | reasons |
//   |---|---|---|---:|---:|---:|---:|---:|---:|---:|---|
//   | demo/q64 | FLASH_ATTN | passed | 7.7e-03 | 0.82 | 216.4 us | 19.7 GFLOP/s | 92% |  | 1.0% | |
#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

#include "core/result/result.h"
#include "core/result/verdict.h"

namespace attnbench {

/// A row a result with its reasons, then the tables of shared prefixes and of backends side by side
/// where there is something to compare, a line of counts, and which program ran on what: a table
/// that is pasted somewhere must still say where its times are from.
void write_markdown(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);

/// What a pull request comment needs and can hold: GitHub takes 65,536 characters, so rows are
/// counted and texts in cells cut to 300 characters in the middle.
struct SummaryOptions {
  std::vector<std::string> links;  // URLs or paths of artefacts
  std::size_t max_rows = 20;       // of the worst cases; as many again are folded away
};

/// The outcome as a heading, counts, the worst cases, the command that repeats the worst of them,
/// links to artefacts, where and with what it ran. `report` is null for a run without baseline.
void write_summary(std::ostream& out, const RunInfo& run, const std::vector<Result>& results,
                   const GateReport* report, const SummaryOptions& options);

}  // namespace attnbench
