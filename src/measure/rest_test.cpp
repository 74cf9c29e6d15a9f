#include "measure/rest.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace attnbench {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

SampleState cool(double work_us, double sm_mhz = 1980) { return {work_us, sm_mhz, {}}; }

void note_many(RestPolicy& policy, const SampleState& state, int count) {
  for (int i = 0; i < count; ++i) policy.note(state);
}

}  // namespace

TEST_CASE("a device rests as long as the longest sample of any peer took") {
  RestPolicy policy;
  CHECK(policy.rest_us() == 0);
  policy.note(cool(1400));
  CHECK(policy.rest_us() == 1400);
  policy.note(cool(3500));
  policy.note(cool(1400));
  CHECK(policy.rest_us() == 3500);
}

TEST_CASE("the rest grows while power or heat hold the clock down, and ends at a limit") {
  for (const char* reason : {"sw_power_cap", "hw_thermal", "sw_thermal", "hw_power_brake"}) {
    RestPolicy policy;
    SampleState hot = cool(1000);
    hot.throttling = {"sync_boost", reason};
    policy.note(hot);
    CHECK(policy.factor() == 2);
    double before = 0;
    for (int i = 0; i < 100; ++i) {
      CHECK(policy.rest_us() >= before);
      before = policy.rest_us();
      policy.note(hot);
    }
    CHECK(policy.factor() == RestPolicy::kLargestFactor);
    CHECK(policy.rest_us() == RestPolicy::kLargestFactor * 1000);
  }
}

TEST_CASE("a clock below the highest one makes the rest longer, until it is back") {
  RestPolicy policy;
  note_many(policy, cool(1000, 1980), 10);
  CHECK(policy.factor() == 1);
  policy.note(cool(1000, 1980 * (1 - RestPolicy::kClockDrop / 2)));
  CHECK(policy.factor() == 1);
  policy.note(cool(1000, 1755));
  CHECK(policy.factor() == 2);
  note_many(policy, cool(1000, 1980), 10);
  CHECK(policy.factor() == 2);
}

TEST_CASE("a reason that is reported late does not lengthen the rest twice") {
  RestPolicy policy;
  SampleState hot = cool(1000);
  hot.throttling = {"sw_power_cap"};
  note_many(policy, hot, 1 + RestPolicy::kPatience);
  CHECK(policy.factor() == 2);
  policy.note(hot);
  CHECK(policy.factor() == 4);
}

TEST_CASE("reasons that no rest cures, and clocks that are not known, leave it as it is") {
  RestPolicy policy;
  SampleState state = cool(1000, kNaN);
  state.throttling = {"sync_boost"};
  note_many(policy, cool(1000), 1);
  note_many(policy, state, 50);
  CHECK(policy.factor() == 1);
  CHECK(policy.rest_us() == 1000);
}

TEST_CASE("the rest of a very long sample is bounded") {
  RestPolicy policy;
  policy.note(cool(1e6));
  CHECK(policy.rest_us() == RestPolicy::kLongestUs);
}

}  // namespace attnbench
