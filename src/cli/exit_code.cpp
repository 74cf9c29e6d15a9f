#include "cli/exit_code.h"

namespace attnbench {

// Every test stands above those whose code it wins over: wrong input first, since nothing that ran
// on it means anything; a wrong result before a machine that failed, since it is what a CI job is
// run for.
int exit_code(const Outcome& outcome) {
  const StatusCounts& counts = outcome.counts;
  if (outcome.usage_error) return kExitUsage;
  if (counts.incorrect > 0 || counts.implausible > 0 || outcome.regression) return kExitIncorrect;
  if (counts.error > 0 || counts.skipped > 0 || outcome.interrupted) return kExitError;
  const bool nothing_ran = counts.passed == 0 && counts.unverified == 0;
  if (nothing_ran || outcome.named_backend_unsupported || outcome.nothing_compared) {
    return kExitNothingRan;
  }
  return kExitPassed;
}

// Why no default: the compiler names this place when a kind is added, so that nobody forgets to
// decide.
int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kCapacity:
    case ErrorKind::kCuda:
    case ErrorKind::kInternal:
      return kExitError;
    case ErrorKind::kUnsupported:
      return kExitNothingRan;
    case ErrorKind::kUsage:
    case ErrorKind::kConfig:
    case ErrorKind::kShape:
    case ErrorKind::kDtype:
    case ErrorKind::kValue:
    case ErrorKind::kFormat:
    case ErrorKind::kIo:
      return kExitUsage;
  }
  return kExitError;
}

}  // namespace attnbench
