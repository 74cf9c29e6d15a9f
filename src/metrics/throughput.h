// Time, FLOPs and bytes -> throughput and roofline share (contract section 4).
#pragma once

#include <cstdint>

#include "core/result/result.h"

namespace attnbench {

struct Work {
  double flops = 0;
  double unique_bytes = 0;  // unavoidable traffic
  double kv_bytes = 0;      // live K/V bytes of every request
  std::int64_t tokens = 0;  // new tokens
};

/// Ceilings of the device; 0 = not measured (roofline_pct is then NaN and `bound` empty).
struct Ceilings {
  double tflops = 0;
  double gbps = 0;
};

/// `bound` is the ceiling that the work meets first. roofline_pct = 100 * (the least time that the
/// ceilings allow) / time; it is not clipped.
Throughput compute_throughput(const Work& work, double time_us, const Ceilings& ceilings);

}  // namespace attnbench
