// The CPU's tools, those of a CUDA device, and the measurement that uses either.
#include "bench/loop/timing_tools.h"

#include <optional>
#include <string>
#include <utility>

#include "backends/mla/plan.h"
#include "core/system/clock.h"
#include "core/system/parallel.h"
#include "inputs/cache/stored_kv.h"
#include "measure/cpu_measure.h"
#include "measure/cpu_wait.h"
#include "measure/cuda_ceilings.h"
#include "measure/cuda_measure.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/ops.h"

namespace attnbench {
namespace {

class CpuTimingTools final : public TimingTools {
 public:
  CpuTimingTools(Ops& ops, int num_threads) : ops_(ops), num_threads_(num_threads) {}

  std::unique_ptr<Stopwatch> make_stopwatch(TimingMode, bool own_threads) override {
    // Why: more threads than cores wait for each other, whoever else there is, and should not
    // wait for work without sleeping.
    const int threads = num_threads_ > 0 ? num_threads_ : available_cores();
    const double cores = usable_cores();
    if (threads > cores) return std::make_unique<ClockStopwatch>(steady_clock());
    CpuWatch watch{thread_waits, process_cpu_us, cores, {}};
    if (!own_threads) watch.settle = [this] { ops_.settle(); };
    return std::make_unique<ClockStopwatch>(steady_clock(), std::move(watch));
  }
  CacheFlusher& flusher() override {
    if (!flusher_) flusher_ = make_cpu_cache_flusher();
    return *flusher_;
  }
  Ceilings ceilings(const Problem&, const Backend&) override {
    if (!ceilings_) ceilings_ = measure_cpu_ceilings(num_threads_);
    return {ceilings_->gflops * 1e-3, ceilings_->gbps};
  }

 private:
  Ops& ops_;
  int num_threads_;
  std::unique_ptr<CacheFlusher> flusher_;
  std::optional<CpuCeilings> ceilings_;
};

bool has_fp8_scores(const Problem& problem, const Backend& backend) {
  const MlaCapability* mla = backend.mla_capability(problem);
  if (mla != nullptr) return has_fp8_decodes(*mla, problem);
  return problem.kv_cache.int8_level == 0 && query_is_quantised(problem, backend.kernel_rules());
}

/// The rate of the matrix units for what the scores are made of.
double matrix_rate(const CudaCeilings& ceilings, const Problem& problem, const Backend& backend) {
  if (problem.kv_cache.int8_level == 1) return ceilings.int8_tops;
  if (has_fp8_scores(problem, backend)) return ceilings.fp8_tflops;
  switch (problem.attention.dtype) {
    case Dtype::kF16:
      return ceilings.fp16_tflops;
    case Dtype::kF32:
      return ceilings.fp32_tflops;
    default:
      return ceilings.bf16_tflops;
  }
}

class CudaTimingTools final : public TimingTools {
 public:
  explicit CudaTimingTools(CudaOps& ops) : ops_(ops) {}

  std::unique_ptr<Stopwatch> make_stopwatch(TimingMode mode, bool) override {
    return make_cuda_stopwatch(ops_.runtime(), ops_.stream(), steady_clock(), mode);
  }
  CacheFlusher& flusher() override {
    if (!flusher_) flusher_ = make_cuda_cache_flusher(ops_.runtime(), ops_.stream());
    return *flusher_;
  }
  Ceilings ceilings(const Problem& problem, const Backend& backend) override {
    if (!ceilings_) {
      ceilings_ = measure_cuda_ceilings(ops_.runtime(), ops_.stream(), ops_.kernels());
    }
    return {matrix_rate(*ceilings_, problem, backend), ceilings_->memory_gbps()};
  }

 private:
  CudaOps& ops_;
  std::unique_ptr<CacheFlusher> flusher_;
  std::optional<CudaCeilings> ceilings_;
};

}  // namespace

std::unique_ptr<TimingTools> make_cpu_timing_tools(Ops& ops, int num_threads) {
  return std::make_unique<CpuTimingTools>(ops, num_threads);
}

std::unique_ptr<TimingTools> make_cuda_timing_tools(CudaOps& ops) {
  return std::make_unique<CudaTimingTools>(ops);
}

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
