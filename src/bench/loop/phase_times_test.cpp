#include "bench/loop/phase_times.h"

#include <doctest/doctest.h>

namespace attnbench {
namespace {

struct HandMovedClock final : Clock {
  double now_s() const override { return now; }
  double now = 100;
};

TEST_CASE("each phase has the time that was spent in it") {
  HandMovedClock clock;
  PhaseTimes times(clock);
  times.resume();  // in no phase yet
  clock.now += 1;
  CHECK(times.seconds().empty());
  times.enter(Phase::kInputs);
  clock.now += 2;
  times.enter(Phase::kRun);
  clock.now += 3;
  times.enter(Phase::kInputs);
  clock.now += 4;
  times.pause();
  const std::map<std::string, double> expected{{"inputs", 6.0}, {"run", 3.0}};
  CHECK(times.seconds() == expected);
}

TEST_CASE("other jobs' turns do not count") {
  HandMovedClock clock;
  PhaseTimes times(clock);
  times.enter(Phase::kTiming);
  clock.now += 1;
  times.pause();
  times.pause();
  clock.now += 50;
  times.resume();
  clock.now += 1;
  times.resume();
  clock.now += 1;
  times.pause();
  CHECK(times.seconds().at("timing") == doctest::Approx(3.0));
}

}  // namespace
}  // namespace attnbench
