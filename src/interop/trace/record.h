// Results as Trace records of FlashInfer-Trace, one line of JSON each, as flashinfer-bench's
// pydantic models accept them (flashinfer_bench/data/trace.py).
//
// A record has four parts: the definition and the workload, the solution, and the evaluation, which
// is status, correctness, performance and environment. Which of the last are there depends on the
// status, and is checked by the models. What they have no place for is in `extra` of correctness
// and in `log`.
//
// A status of theirs is one of ours, but for errors, which they divide by where they happen:
// building a solution, its shapes and types, waiting too long, anything else. Those are told by the
// words of the reason. A case that was refused, left out or not compared has no record: there is no
// status for what nobody looked at.
#pragma once

#include <filesystem>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "core/result/result.h"

namespace attnbench {

/// What imported scenarios came from, for whoever writes results in the form of the set.
struct TraceNames {
  std::map<std::string, std::string> workloads;  // record of a workload, by the scenario's name
  std::map<std::string, std::string> solutions;  // name of a solution, by that of its class
};

/// Records of workloads that lie beside scenario files: NAME.workload.json.
TraceNames trace_names_beside(const std::vector<std::filesystem::path>& scenario_files);

/// Writes a line for every result but those that were not run or not checked. A result of a
/// scenario that was no workload has one made of its problem. max_relative_error is that of the
/// worst row, in the size of the row: single elements may be near 0. reference_latency_ms is the
/// median of the first built-in backend that was timed on the case, 0 without one. PASSED needs a
/// latency: without
/// --no-timing it is the median, with it 0.
void write_trace_records(std::ostream& out, const RunInfo& run, const std::vector<Result>& results,
                         const TraceNames& names);

}  // namespace attnbench
