// Timing and throughput of a prepared pipeline.
#pragma once

#include "backends/backend.h"
#include "bench/bench.h"
#include "bench/timing_tools.h"
#include "core/result.h"

namespace attnbench {

/// Times `pipeline` with `tools` and sets result.timing and result.throughput.
void time_job(const Problem& problem, Pipeline& pipeline, TimingTools& tools,
              const BenchOptions& options, Result& result);

}  // namespace attnbench
