// Which files a command reads and writes, and the formats that it writes at its end.
//
// Everything about paths is checked before a run starts, which may take hours: no output may
// replace an input or another output, and every output must be writable. At the end each format
// goes to a file of its own, and one that cannot be written does not keep the others from it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/options/shared_options.h"
#include "report/formats.h"

namespace attnbench {

/// A file of the command line: "--json" and "r.json".
struct InputPath {
  std::string option;
  std::string path;
};

struct OutputPath {
  std::string option;
  std::string path;           // empty = not written; "-" = stdout
  std::string replaces = {};  // option of an input that this output is meant to replace
};

/// Whether a write to one path would lose what is at the other, whatever they are called: through
/// links, and also where there is no file yet. Devices and pipes are no files that could be lost.
bool is_same_file(const std::string& a, const std::string& b);

/// The files of an option.
std::vector<InputPath> input_paths(const std::string& option,
                                   const std::vector<std::string>& paths);

/// Errors: kUsage for an output that is one of the inputs.
void check_is_no_input(const OutputPath& output, const std::vector<InputPath>& inputs);

/// Checks that every output can be written and is a file of its own. Returns whether an output is
/// stdout. Errors, before anything is written: kUsage for an output that is an input or another
/// output, E-IO for one that cannot be written.
bool check_output_paths(const std::vector<InputPath>& inputs,
                        const std::vector<OutputPath>& outputs);

/// The formats that the user wants, with their paths.
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

/// Fails with E-IO unless `dir` is a writable folder, or can be made one, where the tensors of the
/// results `ids` can be written. Leaves nothing there.
void check_save_dir(const std::string& dir, const std::vector<std::string>& ids);

/// Makes it, with the folders above. Errors: E-IO with what the system says.
void make_save_dir(const std::string& dir);

/// Fails with kUsage when the tensors of a result would replace a file that is read.
void check_saved_tensors(const std::string& dir, const std::vector<std::string>& ids,
                         const std::vector<InputPath>& inputs);

}  // namespace attnbench
