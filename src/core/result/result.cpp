// What is derived from the samples and statuses of results; the records themselves hold no logic.
#include "core/result/result.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace attnbench {
namespace {

/// `values` is not empty.
double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

std::vector<double> round_medians_us(const Timing& timing) {
  std::vector<double> medians;
  auto first = timing.samples_us.begin();
  for (const std::int64_t samples : timing.rounds) {
    medians.push_back(median_of({first, first + samples}));
    first += samples;
  }
  return medians;
}

double round_spread(const Timing& timing) {
  const std::vector<double> medians = round_medians_us(timing);
  if (medians.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  const auto [least, largest] = std::minmax_element(medians.begin(), medians.end());
  return (*largest - *least) / timing.median_us;
}

std::span<const EnumRow<Status>> enum_rows(Status) {
  using enum Status;
  static constexpr auto kRows = every_value<EnumRow<Status>>({
      {kPassed, "passed", "every value within its limit"},
      {kIncorrect, "incorrect", "a value beyond its limit"},
      {kImplausible, "implausible", "faster than the device can be"},
      {kUnverified, "unverified", "ran, but was not compared with a reference"},
      {kUnsupported, "unsupported", "the backend or the device refuses the case"},
      {kError, "error", "the case could not be run"},
      {kSkipped, "skipped", "not run"},
  });
  return kRows;
}

StatusCounts count_statuses(const std::vector<Result>& results) {
  StatusCounts counts;
  for (const Result& result : results) {
    switch (result.status) {
      case Status::kPassed:
        ++counts.passed;
        break;
      case Status::kIncorrect:
        ++counts.incorrect;
        break;
      case Status::kImplausible:
        ++counts.implausible;
        break;
      case Status::kUnverified:
        ++counts.unverified;
        break;
      case Status::kUnsupported:
        ++counts.unsupported;
        break;
      case Status::kError:
        ++counts.error;
        break;
      case Status::kSkipped:
        ++counts.skipped;
        break;
    }
  }
  return counts;
}

}  // namespace attnbench
