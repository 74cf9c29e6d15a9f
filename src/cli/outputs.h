// The files that a run writes: checked before anything runs, written at the end.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/options.h"
#include "report/reporter.h"

namespace attnbench {

/// Formats asked for with their paths, and where the tensors go.
struct OutputPlan {
  std::vector<std::pair<const OutputFormat*, std::string>> files;
  bool uses_stdout = false;  // one of them is "-": the table goes to stderr

  /// Writes every file, going on after a failed one. Errors: E-IO of the first that failed.
  void write(const RunInfo& run, const std::vector<Result>& results) const;
};

/// Errors, before anything is written: kUsage when two outputs share a file or stdout, E-IO for a
/// path that cannot be written.
OutputPlan plan_outputs(const RunOptions& options);

/// Fails with E-IO unless `dir` is a writable folder, or can be made one. Creates nothing.
void check_save_dir(const std::string& dir);

}  // namespace attnbench
