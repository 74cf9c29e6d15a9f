// One class for each operation that plugins have tensors of their own for, and one for all others.
// They describe the case's operands where
// they lie; nothing is copied or reordered for a plugin, except LSEs whose convention differs.
#include "backends/plugin/operation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "backends/op/cache_steps.h"
#include "inputs/cache/poison.h"
#include "metadata/kv_layout.h"

namespace attnbench {
namespace {

/// reshape_and_cache as plugins are given it (attnbench_backend.h, semantics §5.1): keys and values
/// as strided planes of one cache, whatever its layout is called here.
class PluginCacheWrite final : public PluginOperation {
 public:
  PluginCacheWrite(OpPipeline& op, PluginKernel& kernel) : op_(op), cache_(op.inputs().cache) {
    key_ = op.operand("new_key");
    value_ = op.operand("new_value");
    PluginTensors& list = kernel.list();
    AttnbenchTensors& t = kernel.tensors();
    t.key = list.add(key_, new_key().dtype(), new_key().shape());
    t.value = list.add(value_, new_value().dtype(), new_value().shape());
    const Tensor& slots = op.inputs().at("slot_mapping");
    t.slot_mapping = list.add(op.operand("slot_mapping"), slots.dtype(), slots.shape());
    kernel.watch("slot_mapping", t.slot_mapping, slots.dtype());
    describe_caches(kernel);
    if (is_quantised(op.problem().kv_cache.dtype)) describe_scales(kernel);
  }

  std::vector<PluginKernel::Input> values() const override {
    return {{"key", key_, &new_key()}, {"value", value_, &new_value()}};
  }

  void upload(OperandValues values) override {
    for (const PluginKernel::Input& input : this->values()) {
      Tensor rows = *input.tensor;
      if (values != OperandValues::kOwn) negate(rows);
      op_.ops().upload(op_.memory().starting_at(input.memory), rows.bytes(), rows.size_bytes());
    }
  }

  /// Flips the sign of every cell that was to be written; nothing else depends on the values.
  void restore(PipelineOutput& output) const override {
    const Tensor& slots = cache_.slot_mapping;
    for (std::int64_t i = 0; i < slots.num_elements(); ++i) {
      const std::int64_t slot = slots.data<std::int64_t>()[i];
      if (slot < 0) continue;
      negate_slot(output.output, slot, cache_.layout.key_offset);
      negate_slot(output.output, slot, cache_.layout.value_offset);
    }
  }

  UsersPipeline::Words words() const override {
    return {"key and value negated", "key and value were negated"};
  }

 private:
  const Tensor& new_key() const { return op_.inputs().at("new_key"); }
  const Tensor& new_value() const { return op_.inputs().at("new_value"); }

  void describe_caches(PluginKernel& kernel) {
    const AttentionSpec& a = op_.problem().attention;
    const KvLayout& layout = cache_.layout;
    const Dtype dtype = cache_.data.dtype();
    const auto size = static_cast<std::int64_t>(dtype_size(dtype));
    auto* memory = static_cast<char*>(op_.output("kv_cache", cache_.data));
    const std::vector<std::int64_t> shape{op_.problem().kv_cache.num_blocks,
                                          op_.problem().kv_cache.block_size, a.num_kv_heads,
                                          a.head_size};
    const std::vector<std::int64_t> strides{layout.block_stride, layout.slot_stride,
                                            layout.head_stride, 1};
    const auto plane = [&](std::int64_t offset) {
      return kernel.list().add(memory + offset * size, dtype, shape, strides);
    };
    kernel.tensors().key_cache = plane(layout.key_offset);
    kernel.tensors().value_cache = plane(layout.value_offset);
  }

  void describe_scales(PluginKernel& kernel) {
    const KvCacheSpec& cache = op_.problem().kv_cache;
    const int heads = op_.problem().attention.num_kv_heads;
    const auto add = [&](const char* name, const std::vector<double>& scale) {
      const AttnbenchTensor* tensor =
          kernel.list().add(op_.memory().upload(scale_of_heads(scale, heads), name), Dtype::kF32,
                            {std::int64_t{heads}});
      kernel.watch(name, tensor, Dtype::kF32);
      return tensor;
    };
    kernel.tensors().k_scale = add("k_scale", cache.k_scale);
    kernel.tensors().v_scale = add("v_scale", cache.v_scale);
  }

