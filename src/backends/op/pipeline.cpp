// Each output is followed by 256 bytes of poison in the same buffer. A kernel that writes past the
// end changes them, and the defect of the run names the output.
#include "backends/op/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backends/op/facts.h"

namespace attnbench {
namespace {

constexpr std::size_t kPoisonBytes = 256;

bool holds_poison(const Tensor& tensor) {
  return attnbench::holds_poison(tensor.bytes(), tensor.bytes() + tensor.size_bytes());
}

}  // namespace

const void* OpPipeline::operand(const std::string& name, const Tensor& tensor) {
  const void* memory = memory_.upload(tensor, name);
  operands_.push_back({name, &tensor, memory, false});
  return memory;
}

const float* OpPipeline::scale_operand(const std::string& name, const std::vector<float>& scale) {
  described_.push_back(Tensor::from_f32(scale, {static_cast<std::int64_t>(scale.size())}));
  return static_cast<const float*>(operand(name, described_.back()));
}

void* OpPipeline::output(const std::string& name, Tensor before) {
  const bool is_poison = holds_poison(before);
  Output output{name, std::move(before), is_poison, nullptr, nullptr};
  output.buffer = &memory_.allocate(output.before.size_bytes() + kPoisonBytes, name);
  outputs_.push_back(std::move(output));
  operands_.push_back({name, &outputs_.back().before, outputs_.back().buffer->data(), true});
  return outputs_.back().buffer->data();
}

void OpPipeline::add_step(std::function<void()> run) {
  if (users_run_) run = users_run_;
  add_step(counted_step(to_string(*problem_.op.name), std::move(run), op_traffic(problem_)));
}

void OpPipeline::keep_outputs_on_device() {
  for (Output& output : outputs_) {
    if (output.is_poison) continue;
    output.on_device = memory_.upload(output.before, output.name + " before the operation");
  }
}

void OpPipeline::poison_outputs() {
  memory_.poison();
  for (Output& output : outputs_) {
    ops_.poison(*output.buffer);
    if (output.on_device != nullptr) {
      put_back(output);
    } else if (!output.is_poison) {
      ops_.upload(*output.buffer, output.before.bytes(), output.before.size_bytes());
    }
  }
}

SampleSide OpPipeline::kept_outputs() {
  SampleSide side;
  for (Output& output : outputs_) {
    side.outputs.push_back({output.buffer->data(),
                            static_cast<std::int64_t>(output.buffer->size_bytes()),
                            static_cast<attn::Element>(output.before.dtype())});
  }
  side.read = [this] { return read_output(false); };
  return side;
}

/// From the copy on the device, in the order of the stream, so that the host waits for nothing.
void OpPipeline::put_back(Output& output) {
  const Tensor& before = output.before;
  attn::CopyParams copy{};
  copy.source_element = copy.output_element = static_cast<attn::Element>(before.dtype());
  copy.source = output.on_device;
  copy.output = output.buffer->data();
  copy.width = before.dim(static_cast<int>(before.shape().size()) - 1);
  copy.extents[0] = copy.width == 0 ? 0 : before.num_elements() / copy.width;
  copy.extents[1] = copy.extents[2] = 1;
  copy.source_strides[0] = copy.output_strides[0] = copy.width;
  ops_.copy(copy);
}

Tensor OpPipeline::read(Output& output, std::string& defect) {
  const std::size_t size = output.before.size_bytes();
  Tensor bytes = memory_.read(output.buffer->data(), Dtype::kU8,
                              {static_cast<std::int64_t>(size + kPoisonBytes)});
  Tensor tensor(output.before.dtype(), output.before.shape());
  std::copy_n(bytes.bytes(), size, tensor.bytes());
  if (!attnbench::holds_poison(bytes.bytes() + size, bytes.bytes() + bytes.size_bytes())) {
    defect = fmt::format("bytes behind the end of {} were written", output.name);
  }
  return tensor;
}

PipelineOutput OpPipeline::read_output(bool /*with_cache*/) {
  ops_.synchronize();
  PipelineOutput result;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    Tensor tensor = read(outputs_[i], result.defect);
    if (i == 0) {
      result.output = std::move(tensor);
    } else if (outputs_[i].name == "lse") {
      result.lse = std::move(tensor);
    } else {
      result.more.emplace_back(outputs_[i].name, std::move(tensor));
    }
  }
  return result;
}

}  // namespace attnbench
