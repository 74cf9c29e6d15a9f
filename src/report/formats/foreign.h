// Formats of other tools, so that what plots or watches theirs reads ours without a converter.
//
// The keys, units and line ends are theirs and follow their code, not our conventions: seconds for
// vLLM, microseconds where the format has a field for the unit. A result that their format cannot
// say (a refusal, a case that was not timed) is left out unless it has a place for errors. Our own
// numbers that they have no key for are left out too; the result file has them.
//
// Sources: "Output Formats" in the user guide of github.com/google/benchmark; the README of
// github.com/benchmark-action/github-action-benchmark; benchmarks/attention_benchmarks/common.py of
// vLLM (BenchmarkConfig, BenchmarkResult). Their columns that this program has no number for hold
// what vLLM's own files do without it: 0 in the CSV, null in the JSON.
#pragma once

#include <ostream>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// google-benchmark's JSON: one iteration run a timed result, the median as real_time; incorrect
/// and error results without a time have error_occurred.
void write_google_benchmark(std::ostream& out, const RunInfo& run,
                            const std::vector<Result>& results);

/// github-action-benchmark's custom JSON (customSmallerIsBetter): the median of every timed result,
/// half the distance of its quartiles as range, and the command that repeats it:
/// {"name": "demo/q64/FLASH_ATTN", "unit": "us", "value": 216.4, "range": "± 5.2", "extra": "..."}.
void write_github_benchmark(std::ostream& out, const RunInfo& run,
                            const std::vector<Result>& results);

/// The columns and keys of vLLM's benchmarks/attention_benchmarks (times in seconds). The case name
/// takes the place of its batch spec, since two cases may share one. The CSV has timed results
/// only, the JSON failed ones too.
/// Lines of the CSV end with CR LF, as Python's csv module writes them. The JSON has swept keys
/// that case names hold as members of `config`, which is what tells rows of one batch apart.
void write_vllm_csv(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);
void write_vllm_json(std::ostream& out, const RunInfo& run, const std::vector<Result>& results);

}  // namespace attnbench
