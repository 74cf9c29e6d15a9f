#include <optional>
#include <string>

#include "backends/mla/plan.h"
#include "bench/loop/timing_tools.h"
#include "core/clock.h"
#include "inputs/inputs.h"
#include "measure/cuda_ceilings.h"
#include "measure/cuda_measure.h"
#include "ops/cuda/cuda_ops.h"

namespace attnbench {
namespace {

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

std::unique_ptr<TimingTools> make_cuda_timing_tools(CudaOps& ops) {
  return std::make_unique<CudaTimingTools>(ops);
}

}  // namespace attnbench
