#include "gate/baseline.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "gate/foreign.h"
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

/// Median of the samples that no other program held up, where there are enough, else of all: what
/// others did is no property of the program.
double steady_median_us(const Timing& timing) {
  constexpr double kQuietShare = 0.01;  // as with the default threshold
  const Timing quiet = quiet_part(timing, kQuietShare);
  return quiet.samples_us.size() >= kEnoughQuiet ? quiet.median_us : timing.median_us;
}

std::map<std::string, Range> median_ranges(const std::vector<std::vector<Result>>& runs,
                                           std::map<std::string, int>& counts) {
  std::map<std::string, Range> ranges;
  for (const std::vector<Result>& run : runs) {
    for (const Result& result : run) {
      if (!result.timing || !std::isfinite(result.timing->median_us)) continue;
      const double median_us = steady_median_us(*result.timing);
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

/// The waiting of all samples is known, or that of none.
void prepend_samples(const Timing& before, Timing& timing) {
  if (before.samples_us.empty()) return;
  const bool waits_known = has_waits(before) && has_waits(timing);
  if (waits_known) {
    timing.waits_us.insert(timing.waits_us.begin(), before.waits_us.begin(), before.waits_us.end());
  } else {
    timing.waits_us.clear();
  }
  timing.cpu_wait = std::fmax(before.cpu_wait, timing.cpu_wait);
  std::vector<std::int64_t> rounds = rounds_of(before);
  const std::vector<std::int64_t> added = rounds_of(timing);
  rounds.insert(rounds.end(), added.begin(), added.end());
  timing.rounds = std::move(rounds);
  std::vector<double>& all = timing.samples_us;
  all.insert(all.begin(), before.samples_us.begin(), before.samples_us.end());
  summarize(timing);
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
    gaps.push_back(counts_at_all ? range.most / range.least - 1 : 0);
    floor.cases[id] = gaps.back();
  }
  if (gaps.empty()) return floor;
  floor.all_cases = gaps.size() < kEnoughForShare ? quantile(gaps, 1)
                                                  : kUsualFactor * quantile(gaps, kUsualShare);
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
      const std::optional<Timing> before = std::move(older.timing);
      older = result;
      if (before && older.timing) prepend_samples(*before, *older.timing);
    }
  }
  return pooled;
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