  void negate_slot(Tensor& cache, std::int64_t slot, std::int64_t plane) const {
    const AttentionSpec& a = op_.problem().attention;
    const std::int64_t block_size = op_.problem().kv_cache.block_size;
    const auto size = static_cast<std::int64_t>(dtype_size(cache.dtype()));
    const std::int64_t cell = plane + slot / block_size * cache_.layout.block_stride +
                              slot % block_size * cache_.layout.slot_stride;
    for (std::int64_t head = 0; head < a.num_kv_heads; ++head) {
      std::byte* row = cache.bytes() + (cell + head * cache_.layout.head_stride) * size;
      negate_elements(row, a.head_size, size);
    }
  }

  OpPipeline& op_;
  const PagedCache& cache_;
  const void* key_ = nullptr;
  const void* value_ = nullptr;
};

/// One part: outputs, and natural LSEs with -inf where it sees no key.
struct Part {
  Tensor output;            // [T, H, Dv or more]
  Tensor lse;               // [H, T]
  const void* output_at{};  // on the device
  const void* lse_at{};

  std::byte* row(std::int64_t state) {
    const std::size_t bytes = static_cast<std::size_t>(output.dim(2)) * dtype_size(output.dtype());
    return output.bytes() + static_cast<std::size_t>(state) * bytes;
  }
};

/// merge_attn_states (semantics §6.3), with LSEs by the convention that the plugin declares.
class PluginMerge final : public PluginOperation {
 public:
  PluginMerge(OpPipeline& op, PluginKernel& kernel)
      : op_(op),
        writes_lse_(kernel.table().lse != ATTNBENCH_LSE_NONE),
        convention_(lse_convention(kernel.table())),
        by_token_(kernel.table().lse_axes == ATTNBENCH_LSE_TH),
        prefix_(take("prefix_output", "prefix_lse")),
        suffix_(take("suffix_output", "suffix_lse")),
        num_tokens_(suffix_.output.dim(0)),
        num_heads_(suffix_.output.dim(1)),
        head_size_(suffix_.output.dim(2)),
        num_merged_(op.problem().op.tokens_with_context.value_or(num_tokens_)),
        prefix_lse_(as_declared(prefix_.lse)),
        suffix_lse_(as_declared(suffix_.lse)) {
    describe(kernel);
  }

  std::vector<PluginKernel::Input> values() const override {
    return {{"prefix_output", prefix_.output_at, &prefix_.output},
            {"prefix_lse", prefix_.lse_at, &prefix_lse_},
            {"suffix_output", suffix_.output_at, &suffix_.output},
            {"suffix_lse", suffix_.lse_at, &suffix_lse_}};
  }

  void upload(OperandValues values) override {
    Part prefix = prefix_, suffix = suffix_;
    if (values == OperandValues::kOther) {
      negate(prefix.output);
      negate(suffix.output);
      negate_lse(prefix.lse);
      negate_lse(suffix.lse);
    }
    if (values == OperandValues::kNegated) {
      exchange(prefix, suffix);
      negate(prefix.output);
      negate(suffix.output);
      shift_lse(prefix.lse, kShift);
      shift_lse(suffix.lse, kShift);
    }
    for (const Part* part : {&prefix, &suffix}) {
      const Tensor lse = as_declared(part->lse);
      send(part->output_at, part->output);
      send(part->lse_at, lse);
    }
  }

  void restore(PipelineOutput& output) const override {
    negate(output.output);
    if (output.lse) shift_lse(*output.lse, -kShift);
  }

  UsersPipeline::Words words() const override {
    return {"other partial results", "the parts were exchanged and negated"};
  }

 private:
  /// What is added to LSEs that are to be others under the same weights.
  static constexpr float kShift = 1.0f;

  Part take(const char* output, const char* lse) {
    Part part{op_.inputs().at(output), op_.inputs().at(lse), nullptr, nullptr};
    const std::int64_t tokens = part.output.dim(0), heads = part.output.dim(1);
    const std::int64_t merged = op_.problem().op.tokens_with_context.value_or(tokens);
    const auto head_size = static_cast<std::size_t>(op_.problem().attention.v_head_size);
    const std::size_t row_bytes = head_size * dtype_size(part.output.dtype());
    for (std::int64_t state = 0; state < tokens * heads; ++state) {
      float& value = part.lse.data<float>()[state % heads * tokens + state / heads];
      if (!std::isinf(value)) continue;
      value = -std::numeric_limits<float>::infinity();
      // Why: the inputs of this program have NaN there, which no kernel that multiplies by a weight
      // of 0 can take, and which no attention leaves (§3.8).
      if (state / heads < merged) std::memset(part.row(state), 0, row_bytes);
    }
    part.output_at = op_.memory().upload(part.output, output);
    part.lse_at = op_.memory().upload(part.lse, lse);
    return part;
  }

