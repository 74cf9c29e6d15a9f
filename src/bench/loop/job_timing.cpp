#include "bench/loop/job_timing.h"

#include "backends/traffic.h"
#include "core/clock.h"

namespace attnbench {

JobTiming::JobTiming(const Problem& problem, const Backend& backend, Pipeline& pipeline,
                     TimingTools& tools, const BenchOptions& options, int rounds)
    : problem_(problem),
      backend_(backend),
      ceilings_(tools.ceilings(problem, backend)),
      stopwatch_(tools.make_stopwatch(problem.timing.mode, pipeline.users() != nullptr)),
      measurement_(
          pipeline.steps(), *stopwatch_,
          problem.timing.l2 == L2Mode::kCold ? &tools.flusher() : nullptr, steady_clock(),
          {pass_share(problem.timing, options.pass, options.passes), options.should_stop, rounds}) {
}

void JobTiming::finish(Result& result) {
  result.timing = measurement_.finish();
  const Traffic traffic = attention_traffic(problem_, backend_);
  const Work work{attention_flops(problem_, backend_), traffic.unique_bytes, traffic.kv_bytes,
                  problem_.num_tokens()};
  result.throughput = compute_throughput(work, result.timing->median_us, ceilings_);
}

}  // namespace attnbench
