// The pipeline of one operation by itself: operands on the device, outputs that start as given
// bytes and end with a guard, one timed step (type op of contract section 1).
//
// It knows no operation. The functions in cache_steps.h, merge_steps.h, output_steps.h and
// quant_steps.h each take an empty OpPipeline, name operands and outputs, and queue their step; a
// user's operation (plugin/operation.h) does the same and runs another kernel. Names are those of
// the case's operands, of saved tensors and of messages.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "backends/device_buffers.h"
#include "backends/sample_side.h"
#include "inputs/op_inputs.h"

namespace attnbench {

class OpPipeline final : public Pipeline {
 public:
  OpPipeline(const Problem& problem, const OpInputs& inputs, Ops& ops)
      : problem_(problem), inputs_(inputs), ops_(ops), memory_(ops) {}

  const std::vector<Step>& steps() const override { return steps_; }
  /// Outputs are again as they were before the first run.
  void poison_outputs() override;
  PipelineOutput read_output(bool with_cache) override;

  const Problem& problem() const { return problem_; }
  const OpInputs& inputs() const { return inputs_; }
  Ops& ops() { return ops_; }

  /// An operand on the device. Rows of poison follow the last one where the operand has them.
  const void* operand(const std::string& name) { return operand(name, inputs_.at(name)); }
  /// The same of a tensor that is no operand of the case by this name; it must outlive the steps.
  const void* operand(const std::string& name, const Tensor& tensor);
  /// Scales that come from the problem, f32 [scale.size()].
  const float* scale_operand(const std::string& name, const std::vector<float>& scale);
  template <typename T>
  const T* operand_of(const std::string& name) {
    return static_cast<const T*>(operand(name));
  }
  /// Whatever else is on the device.
  DeviceBuffers& memory() { return memory_; }
  /// A result with what it holds before the run. The first one is PipelineOutput::output, one
  /// called "lse" its LSE, the others follow under their names.
  void* output(const std::string& name, Tensor before);

  /// From now on poison_outputs() queues its work on the stream and waits for nothing: what outputs
  /// hold before the run is copied from device memory.
  void keep_outputs_on_device();

  /// What is kept of timed samples: all outputs. Inputs are named by who knows the operation.
  SampleSide kept_outputs();

  /// Lives as long as the steps.
  void keep(std::shared_ptr<void> object) { kept_.push_back(std::move(object)); }

  /// The step that counts; its bytes are op_traffic(). The others are shown beside it.
  void add_step(std::function<void()> run);
  /// From now on the step that counts runs this instead: a user's kernel, between the other steps
  /// of the operation.
  void replace_counted_step(std::function<void()> run) { users_run_ = std::move(run); }

  /// What steps read and write, in the order in which it was named.
  struct Operand {
    std::string name;
    const Tensor* tensor;  // shape and type; of an operand also its values
    const void* memory;
    bool is_output;
  };
  const std::vector<Operand>& operands() const { return operands_; }
  void add_step(Step step) { steps_.push_back(std::move(step)); }

 private:
  struct Output {
    std::string name;
    Tensor before;
    bool is_poison;         // `before` is nothing else
    Buffer* buffer;         // with kPoisonBytes of poison behind the tensor
    const void* on_device;  // a copy of `before`, or null
  };

  void put_back(Output& output);

  Tensor read(Output& output, std::string& defect);

  const Problem& problem_;
  const OpInputs& inputs_;
  Ops& ops_;
  DeviceBuffers memory_;
  std::deque<Output> outputs_;  // stay where they are
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<Step> steps_;
  std::deque<Tensor> described_;  // that operands_ points to
  std::vector<Operand> operands_;
  std::function<void()> users_run_;
};

/// Queues the steps of the problem's operation on an empty pipeline.
void queue_operation(OpPipeline& op);

}  // namespace attnbench