  /// By the plugin's convention and in its order; [H, T] are natural LSEs.
  Tensor as_declared(const Tensor& lse) const {
    const std::int64_t heads = lse.dim(0), tokens = lse.dim(1);
    Tensor result(Dtype::kF32, by_token_ ? std::vector{tokens, heads} : lse.shape());
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        result.data<float>()[by_token_ ? t * heads + h : h * tokens + t] =
            from_natural(lse.data<float>()[h * tokens + t], convention_);
      }
    }
    return result;
  }

  void describe(PluginKernel& kernel) {
    const bool fp8 = op_.problem().output_quant.type == OutputQuantType::kFp8Static;
    const Dtype dtype = suffix_.output.dtype();
    const Dtype output = fp8 ? Dtype::kE4M3 : dtype;
    PluginTensors& list = kernel.list();
    AttnbenchTensors& t = kernel.tensors();
    const std::vector<std::int64_t> shape = suffix_.output.shape();
    const std::int64_t stride = prefix_.output.dim(2);
    t.output = list.add(op_.output("output", poisoned_tensor(output, shape)), output, shape);
    t.prefix_output = list.add(prefix_.output_at, dtype, shape, {num_heads_ * stride, stride, 1});
    t.suffix_output = list.add(suffix_.output_at, dtype, shape);
    t.prefix_lse = describe_lse(list, prefix_.lse_at);
    t.suffix_lse = describe_lse(list, suffix_.lse_at);
    if (!writes_lse_) return;
    t.lse =
        describe_lse(list, op_.output("lse", poisoned_tensor(Dtype::kF32, prefix_.lse.shape())));
  }

  const AttnbenchTensor* describe_lse(PluginTensors& list, const void* memory) const {
    return list.add_lse(memory, num_heads_, num_tokens_, num_tokens_);
  }

  void send(const void* memory, const Tensor& tensor) {
    op_.ops().upload(op_.memory().starting_at(memory), tensor.bytes(), tensor.size_bytes());
  }

  /// Swaps the rows that are merged: each result stays, with the weights in each other's place.
  void exchange(Part& prefix, Part& suffix) const {
    const std::size_t bytes =
        static_cast<std::size_t>(head_size_) * dtype_size(suffix.output.dtype());
    for (std::int64_t state = 0; state < num_merged_ * num_heads_; ++state) {
      std::byte* const row = prefix.row(state);
      std::swap_ranges(row, row + bytes, suffix.row(state));
      const std::int64_t at = state % num_heads_ * num_tokens_ + state / num_heads_;
      std::swap(prefix.lse.data<float>()[at], suffix.lse.data<float>()[at]);
    }
  }

  static void negate_lse(Tensor& lse) {
    for (std::int64_t i = 0; i < lse.num_elements(); ++i) {
      float& value = lse.data<float>()[i];
      if (!std::isinf(value)) value = -value;
    }
  }

  static void shift_lse(Tensor& lse, float shift) {
    for (std::int64_t i = 0; i < lse.num_elements(); ++i) lse.data<float>()[i] += shift;
  }

  OpPipeline& op_;
  bool writes_lse_;
  LseConvention convention_;
  bool by_token_;
  Part prefix_, suffix_;
  std::int64_t num_tokens_, num_heads_, head_size_, num_merged_;
  Tensor prefix_lse_, suffix_lse_;  // as the plugin has them
};

/// An operation whose operands a plugin gets by name. The steps of the native operation are queued
/// as they are, which names all operands and outputs; only the one that counts is the plugin's, so
/// whatever stands beside it (rows put back before a rotation, counters set to zero, the exchange
/// between ranks) is there for it as well.
class PluginNamed final : public PluginOperation {
 public:
  PluginNamed(OpPipeline& op, PluginKernel& kernel) : op_(op) {
    op.replace_counted_step([&kernel] { kernel.run(); });
    queue_operation(op);
    const std::vector<std::string> values = redrawn_operands(op.problem());
    for (const OpPipeline::Operand& operand : op.operands()) {
      const AttnbenchTensor* tensor =
          kernel.list().add(operand.memory, operand.tensor->dtype(), operand.tensor->shape());
      if (tensor == nullptr) continue;  // where nothing is going to run there is no memory
      operands_.push_back({operand.name.c_str(), tensor, operand.is_output ? 1u : 0u, 0});
      if (operand.is_output) continue;
      const bool is_value = std::find(values.begin(), values.end(), operand.name) != values.end();
      if (is_value || operand.name == "kv_cache") {
        values_.push_back({operand.name.c_str(), operand.memory, operand.tensor});
      } else {
        kernel.watch(operand.name.c_str(), tensor, operand.tensor->dtype());
      }
    }
    kernel.tensors().operands = operands_.data();
    kernel.tensors().num_operands = static_cast<std::int64_t>(operands_.size());
    const bool writes_pages = op.problem().op.name == OpKind::kReshapeAndCache ||
                              op.problem().op.name == OpKind::kRopeAndCache;
    if (writes_pages && !op.problem().op.mla) describe_caches(kernel);
  }

