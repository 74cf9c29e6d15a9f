// A plugin's kernel for the prefills of MLA over expanded heads (semantics §8.6), inside the
// pipeline of the native backend MLA: latents are written, context is gathered and expanded,
// partial results are merged and decodes attended by our steps.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/mla/pipeline.h"
#include "backends/plugin/kernel.h"
#include "backends/plugin/problem.h"
#include "backends/users_pipeline.h"

namespace attnbench {

/// The calls of the prefills of a problem: one for each chunk of the context, which are
/// not causal, and the new tokens. None without prefills.
std::vector<std::unique_ptr<PluginProblem>> mla_prefill_calls(const MlaCapability& capability,
                                                              const Problem& problem,
                                                              const PluginDevice& device);

class PluginMlaPrefillPipeline final : public MlaPipeline, public UsersPipeline {
 public:
  /// `capability` and `plugin` must outlive it. Errors: those of MlaPipeline and of
  /// PluginKernel::prepare().
  PluginMlaPrefillPipeline(const MlaCapability& capability, const Problem& problem,
                           const BackendInputs& inputs, Ops& ops, const PluginTable& plugin,
                           const PluginDevice& device);

  PipelineOutput read_output(bool with_cache) override;
  std::optional<SampleSide> sample_side() override;
  void negate_inputs() override;
  void negate_query() override;
  void negate_output(PipelineOutput& output) const override;
  Words words() const override { return {"the query negated", "query and latents were negated"}; }
  void finish() override;
  UsersPipeline* users() override { return this; }

 private:
  /// One call of the kernel, with a state of its own.
  struct Call {
    std::unique_ptr<PluginProblem> problem;
    PluginKernel kernel;

    Call(std::unique_ptr<PluginProblem> of, DeviceBuffers& memory, const PluginTable& plugin,
         const PluginDevice& device)
        : problem(std::move(of)), kernel(memory, plugin, device) {}
  };

  std::function<void()> add_call(const attn::AttendParams& p,
                                 const std::vector<std::int32_t>& key_lens);
  void run_our_steps();

  const PluginTable& plugin_;
  PluginDevice device_;
  std::vector<PluginKernel::Input> query_;
  std::size_t first_step_ = 0;         // of those behind the cache write
  std::vector<std::size_t> calls_at_;  // numbers of the steps that call the kernel
  std::deque<Call> calls_;             // last: destroyed before everything that they may point to
};

}  // namespace attnbench
