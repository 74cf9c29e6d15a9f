#include "backends/plugin_pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "inputs/kv_scales.h"

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

Dtype dtype_of(attn::Element element) { return static_cast<Dtype>(element); }

bool wants_ragged_keys(const AttnbenchBackend& table) { return table.kv == ATTNBENCH_KV_RAGGED; }

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

PluginPipeline::PluginPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                               const PluginTable& plugin, const PluginDevice& device)
    : OpsPipeline(problem, inputs, ops, plugin.table.name, wants_ragged_keys(plugin.table)),
      plugin_(plugin),
      inputs_(inputs),
      run_name_(fmt::format("run() of {}", plugin.table.name)),
      problem_(problem, plugin.table.name, device),
      list_(device),
      state_(plugin) {
  add_write_step();
  describe_tensors();
  // Why: where nothing is going to run the tensors have no memory.
  if (inputs.inputs->shapes_only) return;
  keep_small_inputs();
  prepare();
  add_step(attention_step("attend", [this] { run(); }));
}

std::optional<std::string> PluginState::destroy() {
  if (!std::exchange(is_owned_, false) || plugin_.table.destroy == nullptr) return std::nullopt;
  return complaint_of(plugin_, [this]() -> const char* {
    plugin_.table.destroy(state_);
    return nullptr;
  });
}

void PluginPipeline::finish() {
  const auto complaint = state_.destroy();
  if (!complaint) return;
  throw BackendFailure(fmt::format("{}: destroy(): {}", plugin_.table.name, *complaint));
}

void PluginPipeline::describe_tensors() {
  const attn::AttendParams& p = params();
  const std::int64_t heads = p.num_heads;
  tensors_.struct_size = sizeof tensors_;
  tensors_.query = list_.add(p.query, dtype_of(p.query_element),
                             {num_tokens(), heads, std::int64_t{p.head_size}});
  if (inputs_.query.query.dtype() == Dtype::kE4M3) {
    tensors_.q_scale =
        list_.add(upload(std::vector<float>{inputs_.query.scale}, "q_scale"), Dtype::kF32, {1});
  }
  tensors_.output = list_.add(p.output, dtype_of(p.output_element),
                              {num_tokens(), heads, std::int64_t{p.v_head_size}});
  if (plugin_.table.lse != ATTNBENCH_LSE_NONE) {
    tensors_.lse = list_.add(p.lse, Dtype::kF32, {heads, num_tokens()}, {p.lse_stride, 1});
  }
  tensors_.query_start_loc = list_.add(p.query_start_loc, Dtype::kI32, {num_requests() + 1});
  tensors_.seq_lens = list_.add(p.seq_lens, Dtype::kI32, {num_requests()});
  tensors_.alibi_slopes = list_.add(p.score.alibi_slopes, Dtype::kF32, {heads});
  tensors_.sinks = list_.add(p.score.sinks, Dtype::kF32, {heads});
  tensors_.mm_prefix_ranges =
      list_.add(p.score.mm_ranges, Dtype::kI32, {num_requests(), p.score.num_mm_ranges, 2});
  describe_keys();
}

void PluginPipeline::describe_keys() {
  const attn::AttendParams& p = params();
  const attn::KvParams& kv = p.kv;
  const Dtype element = dtype_of(kv.element);
  const std::int64_t heads = p.num_kv_heads;
  tensors_.k_scale = list_.add(kv.k_scale, Dtype::kF32, {heads});
  tensors_.v_scale = list_.add(kv.v_scale, Dtype::kF32, {heads});
  if (kv.block_table == nullptr) {
    const std::int64_t keys = problem_.get()->num_keys;
    tensors_.key = list_.add(kv.key, element, {keys, heads, std::int64_t{p.head_size}});
    tensors_.value = list_.add(kv.value, element, {keys, heads, std::int64_t{p.v_head_size}});
    tensors_.key_start_loc = list_.add(kv.kv_start_loc, Dtype::kI64, {num_requests() + 1});
    return;
  }
  const Shape shape{problem_.get()->num_blocks, std::int64_t{kv.block_size}, heads,
                    std::int64_t{p.head_size}};
  const Shape strides{kv.block_stride, kv.token_stride_key, kv.head_stride_key, 1};
  tensors_.key_cache = list_.add(kv.key, element, shape, strides);
  tensors_.value_cache = list_.add(kv.value, element, shape, strides);
  tensors_.block_table =
      list_.add(kv.block_table, Dtype::kI32, {num_requests(), kv.block_table_stride});
}

