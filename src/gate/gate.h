// Results against a baseline -> verdicts: what got worse, by which rule, and whether that fails.
//
// A gate must not cry wolf: one false alarm a week and it is switched off. So a verdict needs
// evidence (judge_time.h), what is doubtful is AMBIGUOUS and passes, and every verdict carries the
// rule and the numbers that it was decided by. A wrong result is never a matter of thresholds.
#pragma once

#include <string>
#include <vector>

#include "core/result/metric_table.h"
#include "core/result/result_file.h"
#include "core/result/verdict.h"
#include "gate/rules.h"

namespace attnbench {

struct GateOptions {
  double threshold = 0.03;           // relative gap of medians, and of what else is gated of a run
  double floor_us = 2;               // absolute gap of medians
  double accuracy_threshold = 0.25;  // relative growth of the errors that the gate judges
  std::vector<ThresholdRule> rules;  // of cases by pattern
  std::vector<KnownFailure> known;
  std::string today;  // "2026-12-31", for the expiry of known failures
  bool ignore_environment = false;
  bool lenient = false;  // missing cases and times pass, unverified results are taken
  bool fail_on_improvement = false;
  bool fail_on_ambiguous = false;
  const MetricTable* metrics = &metric_table();  // which numbers count, and which way is worse
};

/// How bad a status is, from 0; the same for those between which nothing got worse.
int status_rank(Status status);

/// A verdict per id of either file, worst first. Failing are BROKEN, LESS_ACCURATE, LESS_CHECKED,
/// SLOWER, a NEW case that is incorrect, implausible or an error, MISSING unless lenient, and by
/// their options AMBIGUOUS, FASTER and FIXED; a known failure that has not expired takes the
/// failure away. LESS_ACCURATE are errors that the metric table gates and rows that came nearer to
/// their limits, LESS_CHECKED cases of which less was compared, SLOWER the median and what the
/// table gates of timing and throughput. A skipped result counts as missing, and so does a time
/// that only the baseline has. Errors: kFormat when a file contradicts itself (belief.h); kUsage
/// when the files are not of the same machine and cases, unless ignore_environment, or when one
/// holds unverified results, unless lenient.
GateReport judge_results(const ResultFile& baseline, const ResultFile& results,
                         const GateOptions& options);

}  // namespace attnbench
