// Rates from a time. The roofline has two lines, arithmetic and memory; the slower of the two times
// is the least one that the device allows. What was not measured is NaN.
#include "metrics/throughput.h"

#include <algorithm>
#include <limits>

namespace attnbench {

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

}  // namespace attnbench