void* PluginPipeline::allocate(const AttnbenchHost* host, std::size_t size_bytes,
                               const char* name) {
  constexpr std::size_t kMost = std::size_t{1} << 56;  // nothing that is added to it overflows
  auto& self = *static_cast<PluginPipeline*>(host->context);
  if (name == nullptr) name = "plugin memory";
  try {
    if (self.state_.is_owned()) {
      throw BackendFailure(fmt::format("{}: host->allocate() of '{}' after prepare()",
                                       self.plugin_.table.name, name));
    }
    if (size_bytes > kMost) {
      fail(ErrorKind::kCapacity, "{}: {} bytes are more than any device has", name, size_bytes);
    }
    return self.new_buffer(size_bytes, name, true)->data();
  } catch (...) {  // no exception may pass through C code
    self.refused_memory_ = std::current_exception();
    return nullptr;
  }
}

/// What attention is computed from; lengths and tables are not among it.
std::vector<PluginPipeline::Input> PluginPipeline::values() const {
  const attn::AttendParams& p = params();
  std::vector<Input> inputs{{"query", p.query, &inputs_.query.query}};
  if (tensors_.key_cache != nullptr) {
    inputs.push_back({"kv_cache", p.kv.key, &inputs_.cache->data});
  } else {
    const auto [key, value] = ragged_kv(inputs_);
    inputs.push_back({"key", p.kv.key, &key});
    inputs.push_back({"value", p.kv.value, &value});
  }
  return inputs;
}

/// Why without values: what could be computed here would not be timed.
void PluginPipeline::prepare() {
  const AttnbenchBackend& table = plugin_.table;
  for (const Input& input : values()) ops().poison(buffer_at(input.memory));
  host_.struct_size = sizeof host_;
  host_.context = this;
  host_.stream = ops().stream_for(fmt::format("prepare() of {}", table.name));
  host_.allocate = &PluginPipeline::allocate;
  const auto complaint = complaint_of(plugin_, [&] {
    return table.prepare(plugin_.self, problem_.get(), &tensors_, &host_, state_.place());
  });
  // Why first: the plugin's complaint follows from it.
  if (complaint && refused_memory_) std::rethrow_exception(refused_memory_);
  if (complaint) throw BackendFailure(fmt::format("{}: prepare(): {}", table.name, *complaint));
  state_.own();
  refused_memory_ = nullptr;  // it found another way
  ops().synchronize();
  for (const Input& input : values()) {
    ops().upload(buffer_at(input.memory), input.tensor->bytes(), input.tensor->size_bytes());
  }
}

void PluginPipeline::run() {
  void* const stream = ops().stream_for(run_name_);
  const auto complaint =
      complaint_of(plugin_, [&] { return plugin_.table.run(state_.get(), stream); });
  if (refused_memory_) std::rethrow_exception(std::exchange(refused_memory_, nullptr));
  if (complaint) throw BackendFailure(fmt::format("{}: run(): {}", plugin_.table.name, *complaint));
}

/// What run() gives as tensors of its own comes to ours, outside of what is timed.
void PluginPipeline::collect() {
  if (plugin_.collect == nullptr) return;
  const auto complaint = complaint_of(plugin_, [&] { return plugin_.collect(state_.get()); });
  if (complaint) throw BackendFailure(fmt::format("{}: run(): {}", plugin_.table.name, *complaint));
}

