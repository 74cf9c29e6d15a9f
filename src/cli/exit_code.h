// Exit codes of contract section 3 as a pure function of what happened.
#pragma once

#include "core/error.h"
#include "core/result/result.h"

namespace attnbench {

enum ExitCode : int {
  kExitPassed = 0,
  kExitIncorrect = 1,
  kExitUsage = 2,
  kExitNothingRan = 3,
  kExitError = 4,
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
};

/// When several codes apply: 2, then 1, then 4, then 3.
int exit_code(const Outcome& outcome);

/// The code of an Error that ended the program: 4 for capacity, device and internal errors, 3 where
/// there is no kernel, else 2.
int exit_code(ErrorKind kind);

}  // namespace attnbench
