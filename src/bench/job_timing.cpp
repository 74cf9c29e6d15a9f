#include "bench/job_timing.h"

#include <memory>
#include <vector>

#include "backends/plugin_pipeline.h"
#include "core/clock.h"

namespace attnbench {

void time_job(const Problem& problem, Pipeline& pipeline, TimingTools& tools,
              const BenchOptions& options, Result& result) {
  std::vector<MeasureStep> steps;
  for (const Step& step : pipeline.steps()) {
    steps.push_back({step.name, step.in_median, step.bytes, step.flops, step.run});
  }
  const std::unique_ptr<Stopwatch> stopwatch = tools.make_stopwatch(
      problem.timing.mode, dynamic_cast<const PluginPipeline*>(&pipeline) != nullptr);
  CacheFlusher* flush = problem.timing.l2 == L2Mode::kCold ? &tools.flusher() : nullptr;
  const Ceilings ceilings = tools.ceilings(problem, result.backend);
  const TimingSpec spec = pass_share(problem.timing, options.pass, options.passes);
  result.timing = measure(steps, *stopwatch, flush, steady_clock(), {spec, options.should_stop});

  const Traffic traffic = attention_traffic(problem, result.backend);
  const Work work{attention_flops(problem, result.backend), traffic.unique_bytes, traffic.kv_bytes,
                  problem.num_tokens()};
  result.throughput = compute_throughput(work, result.timing->median_us, ceilings);
}

}  // namespace attnbench
