// Launches -> samples -> Timing: warm-up, samples until the noise bound or the time limit, median
// and quartiles. The same machinery times CPU operations and GPU kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/problem/problem.h"
#include "core/result/result.h"
#include "core/step.h"
#include "core/system/clock.h"
#include "measure/cpu_wait.h"

namespace attnbench {

/// Works that are timed as one, in order and back to back.
using Part = std::vector<std::function<void()>>;

class CacheFlusher;

/// What happens around the work of every sample, so that the work shows: it gets inputs that no run
/// has seen, and what it left is kept. On a GPU everything is queued on the stream that is timed;
/// inputs become readable only behind the gate, and nothing waits.
class SampleWork {
 public:
  virtual ~SampleWork() = default;
  /// First of all, before the gate: outputs and inputs become poison.
  virtual void poison() = 0;
  /// Behind the gate, before the caches are flushed: keys and values.
  virtual void rewrite() = 0;
  /// Last, before the time of the part that first reads it begins: the query.
  virtual void restore() = 0;
  /// Behind the last part: its outputs are kept.
  virtual void keep() = 0;
  /// When all that was queued has happened. `sample`: its number; nothing where it is none of the
  /// samples of the measurement.
  virtual void finish(std::optional<std::int64_t> sample) = 0;
  /// After the last sample: inputs are again what they were before the first.
  virtual void end() = 0;
  /// Number of the step that restore() belongs in front of.
  virtual std::size_t first_reader() const = 0;
};

/// How a sample is taken.
struct SampleSetting {
  CacheFlusher* flusher = nullptr;  // null = caches stay as they are
  SampleWork* work = nullptr;       // may be null
  std::size_t reader = 0;           // number of the part that work->restore() belongs in front of
};

/// Times parts. On the CPU a part is bracketed by clock readings, on a GPU by events.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  /// Called once with everything that time_us() will have to time; what it returns is timed
  /// instead (e.g. the launch of a graph that was captured from the part).
  virtual std::vector<Part> prepare(std::vector<Part> parts) { return parts; }
  /// Runs the parts in order, once, and returns the time of each in microseconds.
  virtual std::vector<double> time_us(const std::vector<Part>& parts) = 0;
  /// The same of one sample, whose part `setting.reader` begins behind setting.work->restore().
  virtual std::vector<double> time_sample(const std::vector<Part>& parts,
                                          const SampleSetting& setting);
  /// Whether the boundary between two parts takes time itself, so that steps which belong together
  /// are timed as one part and apart only in samples of their own.
  virtual bool boundaries_take_time() const { return false; }
  virtual std::string mode() const { return "stream"; }  // "stream" | "graph"
  /// What starting the work costs the host, in microseconds: of the samples so far on a GPU (its
  /// own time is not in it), of an empty part on the CPU.
  virtual double launch_overhead_us() = 0;
  /// How long the work of the last time_us() waited for cores that other programs had, in
  /// microseconds; NaN where that is not known.
  virtual double waited_us() const { return std::numeric_limits<double>::quiet_NaN(); }
  /// Before every sample, before the cache is flushed: waits until the device is in the state that
  /// samples start from.
  virtual void rest() {}
  /// What rest() is for, as Timing::pace; empty where nothing depends on it.
  virtual std::string pace() const { return {}; }
  /// Clock of the device during the last time_us(), in MHz; NaN where it is not known.
  virtual double sm_mhz() const { return std::numeric_limits<double>::quiet_NaN(); }
  /// Clocks of the device while the samples ran, where they can be read.
  virtual std::optional<DeviceClocks> clocks() { return std::nullopt; }
};

/// What a stopwatch on the CPU knows of its threads; all of it may be empty.
struct CpuWatch {
  std::function<ThreadWaits()> waits;  // thread_waits
  std::function<double()> ran_us;      // process_cpu_us; with waits
  double cores = 0;                    // usable_cores; with waits
  std::function<void()> settle;        // before the time starts
};

