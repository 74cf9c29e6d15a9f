// Calls into a user's library. Whatever it throws or complains of ends up as BackendFailure with
// the name of the function in front, so that a reader knows whose words they are.
#include "backends/plugin/kernel.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace attnbench {
namespace {

using Shape = std::vector<std::int64_t>;

/// DLPack's code of a type; its bits follow from the size.
std::uint8_t dlpack_code(Dtype dtype) {
  constexpr std::uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4, kE4M3 = 10, kE5M2 = 12;
  switch (dtype) {
    case Dtype::kF32:
    case Dtype::kF16:
    case Dtype::kF64:
      return kFloat;
    case Dtype::kBF16:
      return kBFloat;
    case Dtype::kE4M3:
      return kE4M3;
    case Dtype::kE5M2:
      return kE5M2;
    case Dtype::kI8:
    case Dtype::kI32:
    case Dtype::kI64:
      return kInt;
    case Dtype::kU8:
      return kUInt;
  }
  return kInt;
}

}  // namespace

const AttnbenchTensor* PluginTensors::add(const void* data, Dtype dtype, Shape shape,
                                          Shape strides) {
  if (data == nullptr) return nullptr;
  if (strides.empty()) {
    strides.assign(shape.size(), 1);
    for (std::size_t axis = shape.size() - 1; axis > 0; --axis) {
      strides[axis - 1] = strides[axis] * shape[axis];
    }
  }
  constexpr std::int32_t kCpu = 1, kCuda = 2;  // DLDeviceType
  Entry& entry = entries_.emplace_back(Entry{std::move(shape), std::move(strides), {}});
  AttnbenchTensor& tensor = entry.tensor;
  tensor.data = const_cast<void*>(data);
  tensor.device.type = device_.is_cuda ? kCuda : kCpu;
  tensor.device.id = device_.is_cuda ? device_.index : 0;
  tensor.ndim = static_cast<std::int32_t>(entry.shape.size());
  tensor.dtype.code = dlpack_code(dtype);
  tensor.dtype.bits = static_cast<std::uint8_t>(8 * dtype_size(dtype));
  tensor.dtype.lanes = 1;
  tensor.shape = entry.shape.data();
  tensor.strides = entry.strides.data();
  return &tensor;
}

const AttnbenchTensor* PluginTensors::add_lse(const void* data, std::int64_t heads,
                                              std::int64_t tokens, std::int64_t head_stride) {
  if (by_token_) return add(data, Dtype::kF32, {heads, tokens}, {1, heads});
  return add(data, Dtype::kF32, {heads, tokens}, {head_stride, 1});
}

std::optional<std::string> PluginState::destroy() {
  if (!std::exchange(is_owned_, false) || plugin_.table.destroy == nullptr) return std::nullopt;
  return complaint_of(plugin_, [this]() -> const char* {
    plugin_.table.destroy(state_);
    return nullptr;
  });
}

PluginKernel::PluginKernel(DeviceBuffers& memory, const PluginTable& plugin,
                           const PluginDevice& device)
    : memory_(memory),
      ops_(memory.ops()),
      plugin_(plugin),
      run_name_(fmt::format("run() of {}", plugin.table.name)),
      destroy_name_(fmt::format("destroy() of {}", plugin.table.name)),
      list_(device, plugin.table.lse_axes == ATTNBENCH_LSE_TH),
      returned_(memory, tensors_),
      state_(plugin) {
  tensors_.struct_size = sizeof tensors_;
}

void PluginKernel::watch(const char* name, const AttnbenchTensor* tensor, Dtype dtype) {
  if (tensor == nullptr) return;
  const Tensor& before = watched_tensors_.emplace_back(
      memory_.read(tensor->data, dtype, Shape(tensor->shape, tensor->shape + tensor->ndim)));
  watched_.push_back({name, tensor->data, &before});
}

void* PluginKernel::allocate(const AttnbenchHost* host, std::size_t size_bytes, const char* name) {
  constexpr std::size_t kMost = std::size_t{1} << 56;  // nothing that is added to it overflows
  auto& self = *static_cast<PluginKernel*>(host->context);
  if (name == nullptr) name = "plugin memory";
  try {
    if (self.state_.is_owned()) {
      throw BackendFailure(fmt::format("{}: host->allocate() of '{}' after prepare()",
                                       self.plugin_.table.name, name));
    }
    if (size_bytes > kMost) {
      fail(ErrorKind::kCapacity, "{}: {} bytes are more than any device has", name, size_bytes);
    }
    return self.memory_.workspace(static_cast<std::int64_t>(size_bytes), name);
  } catch (...) {  // no exception may pass through C code
    self.refused_memory_ = std::current_exception();
    return nullptr;
  }
}

