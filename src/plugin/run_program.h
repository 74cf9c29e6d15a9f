// A program that is run for what it prints.
#pragma once

#include <string>
#include <vector>

namespace attnbench {

struct ProgramOutput {
  std::string out;  // what it printed to stdout
  /// How it came to grief: "exit status 1", "signal 11 (Segmentation fault)", "no end after 60 s",
  /// "No such file or directory"; empty when it went well.
  std::string trouble;
};

/// Runs `argv` (its first word is looked for on the path) with an empty stdin and our stderr, for
/// `limit_s` at most. Errors: E-INTERNAL when there is no process.
ProgramOutput run_program(const std::vector<std::string>& argv, double limit_s);

}  // namespace attnbench
