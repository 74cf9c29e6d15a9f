#include "gate/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace attnbench {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kEnoughForQuartiles = 8;
constexpr std::size_t kMaxResampled = 500;
/// Standard error of a normal sample's median over that of its mean, sqrt(pi / 2).
constexpr double kMedianFactor = 1.2533;
/// Distance of the quartiles of a normal distribution in standard deviations.
constexpr double kQuartileDistance = 1.349;
/// Variance of the estimate from all samples over that from quartiles, for normal samples.
constexpr double kQuartileEfficiency = 0.37;
/// One-sided 5e-6 point of the normal distribution.
constexpr double kNormalPoint = 4.417;
constexpr double kMaxStandardErrors = 8;

/// P(X >= least) of a binomial distribution.
double binomial_tail(std::size_t trials, double chance, std::size_t least) {
  const auto n = static_cast<double>(trials);
  double sum = 0;
  for (std::size_t hits = least; hits <= trials; ++hits) {
    const auto k = static_cast<double>(hits);
    sum += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) +
                    k * std::log(chance) + (n - k) * std::log1p(-chance));
  }
  return sum;
}

/// Index of the smallest of `count` sorted values that a resampled median reaches down to with more
/// than the chance `tail`. A resample's lower median is at most the i-th value when at least half
/// of its draws are, each with the chance i / count.
std::size_t least_median_index(std::size_t count, double tail) {
  for (std::size_t i = 1; 2 * i < count; ++i) {
    const double chance = static_cast<double>(i) / static_cast<double>(count);
    if (binomial_tail(count, chance, (count + 1) / 2) > tail) return i - 1;
  }
  return (count - 1) / 2;
}

Interval median_interval(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  if (samples.size() > kMaxResampled) {
    for (std::size_t i = 0; i < kMaxResampled; ++i) {
      samples[i] = samples[(2 * i + 1) * samples.size() / (2 * kMaxResampled)];
    }
    samples.resize(kMaxResampled);
  }
  // Half of the tail each: the ratio is outside only when one of the medians is.
  const std::size_t least = least_median_index(samples.size(), kBootstrapTail / 2);
  return {samples[least], samples[samples.size() - 1 - least]};
}

/// Upper 5e-6 point of Student's t by Wallace's approximation, a little low for few degrees.
double student_point(double degrees_of_freedom) {
  const double square = kNormalPoint * kNormalPoint;
  return std::sqrt(degrees_of_freedom * std::expm1(square / degrees_of_freedom));
}

constexpr std::size_t kEnoughRounds = 4;
constexpr std::size_t kEnoughCases = 10;
constexpr std::size_t kRoundsPerTrim = 6;

struct Mean {
  double us;
  MedianSpread spread;
};

/// Trimmed mean of rounds and its standard error by Yuen (1974): that of the values with those that
/// are left out put to the nearest that is kept. Empty for too few.
std::optional<Mean> mean_of_rounds(const Timing& timing) {
  std::vector<double> medians = round_medians_us(timing);
  if (medians.size() < kEnoughRounds) return std::nullopt;
  std::sort(medians.begin(), medians.end());
  const std::size_t left_out = medians.size() / kRoundsPerTrim;  // at either end
  const std::size_t kept = medians.size() - 2 * left_out;
  double sum = 0;
  for (std::size_t i = 0; i < kept; ++i) sum += medians[left_out + i];
  const double mean = sum / static_cast<double>(kept);
  for (std::size_t i = 0; i < left_out; ++i) {
    medians[i] = medians[left_out];
    medians[medians.size() - 1 - i] = medians[medians.size() - 1 - left_out];
  }
  const auto count = static_cast<double>(medians.size());
  const double error = std::sqrt(variance(medians) * count) / static_cast<double>(kept);
  return Mean{mean, {error / mean, static_cast<double>(kept - 1)}};
}

}  // namespace

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return kNaN;
  std::sort(values.begin(), values.end());
  const double position = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
}

double variance(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += value;
  double squares = 0;
  for (const double value : values) squares += std::pow(value - sum / count, 2);
  return squares / (count - 1);
}

void summarize(Timing& timing) {
  const std::vector<double>& samples = timing.samples_us;
  const auto count = static_cast<double>(samples.size());
  double sum = 0;
  for (const double sample : samples) sum += sample;
  timing.mean_us = sum / count;
  timing.stdev_us = std::sqrt(variance(samples));
  // The relative standard error of the median, as measured timings have it.
  timing.noise = 1.2533 * timing.stdev_us / std::sqrt(count) / timing.mean_us;
  timing.min_us = quantile(samples, 0);
  timing.q1_us = quantile(samples, 0.25);
  timing.median_us = quantile(samples, 0.5);
  timing.q3_us = quantile(samples, 0.75);
  timing.cycles = has_clocks(timing) ? quantile(cycles_of(timing), 0.5) : kNaN;
}

