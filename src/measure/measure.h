// Launches -> samples -> Timing: warm-up, samples until the noise bound or the time limit, median
// and quartiles. The same machinery times CPU operations and GPU kernels.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/problem.h"
#include "core/result.h"

namespace attnbench {

/// What is timed. On the CPU a launch is a call; on a GPU it is bracketed by events.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  /// Runs `work` once and returns its time in microseconds.
  virtual double time_us(const std::function<void()>& work) = 0;
};

/// Times by `clock` on the calling thread.
class ClockStopwatch final : public Stopwatch {
 public:
  explicit ClockStopwatch(const Clock& clock) : clock_(clock) {}
  double time_us(const std::function<void()>& work) override;

 private:
  const Clock& clock_;
};

/// Evicts the last-level cache between samples, so that every sample starts cold.
class CacheFlusher {
 public:
  virtual ~CacheFlusher() = default;
  virtual void flush() = 0;
  /// Whether the flushed set exceeds the last-level cache; "cold" is claimed only then.
  virtual bool proven_cold() const = 0;
};

/// Every core writes and reads its part of a host buffer of twice all caches from level 2 upwards
/// (sysfs / sysconf). Where the caches are unknown (64 MiB are used) or larger than 1 GiB,
/// proven_cold() is false.
std::unique_ptr<CacheFlusher> make_cpu_cache_flusher();

struct MeasureStep {
  std::string name;
  bool in_median = true;
  double bytes = 0;
  double flops = 0;
  std::function<void()> run;
};

struct MeasureOptions {
  TimingSpec spec;
  std::function<bool()> should_stop;  // Ctrl-C; may be empty
};

/// Up to three warm-up runs (more than one only while a tenth of timeout_s is not spent), then
/// samples. The cache is flushed before a sample when spec.l2 is cold. One sample runs every step
/// in order, each timed on its own; its time is the sum of the steps with in_median. Sampling ends
/// when (a) spec.samples are taken if given, or (b) at least 5 samples are taken, sampling has
/// lasted min_time_ms (flushes included) and the noise is at most max_noise, or (c) timeout_s is
/// spent (warm-up included; one sample is always taken), or (d) 10,000 samples are taken, or (e)
/// should_stop says so. Noise is the relative standard error of the median,
/// 1.2533 * stdev / sqrt(n) / mean; it and the standard deviation are NaN for a single sample.
Timing measure(const std::vector<MeasureStep>& steps, Stopwatch& stopwatch, CacheFlusher* flusher,
               const Clock& clock, const MeasureOptions& options);

/// Median, quartiles (linear interpolation), mean, sample standard deviation and noise of samples.
Timing summarize_samples(std::vector<double> samples_us);

/// Single-precision matrix rate and streaming bandwidth of this CPU, measured in well under a
/// second: the ceilings of roofline_pct.
struct CpuCeilings {
  double gflops = 0;
  double gbps = 0;
};
CpuCeilings measure_cpu_ceilings(int num_threads);

}  // namespace attnbench
