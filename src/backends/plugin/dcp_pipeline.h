// A user's kernel as the attention of the ranks of a decode-context group over their parts of the
// context: a call for each rank, in the place that attend_context has in the pipeline of
// attention/dcp_pipeline.h, whose other steps stay as they are.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "backends/attention/dcp_pipeline.h"
#include "backends/plugin/kernel.h"
#include "backends/plugin/problem.h"
#include "backends/users_pipeline.h"

namespace attnbench {

/// The problem of each rank's call, for whoever asks whether the kernel takes it.
std::vector<std::unique_ptr<PluginProblem>> dcp_calls(const Problem& problem,
                                                      const PluginDevice& device);

class PluginDcpPipeline final : public Pipeline, public UsersPipeline {
 public:
  /// `plugin` must outlive it. Errors: those of PluginKernel::prepare().
  PluginDcpPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
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
  void finish() override;
  UsersPipeline* users() override { return this; }

 private:
  struct Call {
    Call(std::unique_ptr<PluginProblem> of, DeviceBuffers& memory, const PluginTable& plugin,
         const PluginDevice& device)
        : problem(std::move(of)), kernel(memory, plugin, device) {}
    std::unique_ptr<PluginProblem> problem;
    PluginKernel kernel;
  };

  std::function<void()> add_call(DeviceBuffers& memory, const attn::AttendParams& p, int rank);
  void run_later_steps();

  const BackendInputs& inputs_;  // outlives the pipeline
  Ops& ops_;
  const PluginTable& plugin_;
  PluginDevice device_;
  DcpUsersKernel users_;
  DeviceBuffers* memory_ = nullptr;  // of ours_
  const void* caches_ = nullptr;     // of all ranks, one behind the other
  std::vector<std::unique_ptr<PluginProblem>> problems_;
  std::unique_ptr<Pipeline> ours_;
  std::deque<Call> calls_;  // last: destroyed before the memory that it may point to
};

}  // namespace attnbench
