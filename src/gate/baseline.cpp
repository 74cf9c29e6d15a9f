#include "gate/baseline.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/result/metric_table.h"
#include "gate/belief.h"
#include "gate/foreign.h"
#include "gate/gate.h"
#include "gate/statistics.h"

namespace attnbench {
namespace {

constexpr std::size_t kEnoughForShare = 10;
constexpr double kUsualShare = 0.9;
constexpr double kUsualFactor = 2;

struct Range {
  double least;
  double most;
};

std::map<std::string, Range> median_ranges(const std::vector<std::vector<Result>>& runs,
                                           std::map<std::string, int>& counts) {
  std::map<std::string, Range> ranges;
  for (const std::vector<Result>& run : runs) {
    for (const Result& result : run) {
      if (!result.timing || !std::isfinite(result.timing->median_us)) continue;
      if (result.status == Status::kImplausible) continue;
      const double median_us = steady_part(*result.timing).median_us;
      const auto [entry, is_new] = ranges.try_emplace(result.id, Range{median_us, median_us});
      entry->second.least = std::min(entry->second.least, median_us);
      entry->second.most = std::max(entry->second.most, median_us);
      ++counts[result.id];
    }
  }
  return ranges;
}

/// Samples that were taken in one go are one round.
std::vector<std::int64_t> rounds_of(const Timing& timing) {
  if (!timing.rounds.empty() || timing.samples_us.empty()) return timing.rounds;
  return {static_cast<std::int64_t>(timing.samples_us.size())};
}

/// Of medians without their samples: the mean, by the samples behind each.
double mean_of(double before, const std::vector<double>& samples_before, double value,
               const std::vector<double>& samples) {
  const auto count_before = static_cast<double>(samples_before.size());
  const auto count = static_cast<double>(samples.size());
  return (before * count_before + value * count) / (count_before + count);
}

/// What was measured without keeping its samples, each number as its row says.
void prepend_medians(const Timing& before, Timing& timing) {
  const auto mean = [&](double a, double b) {
    return mean_of(a, before.samples_us, b, timing.samples_us);
  };
  for (const MetricRow<Timing>& row : metric_table().timing) {
    const bool is_mean = row.pooling == Pooling::kMean;
    if (!is_mean && row.pooling != Pooling::kLargest) continue;
    const double old_number = number_of(row, before);
    const double number = number_of(row, timing);
    set_number(row, timing, is_mean ? mean(old_number, number) : std::fmax(old_number, number));
  }
  if (before.steps.size() != timing.steps.size()) return;
  for (std::size_t i = 0; i < timing.steps.size(); ++i) {
    timing.steps[i].median_us = mean(before.steps[i].median_us, timing.steps[i].median_us);
  }
}

void prepend_clocks(const DeviceClocks& before, DeviceClocks& clocks) {
  clocks.sm_mhz_min = std::min(before.sm_mhz_min, clocks.sm_mhz_min);
  clocks.sm_mhz_max = std::max(before.sm_mhz_max, clocks.sm_mhz_max);
  for (const std::string& reason : before.throttling) {
    const auto& known = clocks.throttling;
    if (std::find(known.begin(), known.end(), reason) == known.end()) {
      clocks.throttling.push_back(reason);
    }
  }
}

/// The waiting and the clocks of all samples are known, or those of none.
void prepend_samples(const Timing& before, Timing& timing) {
  if (before.samples_us.empty()) return;
  prepend_medians(before, timing);
  if (before.clocks && timing.clocks) prepend_clocks(*before.clocks, *timing.clocks);
  const bool waits_known = has_waits(before) && has_waits(timing);
  if (waits_known) {
    timing.waits_us.insert(timing.waits_us.begin(), before.waits_us.begin(), before.waits_us.end());
  } else {
    timing.waits_us.clear();
  }
  const bool clocks_known = has_clocks(before) && has_clocks(timing);
  if (clocks_known) {
    timing.samples_sm_mhz.insert(timing.samples_sm_mhz.begin(), before.samples_sm_mhz.begin(),
                                 before.samples_sm_mhz.end());
  } else {
    timing.samples_sm_mhz.clear();
  }
  std::vector<std::int64_t> rounds = rounds_of(before);
  const std::vector<std::int64_t> added = rounds_of(timing);
  rounds.insert(rounds.end(), added.begin(), added.end());
  timing.rounds = std::move(rounds);
  const auto count = static_cast<std::int64_t>(before.samples_us.size());
  for (SampleCheck& check : timing.checked_samples) check.sample += count;
  timing.checked_samples.insert(timing.checked_samples.begin(), before.checked_samples.begin(),
                                before.checked_samples.end());
  std::vector<double>& all = timing.samples_us;
  all.insert(all.begin(), before.samples_us.begin(), before.samples_us.end());
  summarize(timing);
}

/// Adds the samples of `before`; what is said per time follows the median.
void prepend_timing(const Timing& before, Result& result) {
  const double alone_us = result.timing->median_us;
  const double alone_cycles = result.timing->cycles;
  prepend_samples(before, *result.timing);
  if (!result.throughput) return;
  result.throughput->peak_pct *= alone_cycles / result.timing->cycles;  // NaN where one is
  for (const MetricRow<Throughput>& row : metric_table().throughput) {
    if (row.pooling != Pooling::kPerTime) continue;
    const double number = number_of(row, *result.throughput);
    set_number(row, *result.throughput, number * (alone_us / result.timing->median_us));
  }
}

void widen(NoiseFloor& floor, const NoiseFloor& other) {
  floor.runs += other.runs;
  floor.all_cases = std::max(floor.all_cases, other.all_cases);
  for (const auto& [id, gap] : other.cases) floor.cases[id] = std::max(floor.cases[id], gap);
}

}  // namespace

NoiseFloor measure_noise_floor(const std::vector<std::vector<Result>>& runs, double floor_us) {
  NoiseFloor floor;
  floor.runs = static_cast<int>(runs.size());
  std::map<std::string, int> counts;
  std::vector<double> gaps;
  for (const auto& [id, range] : median_ranges(runs, counts)) {
    if (counts[id] < 2 || range.least <= 0) continue;
    const bool counts_at_all = range.most - range.least > floor_us;
    const double gap = counts_at_all ? range.most / range.least - 1 : 0;
    gaps.push_back(std::min(gap, kLargestNoiseFloor));
    floor.cases[id] = gaps.back();
  }
  if (gaps.empty()) return floor;
  floor.all_cases = gaps.size() < kEnoughForShare ? quantile(gaps, 1)
                                                  : kUsualFactor * quantile(gaps, kUsualShare);
  floor.all_cases = std::min(floor.all_cases, kLargestNoiseFloor);
  return floor;
}

std::vector<Result> pool_runs(const std::vector<std::vector<Result>>& runs) {
  std::vector<Result> pooled;
  std::map<std::string, std::size_t> index;
  for (const std::vector<Result>& run : runs) {
    for (const Result& result : run) {
      const auto [entry, is_new] = index.try_emplace(result.id, pooled.size());
      if (is_new) {
        pooled.push_back(result);
        continue;
      }
      Result& older = pooled[entry->second];
      // Times that beat the device are none, and would make those of the other runs faster.
      const bool believed = older.status != Status::kImplausible;
      const std::optional<Timing> before = believed ? std::move(older.timing) : std::nullopt;
      older = result;
      const bool can_pool = older.status != Status::kImplausible;
      if (before && older.timing && can_pool) prepend_timing(*before, older);
    }
  }
  return pooled;
}

void add_pass(Result& result, const Result& later) {
  for (const auto& [phase, time_s] : later.run_seconds) result.run_seconds[phase] += time_s;
  const bool failed = later.status == Status::kError || later.status == Status::kIncorrect;
  if ((failed || later.status == Status::kImplausible) &&
      status_rank(later.status) > status_rank(result.status)) {
    result.status = later.status;
    result.reasons = later.reasons;
  }
  if (failed) {
    result.timing.reset();
    result.throughput.reset();
    return;
  }
  if (!result.timing || !later.timing) return;
  const Timing before = std::move(*result.timing);
  result.timing = later.timing;
  result.throughput = later.throughput;
  prepend_timing(before, result);
}

ResultFile pool_baselines(std::vector<ResultFile> files, double floor_us, bool ignore_environment) {
  std::stable_sort(files.begin(), files.end(), [](const ResultFile& a, const ResultFile& b) {
    return a.run.created < b.run.created;
  });
  ResultFile pooled = files.back();
  if (files.size() == 1) return pooled;
  std::vector<std::vector<Result>> runs;
  NoiseFloor floor;
  for (const ResultFile& file : files) {
    std::vector<std::string> reasons = foreign_reasons(file, pooled);
    if (reasons.empty()) reasons = scale_differences(file, pooled);
    if (!reasons.empty() && !ignore_environment) {
      fail(ErrorKind::kUsage, "{} and {} cannot be pooled: {}", file.path, pooled.path,
           reasons.front());
    }
    if (file.run.noise_floor) widen(floor, *file.run.noise_floor);
    runs.push_back(file.results);
  }
  widen(floor, measure_noise_floor(runs, floor_us));
  pooled.run.noise_floor = std::move(floor);
  pooled.results = pool_runs(runs);
  return pooled;
}

}  // namespace attnbench
