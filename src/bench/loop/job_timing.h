// Timing and throughput of a prepared pipeline.
#pragma once

#include <memory>
#include <string>

#include "backends/backend.h"
#include "bench/bench.h"
#include "bench/loop/timing_tools.h"
#include "core/result/result.h"

namespace attnbench {

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
