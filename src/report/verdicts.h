// A gate's verdicts -> table, Markdown for a pull request, JUnit, JSON.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "core/result/result.h"
#include "core/result/verdict.h"
#include "report/reporter.h"

namespace attnbench {

/// Worst first, with the rule under each; cases that are the same only with `show_reasons`. Then
/// the counts, whether the gate passes, and what to do next.
void write_verdict_table(std::ostream& out, const GateReport& report, const TableOptions& options);

/// What a pull request comment needs and can hold (GitHub takes 65,536 characters).
struct SummaryOptions {
  std::vector<std::string> links;  // URLs or paths of artefacts
  std::size_t max_rows = 20;       // of the worst cases; as many again are folded away
};
/// Counts, the worst cases, links to artefacts, where and with what it ran; `report` is null for a
/// run without baseline.
void write_summary(std::ostream& out, const RunInfo& run, const std::vector<Result>& results,
                   const GateReport* report, const SummaryOptions& options);

/// A testsuite a scenario; a verdict that fails is a <failure>, a known one <skipped>.
void write_verdict_junit(std::ostream& out, const RunInfo& run, const GateReport& report);

/// Every verdict with its rule: {"schema_version", "tool", "created", "passed", "counts",
/// "verdicts": [{"id", "verdict", "fails", "before_us", "after_us", "ratio", "rule", "known"}]}.
void write_verdict_json(std::ostream& out, const RunInfo& run, const GateReport& report);

}  // namespace attnbench
