// How long a job was in each of its phases, for whoever wonders why a run takes as long as it does.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>

#include "bench/bench.h"
#include "core/system/clock.h"

namespace attnbench {

/// A stopwatch with a dial for each phase. It stands still while other jobs have their turn.
class PhaseTimes {
 public:
  explicit PhaseTimes(const Clock& clock = steady_clock()) : clock_(clock) {}

  /// What follows is of this phase.
  void enter(Phase phase) {
    pause();
    phase_ = phase;
    resume();
  }
  /// Goes on with the phase that it was in, if there was one.
  void resume() {
    if (phase_ && !since_s_) since_s_ = clock_.now_s();
  }
  void pause() {
    if (since_s_) seconds_[static_cast<std::size_t>(*phase_)] += clock_.now_s() - *since_s_;
    since_s_.reset();
  }

  /// Seconds by name of the phase, of those that took any.
  std::map<std::string, double> seconds() const {
    std::map<std::string, double> named;
    for (const EnumRow<Phase>& row : enum_rows(Phase{})) {
      const double time_s = seconds_[static_cast<std::size_t>(row.value)];
      if (time_s > 0) named[row.name] = time_s;
    }
    return named;
  }

 private:
  const Clock& clock_;
  std::array<double, 4> seconds_{};
  std::optional<Phase> phase_;
  std::optional<double> since_s_;
};

}  // namespace attnbench
