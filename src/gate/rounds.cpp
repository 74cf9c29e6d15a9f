#include "gate/rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "gate/statistics.h"

namespace attnbench {
namespace {

constexpr std::size_t kEnoughRounds = 4;
constexpr std::size_t kEnoughCases = 10;

struct Mean {
  double us;
  MedianSpread spread;
};

/// Of rounds; empty for too few.
std::optional<Mean> mean_of_rounds(const Timing& timing) {
  const std::vector<double> medians = round_medians_us(timing);
  if (medians.size() < kEnoughRounds) return std::nullopt;
  const auto count = static_cast<double>(medians.size());
  double sum = 0;
  for (const double median : medians) sum += median;
  const double mean = sum / count;
  return Mean{mean, {std::sqrt(variance(medians) / count) / mean, count - 1}};
}

}  // namespace

double usual_round_error(const std::vector<Result>& results) {
  std::vector<double> errors;
  for (const Result& result : results) {
    const std::optional<Mean> mean = result.timing ? mean_of_rounds(*result.timing) : std::nullopt;
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
    return fmt::format(
        "rounds are {:.3g}% apart, within what chance gives to their spread, {:.3g}%", 100 * gap,
        100 * chance);
  }
  const double usual = chance_gap(usual_error);
  if (gap >= usual) return "";
  return fmt::format("rounds are {:.3g}% apart, within what those of most cases are, {:.3g}%",
                     100 * gap, 100 * usual);
}

}  // namespace attnbench
