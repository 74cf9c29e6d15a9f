// Reads the words of a command line into the targets of option tables, and writes --help from the
// same tables. Its .cpp is the only file that knows CLI11.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "cli/options/option_table.h"

namespace attnbench {

/// A command: its words, and what --help says around the options.
struct CommandSyntax {
  std::string name;
  std::string summary;
  std::string footer;
  OptionTable options;
};

struct ProgramSyntax {
  std::string name;
  std::string description;
  std::string footer;
  std::string version;  // the answer to --version, without a line end
  /// In the order of --help. Why no vector: commands keep references to their options.
  std::deque<CommandSyntax> commands;
};

/// What a command line comes to: a text to print, or a command to run.
struct ParsedLine {
  std::string answer;                  // of --help or --version
  std::optional<std::size_t> command;  // of ProgramSyntax::commands; none beside an answer
};

/// Parses `words` (argv with the program's name), converts and checks the values, writes them to
/// the targets of the chosen command's rows and notes which rows were given. Lines of --help end at
/// the width of the terminal. Errors: kUsage, with the command whose --help says more.
ParsedLine parse_line(ProgramSyntax& program, const std::vector<std::string>& words);

}  // namespace attnbench
