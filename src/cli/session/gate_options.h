// Options of the gate, shared by `gate` and `run --baseline`, and the files that they name.
//
// The rules themselves are in src/gate, which knows no files and no command line: what is here
// turns texts and paths into its options and baselines.
#pragma once

#include <array>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "cli/options/shared_options.h"
#include "cli/outputs.h"
#include "core/result/result_file.h"
#include "gate/gate.h"

namespace attnbench {

/// The options as the command line has them; shares as texts, since "3%", "0.03" and "3" are the
/// same.
struct GateArguments {
  std::string threshold = "3%";
  std::string accuracy_threshold = "25%";
  double floor_us = 2;
  std::string thresholds_file;
  std::string known_file;
  bool ignore_environment = false;
  bool lenient = false;
  bool fail_on_improvement = false;
  bool fail_on_ambiguous = false;
};

void add_gate_options(OptionTable& options, GateArguments& arguments);

/// Those that say how results are held against a baseline; --known is for failures of any run.
inline constexpr std::array kBaselineOptions{
    "--threshold",          "--floor-us", "--accuracy-threshold",  "--thresholds",
    "--ignore-environment", "--lenient",  "--fail-on-improvement", "--fail-on-ambiguous"};

/// The files of --known and --thresholds, those that are given.
std::vector<InputPath> input_paths(const GateArguments& arguments);

/// Reads the files of --known and --thresholds. Errors: kUsage for a bad share, E-IO and E-FORMAT
/// for the files.
GateOptions gate_options(const GateArguments& arguments);

/// Which results take part, of those of a baseline: what the run left out is not missing.
struct GateSelection {
  std::string filter;                 // regular expression searched in ids; empty = all
  std::vector<std::string> backends;  // empty = all
};
void keep_selected(const GateSelection& selection, std::vector<Result>& results);

/// Why none of the files' results is left, e.g. "no result id matches --filter 'x'".
std::string why_none_selected(const GateSelection& selection);

/// A result file of this program, a journal, or results of another benchmark (interop/results),
/// which a notice on `err` tells where it is given. Errors: those of read_result_file, and E-FORMAT
/// of parse_foreign_results.
ResultFile read_results(const std::string& path, std::ostream* err = nullptr);

/// One baseline out of the files. Errors as read_results and pool_baselines.
ResultFile read_baseline(const std::vector<std::string>& paths, const GateOptions& options);

/// Failures of a run that --known names: they are counted as passed, and each gets a line.
struct KnownInRun {
  StatusCounts counts;
  std::vector<std::string> lines;
};
KnownInRun set_known_apart(const std::vector<Result>& results, const GateOptions& options);

}  // namespace attnbench