void PluginPipeline::keep_small_inputs() {
  struct Small {
    const char* name;
    const AttnbenchTensor* tensor;
    Dtype dtype;
  };
  std::vector<Small> all{{"query_start_loc", tensors_.query_start_loc, Dtype::kI32},
                         {"seq_lens", tensors_.seq_lens, Dtype::kI32},
                         {"key_start_loc", tensors_.key_start_loc, Dtype::kI64},
                         {"alibi_slopes", tensors_.alibi_slopes, Dtype::kF32},
                         {"sinks", tensors_.sinks, Dtype::kF32},
                         {"q_scale", tensors_.q_scale, Dtype::kF32},
                         {"mm_prefix_ranges", tensors_.mm_prefix_ranges, Dtype::kI32}};
  // Those that a step makes are held against the problem's by whoever reads the output.
  if (!calculates_kv_scales(problem())) {
    all.push_back({"k_scale", tensors_.k_scale, Dtype::kF32});
    all.push_back({"v_scale", tensors_.v_scale, Dtype::kF32});
  }
  for (const auto& [name, tensor, dtype] : all) {
    if (tensor == nullptr) continue;
    Tensor& before =
        small_tensors_.emplace_back(dtype, Shape(tensor->shape, tensor->shape + tensor->ndim));
    download_workspace(tensor->data, before, 0, before.size_bytes());
    small_inputs_.push_back({name, tensor->data, &before});
  }
}

void PluginPipeline::negate(Buffer& buffer, Dtype dtype) {
  Tensor values(dtype, {static_cast<std::int64_t>(buffer.size_bytes() / dtype_size(dtype))});
  ops().download(values.bytes(), buffer, values.size_bytes());
  attnbench::negate(values);
  ops().upload(buffer, values.bytes(), values.size_bytes());
}

void PluginPipeline::negate_query() {
  ops().synchronize();
  negate(buffer_at(params().query), inputs_.query.query.dtype());
}

void PluginPipeline::negate_inputs() {
  ops().synchronize();
  for (const Input& input : values()) negate(buffer_at(input.memory), input.tensor->dtype());
  if (tensors_.key_cache == nullptr) return;
  // And what every run writes into the cache.
  const Dtype dtype = dtype_of(cache_write().source_element);
  negate(buffer_at(cache_write().key), dtype);
  negate(buffer_at(cache_write().value), dtype);
}

/// Empty, or where an input is not what it was.
std::string PluginPipeline::first_change(const Input& input) {
  const Tensor& before = *input.tensor;
  Tensor now(before.dtype(), before.shape());
  download_workspace(input.memory, now, 0, now.size_bytes());
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

std::string PluginPipeline::changed_input() {
  std::vector<Input> inputs = values();
  inputs.insert(inputs.end(), small_inputs_.begin(), small_inputs_.end());
  if (tensors_.block_table != nullptr) {
    inputs.push_back({"block_table", params().kv.block_table, &inputs_.cache->block_table});
  }
  for (const Input& input : inputs) {
    // The cache has new keys by now, which whoever checks the write compares.
    if (tensors_.key_cache != nullptr && input.memory == params().kv.key) continue;
    std::string change = first_change(input);
    if (!change.empty()) return change;
  }
  return "";
}

PipelineOutput PluginPipeline::read_output(bool with_cache) {
  collect();
  PipelineOutput output = OpsPipeline::read_output(with_cache);
  // Why not always: on a device all of it is copied, which takes as long as copying the cache.
  if (with_cache && output.defect.empty()) output.defect = changed_input();
  if (plugin_.table.lse == ATTNBENCH_LSE_NONE) {
    output.lse.reset();
    return output;
  }
  const LseConvention convention = lse_convention(plugin_.table);
  output.declared_lse = convention;
  float* lse = output.lse->data<float>();
  for (std::int64_t i = 0; i < output.lse->num_elements(); ++i) {
    lse[i] = to_natural(lse[i], convention);
  }
  return output;
}

void negate(Tensor& tensor) {
  const std::size_t size = dtype_size(tensor.dtype());
  // The sign is the highest bit of the last byte in every format.
  for (std::size_t i = size - 1; i < tensor.size_bytes(); i += size) {
    tensor.bytes()[i] ^= std::byte{0x80};
  }
}

LseConvention lse_convention(const AttnbenchBackend& table) {
  return {table.lse == ATTNBENCH_LSE_BASE_2, table.empty_rows == ATTNBENCH_EMPTY_PLUS_INF};
}

}  // namespace attnbench
