// How long a device rests before each sample (timing.pace).
//
// A device at its power limit lowers its clock by what it did in the last milliseconds, so that the
// time of a kernel depends on what ran before it: on the kernel itself back to back, on a peer when
// they take turns. At pace "cool" every sample of every peer follows the same rest, which is as
// long as it takes for no limit to show.
#pragma once

#include <string>
#include <vector>

namespace attnbench {

/// What was seen during a sample; NaN and empty where it is not known.
struct SampleState {
  double work_us = 0;  // the device worked for so long
  double sm_mhz = 0;
  std::vector<std::string> throttling;  // reasons, in NVML's names as in DeviceClocks
};

/// One for all peers of a case. Pure: it waits for nothing and reads no clock.
///
/// The rest is a factor times the longest sample so far, at most kLongestUs; one below kShortestUs
/// is none, since the host needs as long between two samples anyway. The factor is 1 at the start
/// and doubles, up to kLargestFactor, when a sample ran at a limit: a reason of power or heat
/// was reported, or the clock was more than kClockDrop below the highest one of any sample. After
/// that it stays for kPatience samples, since reasons are reported late.
class RestPolicy {
 public:
  static constexpr double kShortestUs = 50;
  static constexpr double kLongestUs = 50'000;
  static constexpr double kLargestFactor = 16;
  static constexpr double kClockDrop = 0.015;
  static constexpr int kPatience = 4;

  /// Before the next sample, in microseconds. 0 before the first one.
  double rest_us() const;
  void note(const SampleState& state);
  double factor() const { return factor_; }

 private:
  bool at_limit(const SampleState& state) const;

  double longest_us_ = 0;
  double highest_mhz_ = 0;
  double factor_ = 1;
  int samples_since_change_ = kPatience;
};

}  // namespace attnbench
