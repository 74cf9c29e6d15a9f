// reshape_and_cache as plugins are given it (attnbench_backend.h, semantics §5.1).
#include <cstring>

#include "backends/plugin/operation.h"

namespace attnbench {
namespace {

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

}  // namespace

std::unique_ptr<PluginOperation> plugin_cache_write(OpPipeline& op, PluginKernel& kernel) {
  return std::make_unique<PluginCacheWrite>(op, kernel);
}

}  // namespace attnbench