bool has_clocks(const Timing& timing) {
  return !timing.samples_sm_mhz.empty() && timing.samples_sm_mhz.size() == timing.samples_us.size();
}

std::vector<double> cycles_of(const Timing& timing) {
  std::vector<double> cycles;
  for (std::size_t i = 0; i < timing.samples_us.size(); ++i) {
    cycles.push_back(timing.samples_us[i] * timing.samples_sm_mhz[i]);
  }
  return cycles;
}

bool has_waits(const Timing& timing) {
  return !timing.waits_us.empty() && timing.waits_us.size() == timing.samples_us.size();
}

Timing quiet_part(const Timing& timing, double share) {
  if (!has_waits(timing)) return timing;
  Timing quiet = timing;
  quiet.samples_us.clear();
  quiet.waits_us.clear();
  quiet.samples_sm_mhz.clear();
  const auto is_quiet = [&](std::size_t i) {
    return timing.waits_us[i] <= share * timing.samples_us[i];
  };
  for (std::size_t i = 0; i < timing.samples_us.size(); ++i) {
    if (!is_quiet(i)) continue;
    quiet.samples_us.push_back(timing.samples_us[i]);
    quiet.waits_us.push_back(timing.waits_us[i]);
    if (has_clocks(timing)) quiet.samples_sm_mhz.push_back(timing.samples_sm_mhz[i]);
  }
  std::size_t first = 0;
  for (std::int64_t& samples : quiet.rounds) {
    const std::size_t end = first + static_cast<std::size_t>(samples);
    samples = 0;
    for (; first < end; ++first) samples += is_quiet(first);
  }
  std::erase(quiet.rounds, 0);
  if (quiet.samples_us.size() < timing.samples_us.size()) summarize(quiet);
  return quiet;
}

Timing steady_part(const Timing& timing) {
  constexpr double kQuietShare = 0.01;
  Timing quiet = quiet_part(timing, kQuietShare);
  return quiet.samples_us.size() >= kEnoughQuiet ? quiet : timing;
}

MedianSpread median_spread(const Timing& timing) {
  const std::vector<double>& samples = timing.samples_us;
  const auto count = static_cast<double>(samples.size());
  if (samples.size() >= kEnoughForQuartiles) {
    const double stdev = (timing.q3_us - timing.q1_us) / kQuartileDistance;
    return {kMedianFactor * stdev / std::sqrt(count) / timing.median_us,
            kQuartileEfficiency * (count - 1)};
  }
  if (samples.empty()) return {timing.noise, kEnoughForQuartiles};
  return {samples.size() > 1 ? timing.noise : kNaN, count - 1};
}

double chance_gap(const MedianSpread& a, const MedianSpread& b) {
  if (std::isnan(a.relative) || std::isnan(b.relative)) return kNaN;
  const double error = std::hypot(a.relative, b.relative);
  if (error == 0) return 0;
  // Welch: of two spreads the wider one decides how well that of the difference is known.
  const auto share = [&](const MedianSpread& spread) {
    return std::pow(spread.relative / error, 4) / spread.degrees_of_freedom;
  };
  return std::min(student_point(1 / (share(a) + share(b))), kMaxStandardErrors) * error;
}

double chance_gap(double error) { return kNormalPoint * error; }

Interval bootstrap_ratio(std::vector<double> numerator, std::vector<double> denominator) {
  const Interval above = median_interval(std::move(numerator));
  const Interval below = median_interval(std::move(denominator));
  return {above.low / below.high, above.high / below.low};
}

double usual_round_error(const std::vector<Result>& results) {
  std::vector<double> errors;
  for (const Result& result : results) {
    const std::optional<Mean> mean =
        result.timing ? mean_of_rounds(steady_part(*result.timing)) : std::nullopt;
    if (mean) errors.push_back(mean->spread.relative);
  }
  return errors.size() < kEnoughCases ? 0 : quantile(std::move(errors), 0.5);
}

std::string doubt_of_rounds(const Timing& fast, const Timing& slow, double usual_error) {
  const std::optional<Mean> fast_mean = mean_of_rounds(fast);
  const std::optional<Mean> slow_mean = mean_of_rounds(slow);
  if (!fast_mean && !slow_mean) return "";
  const Mean before = fast_mean.value_or(Mean{fast.median_us, median_spread(fast)});
  const Mean after = slow_mean.value_or(Mean{slow.median_us, median_spread(slow)});
  const double gap = after.us / before.us - 1;
  const double chance = chance_gap(before.spread, after.spread);
  if (gap < chance) {
    return fmt::format("rounds are {:.3g}% apart, not significant: they spread {:.3g}%", 100 * gap,
                       100 * chance);
  }
  const double usual = chance_gap(usual_error);
  if (gap >= usual) return "";
  return fmt::format("rounds are {:.3g}% apart, within what those of most cases are, {:.3g}%",
                     100 * gap, 100 * usual);
}

}  // namespace attnbench
