// Rates from a time. The roofline has two lines, arithmetic and memory; the slower of the two times
// is the least one that the device allows. What was not measured is NaN.
#include "metrics/throughput.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace attnbench {
namespace {

/// Bytes that memory has moved when the run is over, whatever the caches did.
double certain_bytes(const Work& work, bool is_cold, const std::optional<double>& cache_bytes) {
  if (is_cold) {
    return work.unique_bytes - std::min(work.cacheable_bytes, cache_bytes.value_or(0));
  }
  return cache_bytes ? std::max(0.0, work.unique_bytes - *cache_bytes) : 0;
}

/// One ceiling: the least time that it allows for the work.
struct Bound {
  const char* name;
  double least_us;
  double believed;   // share of the ceiling
  std::string work;  // "2.15 GB take ... at 4447 GB/s"
};

std::string accusation(const Bound& bound, double median_us) {
  const double share = bound.least_us / median_us;
  return fmt::format(
      "faster than the device can be: {:.4g} us is {:.0f}% of the measured {} ceiling, of which "
      "{:.0f}% is believed: {} take {:.4g} us at least",
      median_us, 100 * share, bound.name, 100 * bound.believed, bound.work, bound.least_us);
}

}  // namespace

double mixed_rate(double share, double rate, double other) {
  if (!(rate > 0) || !(other > 0)) return 0;
  return 1 / (share / rate + (1 - share) / other);
}

Throughput compute_throughput(const Work& work, double time_us, const Ceilings& ceilings) {
  // What cannot be told: rates of a time that is none, and the share of a roofline of which a line
  // is missing. `bound` stays empty then.
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  Throughput result;
  result.flops = work.flops;
  result.bytes = work.unique_bytes;
  // Why NaN and no error: a clock too coarse for a very short run is no fault of the backend, and
  // its verdict stands.
  const double time_s = time_us > 0 ? time_us * 1e-6 : kUnknown;
  result.tflops = work.flops / time_s * 1e-12;
  result.gbps = work.unique_bytes / time_s * 1e-9;
  result.kv_gbps = work.kv_bytes / time_s * 1e-9;
  result.tokens_per_s = static_cast<double>(work.tokens) / time_s;
  result.roofline_pct = kUnknown;
  // A single ceiling is reported too, for a reader who knows the other one.
  if (ceilings.tflops > 0) result.ceiling_tflops = ceilings.tflops;
  if (ceilings.gbps > 0) result.ceiling_gbps = ceilings.gbps;
  if (ceilings.tflops > 0 && ceilings.gbps > 0) {
    const double compute_s = work.flops / (ceilings.tflops * 1e12);
    const double memory_s = work.unique_bytes / (ceilings.gbps * 1e9);
    // Equal times count as memory: there, more arithmetic units would not help. The share is not
    // clipped, because one above 100 % tells that data came from a cache, or that a ceiling was
    // measured too low.
    result.bound = memory_s >= compute_s ? "memory" : "compute";
    result.roofline_pct = 100 * std::max(compute_s, memory_s) / time_s;
  }
  return result;
}

Belief judge_physics(const Work& work, double median_us, bool is_cold, const Physics& physics) {
  const Ceilings& ceilings = physics.ceilings;
  std::vector<Bound> bounds;
  if (ceilings.tflops > 0 && work.flops > 0) {
    const double rate = ceilings.tflops * physics.faster_units;
    const double peak = ceilings.per_cycle * physics.clock_mhz * 1e-6;
    const bool has_peak = std::isfinite(peak) && peak > rate * kBelievedShare;
    const double believed = has_peak ? peak / rate : kBelievedShare;
    bounds.push_back({"matrix", work.flops / rate * 1e-6, believed,
                      fmt::format("{:.4g} GFLOP at {:.4g} TFLOP/s", work.flops * 1e-9, rate)});
  }
  const double bytes = certain_bytes(work, is_cold, physics.cache_bytes);
  if (ceilings.gbps > 0 && bytes > 0) {
    bounds.push_back({"memory", bytes / ceilings.gbps * 1e-3,
                      is_cold && physics.is_gpu ? kBelievedColdShare : kBelievedShare,
                      fmt::format("{:.4g} MB at {:.4g} GB/s", bytes * 1e-6, ceilings.gbps)});
  }
  if (bounds.empty()) return {};
  const auto believed_us = [](const Bound& bound) { return bound.least_us / bound.believed; };
  const Bound& worst = *std::max_element(
      bounds.begin(), bounds.end(),
      [&](const Bound& a, const Bound& b) { return believed_us(a) < believed_us(b); });
  Belief belief{100 * worst.least_us / median_us, ""};
  // Why not >: of a time that is no number nothing is believed.
  if (!(median_us >= believed_us(worst))) belief.accusation = accusation(worst, median_us);
  return belief;
}

}  // namespace attnbench
