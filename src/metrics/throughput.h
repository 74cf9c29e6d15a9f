// Time, FLOPs and bytes -> throughput and roofline share (contract section 4).
//
// Work is what the problem needs at least, not what a kernel does: FLOPs of the visible pairs of
// queries and keys, and each byte that has to move counted once. A kernel that computes masked
// pairs or reads a key twice gets no credit for it, and figures of different kernels can be
// compared.
//
// The roofline share is the least time that the ceilings allow over the time taken. It can exceed
// 100 % where data stay in a cache that is faster than the memory whose rate is the ceiling. So
// whether a time is possible at all goes by less: judge_physics().
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "core/result/result.h"

namespace attnbench {

/// Of one run of the problem.
struct Work {
  double flops = 0;
  double unique_bytes = 0;  // unavoidable traffic
  double kv_bytes = 0;      // live K/V bytes of every request
  std::int64_t tokens = 0;  // new tokens
  /// Of unique_bytes, those that memory need not move while the run is timed, although the caches
  /// were emptied before: results, which may stay in a cache, and what was just written there.
  double cacheable_bytes = 0;
};

/// Ceilings of the device, as they were measured on it; tflops for the type that scores are made
/// of, and where weights and values are of another one for both (mixed_rate()); 0 = not measured
/// (roofline_pct is then NaN and `bound` empty).
struct Ceilings {
  double tflops = 0;
  double gbps = 0;
  /// Operations of the same type in one cycle of the device by its architecture; 0 = not known.
  double per_cycle = 0;
};

/// The rate of work of which `share` is done at `rate` and the rest at `other`, in their unit; 0
/// where one of them is not known (0).
double mixed_rate(double share, double rate, double other);

/// `time_us` is the median of a run, in microseconds; of a time that is not positive every rate is
/// NaN. Rates are in units of 10^12 FLOP/s and 10^9 bytes/s.
///
/// `bound` is the ceiling that the work meets first. roofline_pct = 100 * (the least time that the
/// ceilings allow) / time; it is not clipped.
Throughput compute_throughput(const Work& work, double time_us, const Ceilings& ceilings);

/// What no kernel on this device exceeds, where that differs from the ceilings of the roofline.
struct Physics {
  Ceilings ceilings;  // as measured; 0 = not measured, which allows any time
  /// Ways in which a kernel may be right with faster units than those of ceilings.tflops, as a
  /// factor of it: f32 out of several 16-bit products, bf16 instructions of a CPU.
  double faster_units = 1;
  std::optional<double> cache_bytes;  // of all caches from level 2 up; nothing = not known
  bool is_gpu = false;
  double clock_mhz = 0;  // of the multiprocessors, during the samples; 0 or NaN = not known
};

/// Shares of a ceiling up to which a time is believed. Why not 1: ceilings are measured, and a
/// kernel whose data lie better than those of the measurement comes out a little above. Of the
/// matrix units more is believed where their peak at the observed clock is more: a product of the
/// library is held back by the power limit as well, and full attention of 256 columns reached 111 %
/// of it, 96 % of the peak at that clock (one NVIDIA H200, 2026-11-30).
constexpr double kBelievedShare = 1.10;
/// The rate of a GPU's memory with cold caches: no public kernel has been seen above 0.99 of it.
constexpr double kBelievedColdShare = 1.05;

struct Belief {
  /// Share of what the device can do that the time is, in percent, of the ceiling that decides; NaN
  /// where none was measured or nothing is certain to be done.
  double physics_pct = std::numeric_limits<double>::quiet_NaN();
  /// Why the time cannot be: the ceiling that it beats, the least time, by how much; empty when it
  /// can be.
  std::string accusation;
};

/// Whether a run of the work can take `median_us` (microseconds). `is_cold`: the caches were
/// emptied before every sample.
///
/// Memory must move unique_bytes; where caches are cold all but the cacheable_bytes that fit into
/// them, where they are warm all but what fits, and where their size is not known no number of
/// bytes is certain. A share above 100 % of the roofline is therefore no accusation by itself.
Belief judge_physics(const Work& work, double median_us, bool is_cold, const Physics& physics);

}  // namespace attnbench
