// Child processes that a plugin needs: a program that is run for what it prints, and code that is
// run in a process of its own for what it finds out, so that a crash or an endless loop in foreign
// code ends the child and becomes a sentence.
// Limits are generous, since Python packages of gigabytes
// take long to import, and end in SIGKILL.
//
// Both trials fork, so they are for a process without a CUDA context and without a started Python.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace attnbench {

/// Of a program that ended, was ended, or never started.
struct ProgramOutput {
  /// What it printed to stdout, bytes as they are; its stderr goes to ours, so that users see it.
  std::string out;
  /// What went wrong: "exit status 1", "signal 11 (Segmentation fault)", "no end after 60 s",
  /// "No such file or directory"; empty when nothing did.
  std::string trouble;
};

/// Runs `argv` (its first word is looked for on the path) with an empty stdin and our stderr, for
/// `limit_s` seconds at most, after which it is killed. What it printed until then is kept even
/// when it failed. Errors: E-INTERNAL when there is no pipe to read from.
ProgramOutput run_program(const std::vector<std::string>& argv, double limit_s);

/// Why a child process that did `work` failed: "signal 11 (Segmentation fault)", "exit
/// status 1" (0 where `work` called exit(0)), "no end after 60 s"; empty when it did not fail. An
/// exception of `work` counts as well: the caller meets it again. Errors: E-INTERNAL when there is
/// no process.
std::string trial_run(const std::function<void()>& work, double limit_s);

struct TrialOutput {
  std::string text;     // what the work returned; empty where it failed
  std::string trouble;  // as trial_run() says it
  bool hangs = false;   // whether it is that the time was over
};
/// Does `work` in a child process that sends back what it returns. An exception of `work` is
/// trouble too. `limit_s` 0 = no limit. The child does not outlive the thread that waits for it.
/// Errors: E-INTERNAL when there is no process.
TrialOutput trial_output(const std::function<std::string()>& work, double limit_s);

}  // namespace attnbench
