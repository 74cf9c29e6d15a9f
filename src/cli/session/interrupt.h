// Ctrl-C and SIGTERM: after the first the run finishes the case that it is at, writes its files and
// ends; the second ends the process at once, for a case that does not finish.
//
// A handler may only touch a lock-free counter, so it counts and everyone else looks: the bench
// between cases, the run before its files. System calls that a signal interrupts are restarted, and
// when the guard goes the signals have their default effect again.
#pragma once

namespace attnbench {

/// Catches the signals while it lives; one at a time. A run holds it from its first case to the
/// last file that it writes, so that Ctrl-C never leaves a file half done.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// Whether a signal came since construction. Static, since the bench takes a plain function that
  /// it calls between samples (MeasureOptions::should_stop).
  static bool interrupted();
};

}  // namespace attnbench
