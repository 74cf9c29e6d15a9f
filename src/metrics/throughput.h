// Time, FLOPs and bytes -> throughput and roofline share (contract section 4).
//
// Work is what the problem needs at least, not what a kernel does: FLOPs of the visible pairs of
// queries and keys, and each byte that has to move counted once. A kernel that computes masked
// pairs or reads a key twice gets no credit for it, and figures of different kernels can be
// compared.
//
// The roofline share is the least time that the ceilings allow over the time taken. It can exceed
// 100 % where data stay in a cache that is faster than the memory whose rate is the ceiling.
#pragma once

#include <cstdint>

#include "core/result/result.h"

namespace attnbench {

/// Of one run of the problem.
struct Work {
  double flops = 0;
  double unique_bytes = 0;  // unavoidable traffic
  double kv_bytes = 0;      // live K/V bytes of every request
  std::int64_t tokens = 0;  // new tokens
};

/// Ceilings of the device, as they were measured on it; tflops for the type that scores are made
/// of; 0 = not measured (roofline_pct is then NaN and `bound` empty).
struct Ceilings {
  double tflops = 0;
  double gbps = 0;
};

/// `time_us` is the median of a run, in microseconds; of a time that is not positive every rate is
/// NaN. Rates are in units of 10^12 FLOP/s and 10^9 bytes/s.
///
/// `bound` is the ceiling that the work meets first. roofline_pct = 100 * (the least time that the
/// ceilings allow) / time; it is not clipped.
Throughput compute_throughput(const Work& work, double time_us, const Ceilings& ceilings);

}  // namespace attnbench
