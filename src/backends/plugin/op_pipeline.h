// A plugin's single operation as a pipeline: operands and outputs as for OPS, then its run().
#pragma once

#include <memory>
#include <vector>

#include "backends/op/pipeline.h"
#include "backends/plugin/kernel.h"
#include "backends/plugin/operation.h"
#include "backends/plugin/problem.h"
#include "backends/users_pipeline.h"

namespace attnbench {

class PluginOpPipeline final : public Pipeline, public UsersPipeline {
 public:
  /// All but `device` must outlive it. Errors: those of PluginKernel::prepare().
  PluginOpPipeline(const Problem& problem, const OpInputs& inputs, Ops& ops,
                   const PluginTable& plugin, const PluginDevice& device);

  const std::vector<Step>& steps() const override { return op_.steps(); }
  void poison_outputs() override;
  PipelineOutput read_output(bool with_cache) override;
  /// Signs are drawn for keys and the values behind them, or for the elements of a merged output,
  /// to which both parts have the same: what comes out has them too.
  std::optional<SampleSide> sample_side() override;

  void negate_inputs() override { toggle(OperandValues::kNegated); }
  void negate_query() override { toggle(OperandValues::kOther); }
  void negate_output(PipelineOutput& output) const override { operation_->restore(output); }
  Words words() const override { return operation_->words(); }
  void finish() override { kernel_.finish(); }
  UsersPipeline* users() override { return this; }

 private:
  void toggle(OperandValues values);
  std::unique_ptr<PluginOperation> make_operation(const Problem& problem);
  SampleSide named_side(SampleSide side);

  OpPipeline op_;
  PluginProblem problem_;
  PluginKernel kernel_;
  std::unique_ptr<PluginOperation> operation_;
  OperandValues shown_ = OperandValues::kOwn;
};

}  // namespace attnbench
