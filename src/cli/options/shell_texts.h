// Completion scripts and the manual page, written from the option tables of the commands: an option
// that is added to a table is completed and documented without another line of code.
//
// What a word may be follows from the row that it belongs to. `choices` are offered as they are;
// FILE and DIR are completed as paths; SCENARIO as paths and as the names that `attnbench list
// scenarios --names` prints; the names of --backend come from `attnbench list backends --names`, so
// that scripts need not be generated again when scenarios are added. Other values are not
// completed.
#pragma once

#include <string>
#include <vector>

#include "cli/options/option_table.h"

namespace attnbench {

/// A command as the generated texts need it.
struct DescribedCommand {
  std::string name;
  std::string summary;
  std::string example;          // one command a line, indented
  std::vector<Option> options;  // --help first; their targets are not used
};

/// Everything that the generated texts say.
struct DescribedProgram {
  std::string name;
  std::string description;  // one line
  std::string version;      // "0.1.0"
  std::vector<DescribedCommand> commands;
};

/// A script for bash 4 and newer: `source <(attnbench completion bash)`. Needs no other package.
std::string bash_completion(const DescribedProgram& program);
/// A script for zsh, to be installed as _attnbench in a folder of $fpath.
std::string zsh_completion(const DescribedProgram& program);
/// A script for fish: `attnbench completion fish | source`.
std::string fish_completion(const DescribedProgram& program);

/// attnbench(1) as man(7) source, for `attnbench man | man -l -`.
std::string manual_page(const DescribedProgram& program);

}  // namespace attnbench
