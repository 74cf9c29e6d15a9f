// The values of the operands change places between runs (OperandValues); showing the same ones
// twice brings the case's own back.
#include "backends/plugin/op_pipeline.h"

#include <string>

namespace attnbench {

PluginOpPipeline::PluginOpPipeline(const Problem& problem, const OpInputs& inputs, Ops& ops,
                                   const PluginTable& plugin, const PluginDevice& device)
    : op_(problem, inputs, ops),
      problem_(problem, device),
      kernel_(op_.memory(), plugin, device),
      operation_(make_operation(problem)) {
  // Why: whether run() waits for a stream that is held is seen with outputs put back behind it.
  op_.keep_outputs_on_device();
  // Why: where nothing is going to run the tensors have no memory.
  if (!problem.inputs.shapes_only) kernel_.prepare(*problem_.get(), operation_->values());
  if (!has_named_operands(problem)) op_.add_step([this] { kernel_.run(); });
}

std::unique_ptr<PluginOperation> PluginOpPipeline::make_operation(const Problem& problem) {
  if (problem.op.name == OpKind::kMerge) return plugin_merge(op_, kernel_);
  return has_named_operands(problem) ? plugin_named(op_, kernel_)
                                     : plugin_cache_write(op_, kernel_);
}

void PluginOpPipeline::poison_outputs() {
  op_.poison_outputs();
  op_.ops().take_kernels();  // what puts outputs back is none of the plugin's
}

void PluginOpPipeline::toggle(OperandValues values) {
  op_.ops().synchronize();
  shown_ = shown_ == values ? OperandValues::kOwn : values;
  operation_->upload(shown_);
}

std::optional<SampleSide> PluginOpPipeline::sample_side() {
  SampleSide side = op_.kept_outputs();
  if (has_named_operands(op_.problem())) return named_side(std::move(side));
  const bool merges = problem_.get()->operation == ATTNBENCH_OP_MERGE;
  const std::int64_t width = op_.problem().attention.v_head_size;
  std::int64_t first_index = 0;
  for (const PluginKernel::Input& input : operation_->values()) {
    const Tensor& tensor = *input.tensor;
    if (tensor.shape().size() != 3) continue;  // an LSE
    const std::int64_t vectors = tensor.dim(0) * tensor.dim(1);
    side.query.push_back({const_cast<void*>(input.memory),
                          static_cast<int>(dtype_size(tensor.dtype())), vectors, tensor.dim(2),
                          first_index, merges ? width : tensor.dim(2)});
    if (!merges) first_index += tensor.num_elements();
  }
  if (kernel_.collects()) side.collect = [this] { kernel_.collect_sample(); };
  side.read = [this] { return read_output(false); };
  return side;
}

/// Signs of all elements of the operands that have any, as the judge draws them.
SampleSide PluginOpPipeline::named_side(SampleSide side) {
  std::int64_t first_index = 0;
  for (const std::string& name : redrawn_operands(op_.problem())) {
    for (const OpPipeline::Operand& operand : op_.operands()) {
      if (operand.is_output || operand.name != name) continue;
      const std::int64_t count = operand.tensor->num_elements();
      side.query.push_back({const_cast<void*>(operand.memory),
                            static_cast<int>(dtype_size(operand.tensor->dtype())), 1, count,
                            first_index, count});
      first_index += count;
    }
  }
  if (kernel_.collects()) side.collect = [this] { kernel_.collect_sample(); };
  return side;
}

PipelineOutput PluginOpPipeline::read_output(bool with_cache) {
  kernel_.collect();
  PipelineOutput output = op_.read_output(with_cache);
  // Why not always: all of the operands are copied from the device.
  if (with_cache && output.defect.empty()) {
    output.defect = kernel_.changed_input(operation_->values());
  }
  if (problem_.get()->operation == ATTNBENCH_OP_MERGE) kernel_.convert_lse(output);
  return output;
}

}  // namespace attnbench
