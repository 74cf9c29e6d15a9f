// CUDNN as a pipeline: our cache write where keys lie in pages, then one run of cuDNN's plan. What
// differs from a native pipeline is around the run and not timed: the cache is cleaned before it,
// and cuDNN's statistics become our LSE after it (cudnn/form.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backends/attention/pipeline.h"
#include "backends/cudnn/form.h"
#include "cudnn/library.h"

namespace attnbench {

class CudnnPipeline final : public AttentionPipeline {
 public:
  /// Makes the plan. `library` must outlive it. Errors: as CudnnLibrary::plan, E-CAPACITY.
  CudnnPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                const CudnnLibrary& library);

  /// With our LSE, [H, T] natural, whatever form the statistics have.
  PipelineOutput read_output(bool with_cache) override;
  std::optional<SampleSide> sample_side() override;

 private:
  void set_memory(const BackendInputs& inputs);
  void set_fp8_memory(const BackendInputs& inputs);
  const void* upload_offsets(const std::vector<std::int64_t>& offsets, const char* name);
  const float* upload_scalar(float value, const char* name);
  void run();

  CudnnForm form_;
  const BackendInputs& inputs_;  // outlives the pipeline
  CudnnMemory arguments_;        // of every run
  void* workspace_ = nullptr;
  std::unique_ptr<CudnnPlan> plan_;
  std::string run_name_;
};

}  // namespace attnbench
