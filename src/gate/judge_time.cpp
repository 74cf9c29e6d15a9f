#include "gate/judge_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "gate/statistics.h"

namespace attnbench {
namespace {

std::string percent(double share) { return fmt::format("{:.3g}%", 100 * share); }

/// Two timings in order of their medians, and what is said about the gap.
struct Gap {
  const Timing& fast;
  const Timing& slow;
  double us;        // >= 0
  double relative;  // to the faster
  std::string text;

  Gap(const Timing& before, const Timing& after)
      : fast(before.median_us <= after.median_us ? before : after),
        slow(before.median_us <= after.median_us ? after : before),
        us(slow.median_us - fast.median_us),
        relative(us > 0 ? us / fast.median_us : 0) {
    const double change = after.median_us / before.median_us - 1;
    text = fmt::format("median {:+.2f}%", 100 * change);
  }
};

/// Whether the slower timing can owe its gap to other programs: without the time that its threads
/// waited it is slower by less than the threshold.
bool waiting_explains(const Gap& gap, double threshold) {
  if (!has_waits(gap.slow)) return false;
  // Why twice: what is stored is the wait of one thread, and others may have waited before or after
  // it. Why not all: on two cores with twelve programs medians of a millisecond were up to nine
  // times too long, so that a twentieth is surely work.
  constexpr double kWaits = 2;
  constexpr double kLeastWork = 0.05;
  std::vector<double> work_us;
  for (std::size_t i = 0; i < gap.slow.samples_us.size(); ++i) {
    const double sample_us = gap.slow.samples_us[i];
    work_us.push_back(std::max(sample_us - kWaits * gap.slow.waits_us[i], kLeastWork * sample_us));
  }
  return quantile(std::move(work_us), 0.5) < gap.fast.median_us * (1 + threshold);
}

/// The rule that keeps a gap past the threshold from being a verdict; empty when there is none.
std::string doubt(const Gap& gap, const TimeLimits& limits) {
  const double stored_noise = std::max(gap.fast.noise, gap.slow.noise);
  if (!limits.noise_floor && gap.relative < stored_noise) {
    return fmt::format("{} is within the stored noise {}", gap.text, percent(stored_noise));
  }
  const double chance = chance_gap(median_spread(gap.fast), median_spread(gap.slow));
  if (gap.relative < chance) {
    return fmt::format("{} is not significant: samples spread {}", gap.text, percent(chance));
  }
  if (std::isnan(chance) && !limits.noise_floor) {
    return fmt::format("{}, but a single sample has no spread", gap.text);
  }
  if (std::string rounds = doubt_of_rounds(gap.fast, gap.slow, limits.round_error);
      !rounds.empty()) {
    return fmt::format("{}, but {}", gap.text, rounds);
  }
  if (gap.slow.q1_us <= gap.fast.q3_us) {
    return fmt::format(
        "{}, but the quartile intervals overlap: {:.4g}..{:.4g} us and "
        "{:.4g}..{:.4g} us",
        gap.text, gap.fast.q1_us, gap.fast.q3_us, gap.slow.q1_us, gap.slow.q3_us);
  }
  if (gap.fast.samples_us.empty() || gap.slow.samples_us.empty()) return "";
  const Interval ratio = bootstrap_ratio(gap.slow.samples_us, gap.fast.samples_us);
  if (ratio.low > 1) return "";
  return fmt::format("{}, but the bootstrap interval of the ratio, {:.4g}..{:.4g}, holds 1",
                     gap.text, ratio.low, ratio.high);
}

TimeVerdict judge_samples(const Timing& before, const Timing& after, const TimeLimits& limits) {
  const Gap gap(before, after);
  if (!std::isfinite(gap.relative)) {
    return {VerdictKind::kAmbiguous, "a median is missing or zero"};
  }
  if (gap.us <= limits.floor_us) {
    return {VerdictKind::kSame,
            fmt::format("gap {:.3g} us is within the floor of {:.3g} us", gap.us, limits.floor_us)};
  }
  if (gap.relative < limits.threshold) {
    return {VerdictKind::kSame,
            fmt::format("{} is within the threshold {}", gap.text, percent(limits.threshold))};
  }
  if (limits.noise_floor && gap.relative < *limits.noise_floor) {
    return {VerdictKind::kSame, fmt::format("{} is within the A/A noise floor {}", gap.text,
                                            percent(*limits.noise_floor))};
  }
  std::string reason = doubt(gap, limits);
  if (!reason.empty()) return {VerdictKind::kAmbiguous, std::move(reason)};
  const bool slower = after.median_us > before.median_us;
  return {slower ? VerdictKind::kSlower : VerdictKind::kFaster,
          fmt::format("{} is past the threshold {}; quartiles apart, beyond chance", gap.text,
                      percent(limits.threshold))};
}

double median_clock(const Timing& timing) { return quantile(timing.samples_sm_mhz, 0.5); }

/// The timing as it would be at `sm_mhz`, if nothing but the clock counted.
Timing at_clock(const Timing& timing, double sm_mhz) {
  Timing scaled = timing;
  scaled.samples_us = cycles_of(timing);
  for (double& sample : scaled.samples_us) sample /= sm_mhz;
  summarize(scaled);
  return scaled;
}

}  // namespace

TimeVerdict judge_time(const Timing& before, const Timing& after, const TimeLimits& limits) {
  // Why a third: what is left in a quiet sample, twice, cannot make a gap that counts.
  const double share = limits.threshold / 3;
  const Timing quiet_before = quiet_part(before, share);
  const Timing quiet_after = quiet_part(after, share);
  const std::size_t num_before = quiet_before.samples_us.size();
  const std::size_t num_after = quiet_after.samples_us.size();
  const bool all_quiet =
      num_before == before.samples_us.size() && num_after == after.samples_us.size();
  if (all_quiet) return judge_samples(before, after, limits);
  if (num_before >= kEnoughQuiet && num_after >= kEnoughQuiet) {
    TimeVerdict verdict = judge_samples(quiet_before, quiet_after, limits);
    verdict.rule +=
        fmt::format("; in the {} of {} and {} of {} samples that no other program held up",
                    num_before, before.samples_us.size(), num_after, after.samples_us.size());
    return verdict;
  }
  TimeVerdict verdict = judge_samples(before, after, limits);
  const Gap gap(before, after);
  const bool is_same = verdict.kind == VerdictKind::kSame;
  if (is_same || !waiting_explains(gap, limits.threshold)) return verdict;
  return {VerdictKind::kAmbiguous,
          fmt::format("{}, but other programs had the cores: only {} of {} and {} of {} samples "
                      "were not held up",
                      gap.text, num_before, before.samples_us.size(), num_after,
                      after.samples_us.size())};
}

TimeVerdict judge_time_and_cycles(const Timing& before, const Timing& after, bool compute_bound,
                                  const TimeLimits& limits) {
  constexpr double kSameClock = 0.01;
  TimeVerdict time = judge_time(before, after, limits);
  if (!has_clocks(before) || !has_clocks(after)) return time;
  const double old_mhz = median_clock(before);
  const double new_mhz = median_clock(after);
  if (std::abs(new_mhz / old_mhz - 1) <= kSameClock) return time;
  const TimeVerdict cycles =
      judge_time(at_clock(before, old_mhz), at_clock(after, old_mhz), limits);
  const std::string rule = fmt::format("time: {}; SM clock {:.0f} -> {:.0f} MHz, in cycles: {}",
                                       time.rule, old_mhz, new_mhz, cycles.rule);
  if (time.kind == cycles.kind) return {time.kind, rule};
  const bool slower_in_time = time.kind == VerdictKind::kSlower;
  const bool slower_in_cycles = cycles.kind == VerdictKind::kSlower;
  const bool hidden = slower_in_cycles && compute_bound && time.kind == VerdictKind::kSame;
  if (hidden) return {VerdictKind::kSlower, rule};
  if (slower_in_time || slower_in_cycles) return {VerdictKind::kAmbiguous, rule};
  return {time.kind, rule};
}

namespace {

std::string other_way(const char* key, const std::string& before, const std::string& after) {
  return fmt::format("timing.{}: '{}' in the baseline, '{}' in the results", key, before, after);
}

}  // namespace

std::string other_l2(const Timing& before, const Timing& after) {
  return other_way("l2", before.l2, after.l2);
}

std::string less_timed(const Timing& before, const Timing& after) {
  if (before.began_cold() && before.l2 != after.l2) return other_l2(before, after);
  if (!before.mode.empty() && before.mode != after.mode) {
    return other_way("mode", before.mode, after.mode);
  }
  if (!before.pace.empty() && before.pace != after.pace) {
    return other_way("pace", before.pace, after.pace);
  }
  return "";
}

}  // namespace attnbench
