// Time as a dependency, so that tests can fake it: whatever waits, measures or gives up after a
// while takes a Clock instead of calling the system, and a test hands in one that it moves by hand.
#pragma once

#include <chrono>

namespace attnbench {

class Clock {
 public:
  virtual ~Clock() = default;
  /// Monotonic time in seconds since an arbitrary start: only differences mean anything.
  virtual double now_s() const = 0;
};

/// The clock of every run outside of tests, std::chrono::steady_clock. It goes on while the
/// system's time of day is set, so no sample is negative. Lives as long as the process.
inline const Clock& steady_clock() {
  class SteadyClock final : public Clock {
   public:
    double now_s() const override {
      return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
          .count();
    }
  };
  static const SteadyClock clock;
  return clock;
}

}  // namespace attnbench