  std::vector<PluginKernel::Input> values() const override { return values_; }

  void upload(OperandValues values) override {
    for (const PluginKernel::Input& input : values_) {
      Tensor rows = *input.tensor;
      // A sign is the highest bit of floats; other bytes, as of a packed cache, stay.
      const bool has_signs = rows.dtype() != Dtype::kU8 && rows.dtype() != Dtype::kI8;
      if (values == OperandValues::kOther && has_signs) negate(rows);
      op_.ops().upload(op_.memory().starting_at(input.memory), rows.bytes(), rows.size_bytes());
    }
  }

  /// kNegated are the values of the case: what other values make of a rotation, a choice or a scale
  /// is nothing that the results of the case follow from.
  void restore(PipelineOutput&) const override {}

  UsersPipeline::Words words() const override {
    return {"other values", "nothing else was changed"};
  }

 private:
  /// Planes of the pages, of every rank where there is a group, and the scales inside of cells.
  void describe_caches(PluginKernel& kernel) {
    const AttentionSpec& a = op_.problem().attention;
    const PagedCache& cache = op_.inputs().cache;
    const KvLayout& layout = cache.layout;
    const auto found =
        std::find_if(op_.operands().begin(), op_.operands().end(),
                     [](const OpPipeline::Operand& operand) { return operand.name == "kv_cache"; });
    if (found == op_.operands().end()) return;
    const char* const memory = static_cast<const char*>(found->memory);
    const Dtype dtype = cache.data.dtype();
    const auto size = static_cast<std::int64_t>(dtype_size(dtype));
    const std::int64_t ranks = op_.problem().dcp.world_size;
    const std::int64_t blocks =
        cache.data.num_elements() == 0 ? 0 : op_.problem().kv_cache.num_blocks;
    std::vector<std::int64_t> shape{blocks, op_.problem().kv_cache.block_size, a.num_kv_heads};
    std::vector<std::int64_t> strides{layout.block_stride, layout.slot_stride, layout.head_stride};
    if (ranks > 1) {
      shape.insert(shape.begin(), ranks);
      strides.insert(strides.begin(), cache.data.num_elements() / ranks);
    }
    const auto plane = [&](std::int64_t offset, Dtype of, std::int64_t width) {
      std::vector<std::int64_t> of_plane = shape, by = strides;
      of_plane.push_back(width);
      by.push_back(1);
      return kernel.list().add(memory + offset * size, of, of_plane, by);
    };
    // Values of int8 level 2 have 16 bits, in a cache whose strides count codes (§2.2).
    const bool has_wide_values = op_.problem().kv_cache.int8_level == 2;
    AttnbenchTensors& t = kernel.tensors();
    t.key_cache = plane(layout.key_offset, dtype, a.head_size);
    t.value_cache = plane(layout.value_offset, has_wide_values ? a.dtype : dtype, a.v_head_size);
    if (layout.scale_offset < 0) return;
    const ScaleView view = per_token_head_scale_view(layout);
    std::vector<std::int64_t> by{view.block_stride, view.slot_stride, view.head_stride};
    if (ranks > 1) by.insert(by.begin(), strides.front() * size / std::int64_t{sizeof(float)});
    const auto* const scales = reinterpret_cast<const float*>(memory);
    t.k_scale_cache = kernel.list().add(scales + view.key_offset, Dtype::kF32, shape, by);
    t.v_scale_cache = kernel.list().add(scales + view.value_offset, Dtype::kF32, shape, by);
  }

  OpPipeline& op_;
  std::vector<AttnbenchOperand> operands_;
  std::vector<PluginKernel::Input> values_;
};

}  // namespace

std::unique_ptr<PluginOperation> plugin_cache_write(OpPipeline& op, PluginKernel& kernel) {
  return std::make_unique<PluginCacheWrite>(op, kernel);
}

std::unique_ptr<PluginOperation> plugin_merge(OpPipeline& op, PluginKernel& kernel) {
  return std::make_unique<PluginMerge>(op, kernel);
}

std::unique_ptr<PluginOperation> plugin_named(OpPipeline& op, PluginKernel& kernel) {
  return std::make_unique<PluginNamed>(op, kernel);
}

}  // namespace attnbench