/// Times by `clock` on the calling thread.
class ClockStopwatch final : public Stopwatch {
 public:
  explicit ClockStopwatch(const Clock& clock, CpuWatch watch = {})
      : clock_(clock), watch_(std::move(watch)) {}
  std::vector<double> time_us(const std::vector<Part>& parts) override {
    return time_us(parts, nullptr, 0);
  }
  std::vector<double> time_sample(const std::vector<Part>& parts,
                                  const SampleSetting& setting) override;
  double launch_overhead_us() override;
  double waited_us() const override { return waited_us_; }

 private:
  std::vector<double> time_us(const std::vector<Part>& parts, SampleWork* work, std::size_t reader);
  void settle() const {
    if (watch_.settle) watch_.settle();
  }

  const Clock& clock_;
  CpuWatch watch_;
  double waited_us_ = std::numeric_limits<double>::quiet_NaN();
};

/// Evicts the last-level cache between samples, so that every sample starts cold.
class CacheFlusher {
 public:
  virtual ~CacheFlusher() = default;
  virtual void flush() = 0;
  /// What a sample is then proven to begin with: kWarm unless the flushed set exceeds the
  /// last-level cache. No more is claimed, whatever was asked for.
  virtual L2Mode leaves() const = 0;
  /// What is overwritten.
  virtual std::size_t size_bytes() const = 0;
};

struct MeasureOptions {
  TimingSpec spec;
  std::function<bool()> should_stop;  // Ctrl-C; may be empty
  int rounds = 1;                     // of a Measurement
  SampleWork* work = nullptr;         // around every sample; must outlive the measurement
};

/// Up to three warm-up runs (more than one only while a tenth of timeout_s is not spent), then
/// samples. The cache is flushed before a sample unless spec.l2 is warm. One sample runs every step
/// in order, each timed on its own, or, where boundaries take time, each run of neighbours with the
/// same in_median as one part (further samples, up to 11, then time the steps); its time is the sum
/// of the parts with in_median. Sampling ends when (a) spec.samples are taken if given, or (b) at
/// least 5 samples are taken, sampling has lasted min_time_ms (flushes included) and the noise is
/// at most max_noise, or (c) timeout_s is spent (warm-up included; one sample is always taken), or
/// (d) 10,000 samples are taken, or (e) should_stop says so. Noise is the relative standard error
/// of the median, 1.2533 * stdev / sqrt(n) / mean; it and the standard deviation are NaN for a
/// single sample.
Timing measure(const std::vector<Step>& steps, Stopwatch& stopwatch, CacheFlusher* flusher,
               const Clock& clock, const MeasureOptions& options);

/// The same in options.rounds rounds, between which other work may run. Each round warms up (once
/// after the first) and goes on until its part of the samples, times and limits above is reached,
/// counted from the first round on: of three rounds the second ends at two thirds of spec.samples,
/// min_time_ms and timeout_s, and at max_noise / sqrt(2/3) over all samples so far. Where
/// spec.samples is not given it has at least five samples, and half to twice those of the first
/// round. A round takes one sample at least; none is taken once timeout_s is spent. What is passed
/// by reference must outlive it.
class Measurement {
 public:
  Measurement(std::vector<Step> steps, Stopwatch& stopwatch, CacheFlusher* flusher,
              const Clock& clock, MeasureOptions options);
  ~Measurement();
  void take_round();
  /// After the last round. With several, Timing::rounds are their samples.
  Timing finish();

 private:
  class Sampler;

  Stopwatch& stopwatch_;
  CacheFlusher* flusher_;  // null = caches stay as they are
  std::unique_ptr<Sampler> sampler_;
};

/// How many of `passes` over all cases such a case takes part in: every one takes a sample.
int passes_of(const TimingSpec& spec, int passes);

/// The part of pass `pass` < passes_of(spec, passes): all parts have the samples, least time, time
/// limit and rounds of `spec` together, and its noise.
TimingSpec pass_share(const TimingSpec& spec, int pass, int passes);

/// Median of time times clock; NaN without samples. Both of the same samples, in microseconds and
/// MHz.
double median_cycles(const std::vector<double>& samples_us, const std::vector<double>& mhz);

/// Median, quartiles (linear interpolation), mean, sample standard deviation and noise of samples.
Timing summarize_samples(std::vector<double> samples_us);

}  // namespace attnbench
