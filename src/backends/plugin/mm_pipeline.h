// A user's kernel as the attention of a vision encoder in e4m3: scales, codes and padding of heads
// are steps of ours (encoder/pipeline.h), in front of it and behind it.
#pragma once

#include <memory>
#include <vector>

#include "backends/encoder/capability.h"
#include "backends/encoder/pipeline.h"
#include "backends/plugin/kernel.h"
#include "backends/plugin/problem.h"
#include "backends/users_pipeline.h"

namespace attnbench {

/// The problem as the kernel gets it.
std::unique_ptr<PluginProblem> mm_fp8_call(const Problem& problem, const PluginDevice& device);

class PluginMmPipeline final : public Pipeline, public UsersPipeline {
 public:
  /// Of type mm_encoder with mm_encoder.attn_dtype fp8. `plugin` must outlive it. Errors: those of
  /// MmPipeline and PluginKernel::prepare().
  PluginMmPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                   const PluginTable& plugin, const PluginDevice& device);

  const std::vector<Step>& steps() const override { return ours_->steps(); }
  void poison_outputs() override { ours_->poison_outputs(); }
  PipelineOutput read_output(bool with_cache) override;
  std::optional<SampleSide> sample_side() override;
  void negate_inputs() override;
  void negate_query() override;
  void negate_output(PipelineOutput& output) const override;
  Words words() const override {
    return {"the query negated", "query, key and value were negated"};
  }
  void finish() override { kernel_->finish(); }
  UsersPipeline* users() override { return this; }

 private:
  std::function<void()> add_call(DeviceBuffers& memory, const attn::AttendParams& p,
                                 const float* q_scale);
  void run_later_steps();

  const BackendInputs& inputs_;  // outlives the pipeline
  Ops& ops_;
  const PluginTable& plugin_;
  PluginDevice device_;
  std::unique_ptr<PluginProblem> problem_;
  std::int64_t head_size_;  // without padding
  MmCapability capability_;
  MmUsersKernel users_;
  DeviceBuffers* memory_ = nullptr;  // of ours_
  std::unique_ptr<MmPipeline> ours_;
  std::unique_ptr<PluginKernel> kernel_;  // last: destroyed before the memory that it may point to
};

}  // namespace attnbench
