// Ctrl-C and SIGTERM: the first asks the run to stop after what it does now, so that its files are
// written; the second ends the process at once.
#pragma once

namespace attnbench {

/// Catches the signals while it lives; one at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// Whether a signal came since construction.
  static bool interrupted();
};

}  // namespace attnbench