/// Why without values: what could be computed here would not be timed.
void PluginKernel::prepare(const AttnbenchProblem& problem, const std::vector<Input>& values) {
  const AttnbenchBackend& table = plugin_.table;
  for (const Input& input : values) ops_.poison(memory_.starting_at(input.memory));
  host_.struct_size = sizeof host_;
  host_.context = this;
  host_.stream = ops_.stream_for(fmt::format("prepare() of {}", table.name));
  host_.allocate = &PluginKernel::allocate;
  const auto complaint = complaint_of(plugin_, [&] {
    return table.prepare(plugin_.self, &problem, &tensors_, &host_, state_.place());
  });
  // Why first: the plugin's complaint follows from it.
  if (complaint && refused_memory_) std::rethrow_exception(refused_memory_);
  if (complaint) throw BackendFailure(fmt::format("{}: prepare(): {}", table.name, *complaint));
  state_.own();
  refused_memory_ = nullptr;  // it found another way
  ops_.synchronize();
  for (const Input& input : values) {
    ops_.upload(memory_.starting_at(input.memory), input.tensor->bytes(),
                input.tensor->size_bytes());
  }
}

void PluginKernel::run() {
  void* const stream = ops_.stream_for(run_name_);
  has_run_ = true;
  const auto complaint =
      complaint_of(plugin_, [&] { return plugin_.table.run(state_.get(), stream); });
  if (refused_memory_) std::rethrow_exception(std::exchange(refused_memory_, nullptr));
  if (complaint) throw BackendFailure(fmt::format("{}: run(): {}", plugin_.table.name, *complaint));
}

bool PluginKernel::collect() {
  if (!collects() || !has_run_) return false;
  collect_sample();
  return true;
}

void PluginKernel::collect_sample() {
  has_run_ = false;
  returned_.bring(plugin_.returned(state_.get()));
}

PluginKernel::~PluginKernel() {
  if (state_.is_owned()) ops_.stream_for(destroy_name_);
}

void PluginKernel::finish() {
  if (state_.is_owned()) ops_.stream_for(destroy_name_);
  const auto complaint = state_.destroy();
  if (!complaint) return;
  throw BackendFailure(fmt::format("{}: destroy(): {}", plugin_.table.name, *complaint));
}

void PluginKernel::negate(const void* memory, Dtype dtype) {
  negate_buffer(memory_, memory, dtype);
}

/// Empty, or where an input is not what it was.
std::string PluginKernel::first_change(const Input& input) {
  const Tensor& before = *input.tensor;
  const Tensor now = memory_.read(input.memory, before.dtype(), before.shape());
  const auto [here, there] =
      std::mismatch(now.bytes(), now.bytes() + now.size_bytes(), before.bytes());
  if (here == now.bytes() + now.size_bytes()) return "";
  std::int64_t index = (here - now.bytes()) / static_cast<std::int64_t>(dtype_size(now.dtype()));
  Shape place(now.shape().size());
  for (std::size_t axis = place.size(); axis-- > 0;) {
    place[axis] = index % now.shape()[axis];
    index /= now.shape()[axis];
  }
  return fmt::format("{} was changed at [{}]: it is an input", input.name, fmt::join(place, ", "));
}

std::string PluginKernel::changed_input(const std::vector<Input>& inputs) {
  std::vector<Input> all = inputs;
  all.insert(all.end(), watched_.begin(), watched_.end());
  for (const Input& input : all) {
    std::string change = first_change(input);
    if (!change.empty()) return change;
  }
  return "";
}

/// A pipeline of ours reads a head's tokens side by side.
void PluginKernel::read_lse_by_token(Tensor& lse) {
  const AttnbenchTensor& by_token = *tensors_.lse;
  const std::int64_t heads = lse.dim(0), tokens = lse.dim(1), stride = by_token.strides[1];
  const Tensor values = memory_.read(by_token.data, Dtype::kF32, {tokens, stride});
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      lse.data<float>()[h * tokens + t] = values.data<float>()[t * stride + h];
    }
  }
}

void PluginKernel::convert_lse(PipelineOutput& output) {
  if (plugin_.table.lse == ATTNBENCH_LSE_NONE) {
    output.lse.reset();
    return;
  }
  if (plugin_.table.lse_axes == ATTNBENCH_LSE_TH) read_lse_by_token(*output.lse);
  const LseConvention convention = lse_convention(plugin_.table);
  output.declared_lse = convention;
  float* lse = output.lse->data<float>();
  for (std::int64_t i = 0; i < output.lse->num_elements(); ++i) {
    lse[i] = to_natural(lse[i], convention);
  }
}

void negate_buffer(DeviceBuffers& memory, const void* data, Dtype dtype) {
  Buffer& buffer = memory.starting_at(data);
  Tensor values = memory.read(data, dtype,
                              {static_cast<std::int64_t>(buffer.size_bytes() / dtype_size(dtype))});
  negate(values);
  memory.ops().upload(buffer, values.bytes(), values.size_bytes());
}

void negate(Tensor& tensor) {
  negate_elements(tensor.bytes(), tensor.num_elements(),
                  static_cast<std::int64_t>(dtype_size(tensor.dtype())));
}

void negate_elements(std::byte* elements, std::int64_t count, std::int64_t size_bytes) {
  // The sign is the highest bit of the last byte in every format.
  for (std::int64_t i = 1; i <= count; ++i) elements[i * size_bytes - 1] ^= std::byte{0x80};
}

LseConvention lse_convention(const AttnbenchBackend& table) {
  return {table.lse == ATTNBENCH_LSE_BASE_2, table.empty_rows == ATTNBENCH_EMPTY_PLUS_INF};
}

}  // namespace attnbench
