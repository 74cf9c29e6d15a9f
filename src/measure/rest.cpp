// A rest only ever grows within a case. Were it to shrink again, peers that take turns would be
// timed from different states, which is what the rest is against.
// The next case begins with the shortest one again.
#include "measure/rest.h"

#include <algorithm>

namespace attnbench {
namespace {

/// Those of which a rest is a cure. Others, such as sync_boost, stay whatever one does.
constexpr const char* kCurable[] = {"sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal",
                                    "hw_power_brake"};

}  // namespace

double RestPolicy::rest_us() const {
  const double wanted_us = std::min(factor_ * longest_us_, kLongestUs);
  return wanted_us < kShortestUs ? 0 : wanted_us;
}

bool RestPolicy::at_limit(const SampleState& state) const {
  // NaN compares as false: an unknown clock is no low one.
  if (state.sm_mhz < (1 - kClockDrop) * highest_mhz_) return true;
  return std::any_of(std::begin(kCurable), std::end(kCurable), [&](const char* reason) {
    return std::find(state.throttling.begin(), state.throttling.end(), reason) !=
           state.throttling.end();
  });
}

void RestPolicy::note(const SampleState& state) {
  if (state.work_us > longest_us_) longest_us_ = state.work_us;
  if (state.sm_mhz > highest_mhz_) highest_mhz_ = state.sm_mhz;
  ++samples_since_change_;
  if (!at_limit(state) || samples_since_change_ <= kPatience) return;
  factor_ = std::min(2 * factor_, kLargestFactor);
  samples_since_change_ = 0;
}

}  // namespace attnbench
