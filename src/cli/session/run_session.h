// One run with everything around it: what is kept of an earlier one, the journal, the passes over
// the cases, the baseline, the files that are written.
//
// The caller has checked all input and made the jobs. From here on files appear: first the journal,
// at the end the results. A run that dies, or cannot write its results, leaves the journal behind,
// from which --resume goes on.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "cli/options/shared_options.h"
#include "cli/outputs.h"
#include "cli/session/compile_ahead.h"
#include "cli/session/gate_options.h"
#include "cli/terminal/console.h"
#include "interop/trace/set.h"

namespace attnbench {

/// The command line of `run`.
struct RunArguments {
  std::vector<std::string> scenarios;
  RunOptions options;
  GateArguments gate;
  std::vector<std::string> baselines;
  std::string save_baseline;
  std::string resume;
  std::string journal;
  std::string summary;
  std::string history;    // file that results are appended to; empty = none
  std::string trace_set;  // folder; empty = none
  std::string trace_json;
  TraceNames trace_names;  // for trace_json
  std::vector<std::string> links;
  std::optional<int> passes;
  std::set<std::string> other_parts;  // ids that --part leaves to others
};

/// Passes over all cases: as many as --passes says, else several where a gate will compare times of
/// the CPU. Why not of a GPU: it has no other programs, and inputs for it take longer than its
/// times.
int num_passes(const RunArguments& arguments, bool on_cpu);

/// Where the journal goes: where the user wants it, else beside a result file that is a real file;
/// empty when there is none.
std::string journal_target(const RunArguments& arguments);

/// Runs the jobs, says what came of them, writes the files; the exit code. `ahead`: whose kernels
/// are compiled ahead, all of `jobs` or none.
int run_session(const RunArguments& arguments, const GateOptions& gate, const OutputPlan& plan,
                RunInfo run, const Console& console, const std::vector<Job>& jobs,
                const BenchOptions& bench, const AheadPlan& ahead);

}  // namespace attnbench
