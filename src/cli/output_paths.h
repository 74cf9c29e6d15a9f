// Which files a command reads and writes, so that no output replaces an input or another output.
#pragma once

#include <string>
#include <vector>

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

}  // namespace attnbench
