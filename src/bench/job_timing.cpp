#include "bench/job_timing.h"

#include <vector>

#include "core/clock.h"

namespace attnbench {

void JobTimer::time(const Problem& problem, Pipeline& pipeline, Ops& ops, Result& result) {
  std::vector<MeasureStep> steps;
  for (const Step& step : pipeline.steps()) {
    const auto run_to_end = [&step, &ops] {
      step.run();
      ops.wait();
    };
    steps.push_back({step.name, step.in_median, step.bytes, step.flops, run_to_end});
  }
  ClockStopwatch stopwatch(steady_clock());
  // The flusher and the ceilings are those of the CPU.
  const bool is_cpu = options_.device == "cpu";
  CacheFlusher* flush = is_cpu && problem.timing.l2 == L2Mode::kCold ? &flusher() : nullptr;
  const Ceilings limits = is_cpu ? ceilings() : Ceilings{};
  result.timing =
      measure(steps, stopwatch, flush, steady_clock(), {problem.timing, options_.should_stop});

  const Traffic traffic = attention_traffic(problem, result.backend);
  const Work work{attention_flops(problem, result.backend), traffic.unique_bytes, traffic.kv_bytes,
                  problem.num_tokens()};
  result.throughput = compute_throughput(work, result.timing->median_us, limits);
}

CacheFlusher& JobTimer::flusher() {
  if (!flusher_) flusher_ = make_cpu_cache_flusher();
  return *flusher_;
}

const Ceilings& JobTimer::ceilings() {
  if (!ceilings_) {
    const CpuCeilings measured = measure_cpu_ceilings(options_.num_threads);
    ceilings_ = Ceilings{measured.gflops * 1e-3, measured.gbps};
  }
  return *ceilings_;
}

}  // namespace attnbench
