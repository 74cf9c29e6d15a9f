// The formats that a command writes at its end, each to a file of its own.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/options/shared_options.h"
#include "cli/output_paths.h"
#include "report/formats.h"

namespace attnbench {

/// Formats asked for with their paths.
struct OutputPlan {
  std::vector<std::pair<const OutputFormat*, std::string>> files;
  bool uses_stdout = false;  // one of them is "-": the table goes to stderr

  /// Writes every file, going on after a failed one. Errors: E-IO of the first that failed.
  void write(const RunInfo& run, const std::vector<Result>& results) const;
};

/// Of the files that are to be written, in the order of the formats.
OutputPlan plan_outputs(const OutputFiles& files,
                        const std::vector<OutputFormat>& formats = output_formats());

/// The same as paths of options, to be checked with those of other outputs. A result file may
/// replace the one that the run is resumed from.
std::vector<OutputPath> output_paths(const OutputPlan& plan);

/// Fails with E-IO unless `dir` is a writable folder, or can be made one. Creates nothing.
void check_save_dir(const std::string& dir);

/// Fails with kUsage when the tensors of a result would replace a file that is read.
void check_saved_tensors(const std::string& dir, const std::vector<std::string>& ids,
                         const std::vector<InputPath>& inputs);

}  // namespace attnbench
