// Timing of a job: what it needs of a device (a stopwatch, a way to empty its cache, its ceilings),
// and one pipeline's measurement with the throughput that follows from it.
//
// Ceilings are measured on this device, in this process, not taken from a data sheet: the share of
// the roofline in a result is of what the device does reach. They are measured once, before the
// first sample that needs them.
#pragma once

#include <memory>
#include <string>

#include "backends/backend.h"
#include "bench/bench.h"
#include "core/problem/problem.h"
#include "core/result/result.h"
#include "measure/measure.h"
#include "metrics/throughput.h"

namespace attnbench {

class CudaOps;
class Ops;

class TimingTools {
 public:
  virtual ~TimingTools() = default;
  /// `own_threads`: what is timed runs on threads of its own, which those of the operations must
  /// leave the cores to.
  virtual std::unique_ptr<Stopwatch> make_stopwatch(TimingMode mode, bool own_threads) = 0;
  virtual CacheFlusher& flusher() = 0;
  /// Of memory, and of the arithmetic that the backend's scores are made of.
  virtual Ceilings ceilings(const Problem& problem, const Backend& backend) = 0;
};

/// Of this machine's cores, for work on `ops`, which must outlive them; `num_threads` 0 = all.
/// Flusher and ceilings are made when first used.
std::unique_ptr<TimingTools> make_cpu_timing_tools(Ops& ops, int num_threads);
/// On the stream of `ops`, which must outlive them.
std::unique_ptr<TimingTools> make_cuda_timing_tools(CudaOps& ops);

/// Timing and throughput of a prepared pipeline.
///
/// Times a pipeline in `rounds` rounds, between which others may run. Everything passed by
/// reference must outlive it. Measures the ceilings of the device at once, where `tools` have not
/// yet, so that this falls between no two rounds.
class JobTiming {
 public:
  JobTiming(const Problem& problem, const Backend& backend, Pipeline& pipeline, TimingTools& tools,
            const BenchOptions& options, int rounds = 1);
  void take_round() { measurement_.take_round(); }
  /// Sets result.timing and result.throughput.
  void finish(Result& result);

 private:
  const Problem& problem_;
  const Backend& backend_;
  Ceilings ceilings_;
  std::unique_ptr<Stopwatch> stopwatch_;
  Measurement measurement_;
};

}  // namespace attnbench
