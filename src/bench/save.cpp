#include "bench/save.h"

#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "inputs/safetensors.h"
#include "metadata/kv_layout.h"

namespace attnbench {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Named tensors of a file; borrowed ones must outlive it.
class TensorList {
 public:
  void borrow(const std::string& name, const Tensor& tensor) { list_.emplace_back(name, &tensor); }
  void own(const std::string& name, Tensor tensor) {
    borrow(name, owned_.emplace_back(std::move(tensor)));
  }
  const std::vector<std::pair<std::string, const Tensor*>>& list() const { return list_; }

 private:
  std::deque<Tensor> owned_;
  std::vector<std::pair<std::string, const Tensor*>> list_;
};

/// Without the padding rows behind row `count`.
Tensor first_rows(const Tensor& tensor, std::int64_t count) {
  std::vector<std::int64_t> shape = tensor.shape();
  shape[0] = count;
  Tensor result(tensor.dtype(), std::move(shape));
  if (!result.empty()) std::memcpy(result.bytes(), tensor.bytes(), result.size_bytes());
  return result;
}

void add_inputs(TensorList& tensors, const SavedCase& saved) {
  const AttentionInputs& inputs = *saved.inputs->inputs;
  const StoredQuery& query = saved.inputs->query;
  tensors.own("query", first_rows(query.query, inputs.num_tokens()));
  if (query.dequantized) {
    tensors.own("query_dequantized", first_rows(*query.dequantized, inputs.num_tokens()));
  }
  if (!query.scales.empty()) {
    tensors.own("query_scales", first_rows(query.scales, inputs.num_tokens()));
    tensors.own("query_unquantized", first_rows(inputs.query, inputs.num_tokens()));
  }
  tensors.borrow("key", inputs.key);
  tensors.borrow("value", inputs.value);
  tensors.own("query_start_loc", Tensor::from_i32(inputs.query_start_loc));
  tensors.own("seq_lens", Tensor::from_i32(inputs.seq_lens));
  if (!inputs.sinks.empty()) tensors.own("sinks", Tensor::from_f32(inputs.sinks));
  if (!inputs.alibi_slopes.empty()) {
    tensors.own("alibi_slopes", Tensor::from_f32(inputs.alibi_slopes));
  }
}

/// Per-token-head scales of every slot, f32 [NB, bs, Hk], copied out of the cache's cells.
Tensor scale_cache(const Problem& problem, const ScaleView& view, std::int64_t offset,
                   const Tensor& cache) {
  const KvCacheSpec& spec = problem.kv_cache;
  Tensor scales(Dtype::kF32, {spec.num_blocks, spec.block_size, problem.attention.num_kv_heads});
  float* next = scales.data<float>();
  for (std::int64_t block = 0; block < spec.num_blocks; ++block) {
    for (std::int64_t slot = 0; slot < spec.block_size; ++slot) {
      for (std::int64_t head = 0; head < problem.attention.num_kv_heads; ++head) {
        const std::int64_t index =
            offset + block * view.block_stride + slot * view.slot_stride + head * view.head_stride;
        std::memcpy(next++, cache.bytes() + index * static_cast<std::int64_t>(sizeof(float)),
                    sizeof(float));
      }
    }
  }
  return scales;
}

/// The pair of kv_cache_scale (§11.1): keys f32 [NB, Hk, bs], values f32 [Hk, D] at level 1.
void add_int8_scales(TensorList& tensors, const SavedCase& saved) {
  const Tensor& before = saved.inputs->cache->key_scale_cache;
  tensors.borrow("key_scale_cache",
                 saved.output->key_scale_cache ? *saved.output->key_scale_cache : before);
  const std::vector<float>& value_scale = saved.inputs->inputs->value_channel_scale;
  if (value_scale.empty()) return;
  const AttentionSpec& a = saved.problem->attention;
  tensors.own("value_scale_cache", Tensor::from_f32(value_scale, {a.num_kv_heads, a.v_head_size}));
}

void add_cache(TensorList& tensors, const SavedCase& saved) {
  const Problem& problem = *saved.problem;
  if (saved.inputs->stored && cache_is_quantised(problem)) {
    tensors.borrow("key_dequantized", saved.inputs->stored->key_dequantized);
    tensors.borrow("value_dequantized", saved.inputs->stored->value_dequantized);
  }
  if (!saved.inputs->cache) return;
  const PagedCache& before = *saved.inputs->cache;
  const Tensor& data = saved.output->cache ? *saved.output->cache : before.data;
  tensors.borrow("kv_cache", data);
  tensors.borrow("block_table", before.block_table);
  tensors.borrow("slot_mapping", before.slot_mapping);
  if (problem.kv_cache.int8_level > 0) add_int8_scales(tensors, saved);
  if (!is_per_token_head(problem.kv_cache.dtype)) return;
  const ScaleView view = per_token_head_scale_view(before.layout);
  tensors.own("key_scale_cache", scale_cache(problem, view, view.key_offset, data));
  tensors.own("value_scale_cache", scale_cache(problem, view, view.value_offset, data));
}

/// All rows of the output or LSE; those that were not checked are NaN.
void add_reference(TensorList& tensors, const SavedCase& saved) {
  const ReferenceOutput& reference = *saved.reference;
  const std::int64_t num_tokens = saved.problem->num_tokens();
  const std::int64_t num_heads = reference.num_heads;
  const std::int64_t width = num_heads * reference.v_head_size;
  const auto num_rows = static_cast<std::int64_t>(reference.rows.size());
  std::vector<double> output(static_cast<std::size_t>(num_tokens * width), kNaN);
  std::vector<double> lse(static_cast<std::size_t>(num_heads * num_tokens), kNaN);
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const std::int64_t token = reference.rows[static_cast<std::size_t>(r)];
    std::copy_n(reference.output.begin() + r * width, width, output.begin() + token * width);
    for (std::int64_t head = 0; head < num_heads; ++head) {
      lse[static_cast<std::size_t>(head * num_tokens + token)] =
          reference.lse[static_cast<std::size_t>(head * num_rows + r)];
    }
  }
  tensors.own("reference_output",
              Tensor::from_f64(output, {num_tokens, num_heads, reference.v_head_size}));
  tensors.own("reference_lse", Tensor::from_f64(lse, {num_heads, num_tokens}));
  tensors.own("checked_rows", Tensor::from_i32(reference.rows));
}

}  // namespace

std::string tensor_file_name(const std::string& id) {
  std::string name;
  for (const char character : id) {
    if (character == '/') {
      name += "__";
    } else {
      name += character;
    }
  }
  return name + ".safetensors";
}

void save_tensors(const std::filesystem::path& folder, const Result& result,
                  const SavedCase& saved) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail(ErrorKind::kIo, "cannot create the folder '{}': {}", folder.string(), error.message());
  }
  TensorList tensors;
  add_inputs(tensors, saved);
  add_cache(tensors, saved);
  tensors.borrow("output", saved.output->output);
  if (saved.output->lse) tensors.borrow("lse", *saved.output->lse);
  if (saved.reference != nullptr) add_reference(tensors, saved);
  write_safetensors(
      folder / tensor_file_name(result.id), tensors.list(),
      {{"problem", result.problem_json}, {"backend", result.backend}, {"id", result.id}});
}

}  // namespace attnbench
