// Time as a dependency, so that tests can fake it.
#pragma once

namespace attnbench {

class Clock {
 public:
  virtual ~Clock() = default;
  /// Monotonic time in seconds since an arbitrary start.
  virtual double now_s() const = 0;
};

/// std::chrono::steady_clock.
const Clock& steady_clock();

}  // namespace attnbench
