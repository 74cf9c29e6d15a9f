// The verdict on two timings of a case: slower, faster, the same, or not to be told.
//
// Each rule below guards against one way in which a gap of medians is no change of the program: too
// small to matter, within what two runs of one program are apart, chance in the samples, chance in
// the rounds, other programs on the cores. The order matters only for which rule is named.
#pragma once

#include <optional>
#include <string>

#include "core/result/result.h"
#include "core/result/verdict.h"

namespace attnbench {

struct TimeLimits {
  double threshold = 0.03;  // relative gap of the medians
  double floor_us = 2;      // gaps up to this are never judged
  /// A/A noise floor of the baseline, relative; without one the stored noise takes its place.
  std::optional<double> noise_floor;
  /// Relative standard error that the difference of two means of rounds usually has.
  double round_error = 0;
};

struct TimeVerdict {
  VerdictKind kind = VerdictKind::kSame;  // kSame, kAmbiguous, kSlower or kFaster
  std::string rule;
};

/// SLOWER or FASTER when all of these hold, else the first that fails decides: the medians are
/// apart by more than floor_us (else SAME), by the threshold (SAME), by the A/A noise floor (SAME),
/// by the stored noise, without a noise floor (AMBIGUOUS), and by what chance gives to the spread
/// of their samples and of their rounds (AMBIGUOUS); the quartile intervals do not overlap
/// (AMBIGUOUS); the bootstrap interval of the ratio does not hold 1 (AMBIGUOUS). The gap is
/// relative to the smaller median, so that the verdict turns around when the timings change places.
///
/// All of it goes by the samples during which no thread waited for a core longer than a third of
/// the threshold, where there are at least 5 of them on both sides. Else it goes by all samples,
/// and is AMBIGUOUS where waiting for cores can explain the gap.
TimeVerdict judge_time(const Timing& before, const Timing& after, const TimeLimits& limits);

/// Where the clock of the device is known of every sample on both sides and the medians of the
/// clocks are more than 1 % apart, cycles are judged beside the time by the same rules, and the
/// rule says both: where they agree that is the verdict. SLOWER by time only is AMBIGUOUS, because
/// the clock explains it; so is what is slower in cycles only, but for a case that is bound by
/// arithmetic whose time is the same: there the clock hides a slowdown, and the verdict is SLOWER.
/// Else as judge_time().
TimeVerdict judge_time_and_cycles(const Timing& before, const Timing& after, bool compute_bound,
                                  const TimeLimits& limits);

/// What is no longer timed of what the baseline timed, such as "timing.l2: 'cold' in the baseline,
/// 'warm' in the results", or else another mode or pace; "" when nothing. What a baseline does not
/// say is no difference.
std::string less_timed(const Timing& before, const Timing& after);
/// That sentence about l2, whichever way it changed.
std::string other_l2(const Timing& before, const Timing& after);

}  // namespace attnbench
