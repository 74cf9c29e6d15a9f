// Timing of a job: what it needs of a device (a stopwatch, a way to empty its cache, its ceilings),
// and one pipeline's measurement.
//
// Ceilings are measured on this device, in this process, not taken from a data sheet: the share of
// the roofline in a result is of what the device does reach. They are measured once, before the
// first sample that needs them, by whoever judges.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "bench/bench.h"
#include "bench/loop/sample_checks.h"
#include "bench/trial/timed_samples.h"
#include "core/problem/problem.h"
#include "core/result/result.h"
#include "measure/measure.h"
#include "metrics/throughput.h"

namespace attnbench {

class CeilingMeter;
class CudaOps;
class Ops;

class TimingTools : public DeviceSpeed {
 public:
  /// Those of one problem share what they know of the rest that its samples need. `own_threads`:
  /// what is timed runs on threads of its own, which those of the operations must leave the cores
  /// to.
  virtual std::unique_ptr<Stopwatch> make_stopwatch(const Problem& problem, bool own_threads) = 0;
  /// One that leaves the caches so; `mode` is not warm. What it returns lives as long as the tools.
  virtual CacheFlusher& flusher(L2Mode mode) = 0;
  /// Memory for the checks of samples, and how many bytes of workspaces these may poison.
  virtual std::unique_ptr<SampleMemory> make_sample_memory() = 0;
  virtual std::size_t most_poison() const = 0;
};

/// Of this machine's cores, for work on `ops`, which must outlive them; `num_threads` 0 = all.
/// Flusher and ceilings are made when first used. Ceilings come from `meter` where there is one.
std::unique_ptr<TimingTools> make_cpu_timing_tools(Ops& ops, int num_threads,
                                                   std::shared_ptr<CeilingMeter> meter = nullptr);
/// On the stream of `ops`, which must outlive them.
std::unique_ptr<TimingTools> make_cuda_timing_tools(CudaOps& ops);

/// The device of the options, or the CPU, and its tools.
std::unique_ptr<Ops> open_device(const BenchOptions& options);
std::unique_ptr<TimingTools> make_tools(const BenchOptions& options, Ops& ops);

/// Times a prepared pipeline in `rounds` rounds, between which others may run. Everything passed by
/// reference must outlive it.
class JobTiming {
 public:
  JobTiming(const Problem& problem, Pipeline& pipeline, TimingTools& tools,
            const BenchOptions& options, int rounds = 1);
  void take_round() { measurement_.take_round(); }
  Timing finish() { return measurement_.finish(); }
  /// After that, when the pipeline's inputs are those of the case again: what samples show by
  /// themselves (SampleChecks::problem()), and those that are to be judged.
  std::string sample_problem() const { return checks_ ? checks_->problem() : ""; }
  std::vector<TimedSample> take_samples() {
    return checks_ ? checks_->take_samples() : std::vector<TimedSample>();
  }

 private:
  std::unique_ptr<Stopwatch> stopwatch_;
  std::unique_ptr<SampleChecks> checks_;  // null where samples are not checked
  Measurement measurement_;
};

}  // namespace attnbench
