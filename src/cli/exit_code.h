// Exit codes as a pure function of what happened (contract section 3).
//
// Scripts decide by them, so a code never changes its meaning. Commands that run cases describe
// what came of them as an Outcome; an Error that ends the program has its code by its kind.
#pragma once

#include "core/error.h"
#include "core/result/result.h"

namespace attnbench {

enum ExitCode : int {
  kExitPassed = 0,     // what ran is right; cases without support do not count
  kExitIncorrect = 1,  // a wrong result, or a gate that failed
  /// The command line, a scenario or a file is wrong, or an output cannot be written.
  kExitUsage = 2,
  /// No case could run, or none of a backend that --backend names, or none was compared.
  kExitNothingRan = 3,
  kExitError = 4,  // the machine or this program failed: no memory, a CUDA error, Ctrl-C, a bug
};

/// What a command that runs cases came to.
struct Outcome {
  StatusCounts counts;  // of the listed results; filtered cases are not among them
  /// A backend named with --backend is unsupported in every case.
  bool named_backend_unsupported = false;
  /// Invalid input or an unwritable output that showed only after the cases had run.
  bool usage_error = false;
  bool interrupted = false;
  /// The gate failed.
  bool regression = false;
  /// There was a gate, and no case has a result on both sides.
  bool nothing_compared = false;
};

/// When several codes apply: 2, then 1, then 4, then 3.
int exit_code(const Outcome& outcome);

/// The code of an Error that ended the program: 4 for capacity, device and internal errors, 3 where
/// there is no kernel, else 2.
int exit_code(ErrorKind kind);

}  // namespace attnbench
