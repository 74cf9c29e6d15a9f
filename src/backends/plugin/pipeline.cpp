// prepare() runs while the values hold poison, so that nothing can be computed ahead of what is
// timed; they are uploaded behind it.
#include "backends/plugin/pipeline.h"

#include <utility>

#include "inputs/cache/kv_scales.h"

namespace attnbench {
namespace {

using Shape = std::vector<std::int64_t>;

bool wants_ragged_keys(const AttnbenchBackend& table) { return table.kv == ATTNBENCH_KV_RAGGED; }

}  // namespace

PluginPipeline::PluginPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                               const PluginTable& plugin, const PluginDevice& device)
    : AttentionPipeline(problem, inputs, ops, kPluginRules, wants_ragged_keys(plugin.table)),
      inputs_(inputs),
      problem_(problem, device),
      kernel_(memory(), plugin, device) {
  if (problem.kv_cache.int8_level > 0) {
    add_int8_steps();
  } else {
    add_write_step();
  }
  describe_tensors();
  // Why: where nothing is going to run the tensors have no memory.
  if (inputs.inputs->shapes_only) return;
  watch_small_inputs();
  kernel_.prepare(*problem_.get(), values());
  add_attend_step("attend", [this] { kernel_.run(); });
}

/// By slots, also of decodes: no user's kernel stores its own keys.
void PluginPipeline::add_int8_steps() {
  int8_.emplace(problem(), inputs_, memory(), false, cache_write(), mutable_params());
  add_step(side_step(
      "quantise_int8", [this] { int8_->quantise(); }, int8_->quantise_bytes()));
  add_step(side_step(
      "write_cache", [this] { ops().write_cache_int8(int8_->write()); }, int8_->write_bytes()));
}

void PluginPipeline::describe_tensors() {
  const attn::AttendParams& p = params();
  const std::int64_t heads = p.num_heads;
  PluginTensors& list = kernel_.list();
  AttnbenchTensors& t = kernel_.tensors();
  t.query = list.add(p.query, dtype_of(p.query_element),
                     {num_tokens(), heads, std::int64_t{p.head_size}});
  if (inputs_.query.query.dtype() == Dtype::kE4M3) {
    t.q_scale = list.add(memory().upload(std::vector<float>{inputs_.query.scale}, "q_scale"),
                         Dtype::kF32, {1});
  }
  if (int8_) {
    const attn::Int8ScoreParams& int8 = p.int8;
    t.q_token_scale = list.add(int8.query_scale, Dtype::kF32, {num_tokens(), heads},
                               {int8.query_scale_token_stride, int8.query_scale_head_stride});
    t.v_channel_scale = list.add(int8.value_channel_scale, Dtype::kF32,
                                 {std::int64_t{p.num_kv_heads}, std::int64_t{p.v_head_size}});
  }
  t.output = list.add(p.output, dtype_of(p.output_element),
                      {num_tokens(), heads, std::int64_t{p.v_head_size}});
  if (kernel_.table().lse != ATTNBENCH_LSE_NONE) {
    t.lse = list.add_lse(p.lse, heads, num_tokens(), p.lse_stride);
  }
  t.query_start_loc = list.add(p.query_start_loc, Dtype::kI32, {num_requests() + 1});
  t.seq_lens = list.add(p.seq_lens, Dtype::kI32, {num_requests()});
  t.alibi_slopes = list.add(p.score.alibi_slopes, Dtype::kF32, {heads});
  t.sinks = list.add(p.score.sinks, Dtype::kF32, {heads});
  t.mm_prefix_ranges =
      list.add(p.score.mm_ranges, Dtype::kI32, {num_requests(), p.score.num_mm_ranges, 2});
  describe_keys();
}

void PluginPipeline::describe_keys() {
  const attn::AttendParams& p = params();
  const attn::KvParams& kv = p.kv;
  const Dtype element = dtype_of(kv.element);
  const std::int64_t heads = p.num_kv_heads;
  PluginTensors& list = kernel_.list();
  AttnbenchTensors& t = kernel_.tensors();
  t.k_scale = list.add(kv.k_scale, Dtype::kF32, {heads});
  t.v_scale = list.add(kv.v_scale, Dtype::kF32, {heads});
  if (kv.block_table == nullptr) {
    const std::int64_t keys = problem_.get()->num_keys;
    t.key = list.add(kv.key, element, {keys, heads, std::int64_t{p.head_size}});
    t.value = list.add(kv.value, element, {keys, heads, std::int64_t{p.v_head_size}});
    t.key_start_loc = list.add(kv.kv_start_loc, Dtype::kI64, {num_requests() + 1});
    return;
  }
  const Shape shape{problem_.get()->num_blocks, std::int64_t{kv.block_size}, heads,
                    std::int64_t{p.head_size}};
  const Shape strides{kv.block_stride, kv.token_stride_key, kv.head_stride_key, 1};
  t.key_cache = list.add(kv.key, element, shape, strides);
  const Dtype value = int8_ ? dtype_of(p.int8.value_element) : element;
  t.value_cache = list.add(kv.value, value, shape, strides);
  t.block_table = list.add(kv.block_table, Dtype::kI32, {num_requests(), kv.block_table_stride});
  if (kv.key_scales == nullptr) return;
  const Shape cells{problem_.get()->num_blocks, std::int64_t{kv.block_size}, heads};
  const Shape by{kv.scale_block_stride, kv.scale_slot_stride, kv.scale_head_stride};
  t.k_scale_cache = list.add(kv.key_scales, Dtype::kF32, cells, by);
  if (int8_) return;
  t.v_scale_cache = list.add(kv.value_scales, Dtype::kF32, cells, by);
}

/// What attention is computed from; lengths and tables are not among it.
std::vector<PluginKernel::Input> PluginPipeline::values() const {
  const attn::AttendParams& p = params();
  std::vector<PluginKernel::Input> inputs;
  // Codes of int8 are made in the step, and compared when they are read.
  if (!int8_) inputs.push_back({"query", p.query, &inputs_.query.query});
  if (kernel_.tensors().key_cache != nullptr) {
    inputs.push_back({"kv_cache", p.kv.key, &inputs_.cache->data});
  } else {
    const auto [key, value] = ragged_kv(inputs_);
    inputs.push_back({"key", p.kv.key, &key});
    inputs.push_back({"value", p.kv.value, &value});
  }
  return inputs;
}

void PluginPipeline::watch_small_inputs() {
  const AttnbenchTensors& t = kernel_.tensors();
  kernel_.watch("query_start_loc", t.query_start_loc, Dtype::kI32);
  kernel_.watch("seq_lens", t.seq_lens, Dtype::kI32);
  kernel_.watch("key_start_loc", t.key_start_loc, Dtype::kI64);
  kernel_.watch("block_table", t.block_table, Dtype::kI32);
  kernel_.watch("alibi_slopes", t.alibi_slopes, Dtype::kF32);
  kernel_.watch("sinks", t.sinks, Dtype::kF32);
  kernel_.watch("q_scale", t.q_scale, Dtype::kF32);
  kernel_.watch("v_channel_scale", t.v_channel_scale, Dtype::kF32);
  kernel_.watch("mm_prefix_ranges", t.mm_prefix_ranges, Dtype::kI32);
  // Those that a step makes are held against the problem's by whoever reads the output.
  if (calculates_kv_scales(problem())) return;
  kernel_.watch("k_scale", t.k_scale, Dtype::kF32);
  kernel_.watch("v_scale", t.v_scale, Dtype::kF32);
}

void PluginPipeline::negate_query() {
  ops().synchronize();
  is_query_own_ = !is_query_own_;
  if (int8_) return kernel_.negate(int8_->query_source(), inputs_.inputs->query.dtype());
  kernel_.negate(params().query, inputs_.query.query.dtype());
}

void PluginPipeline::negate_inputs() {
  if (int8_) return negate_int8();
  ops().synchronize();
  for (const auto& input : values()) {
    if (kernel_.tensors().k_scale_cache != nullptr && input.tensor == &inputs_.cache->data) {
      negate_codes();
    } else {
      kernel_.negate(input.memory, input.tensor->dtype());
    }
  }
  if (kernel_.tensors().key_cache == nullptr) return;
  // And what every run writes into the cache.
  const Dtype dtype = dtype_of(cache_write().source_element);
  kernel_.negate(cache_write().key, dtype);
  kernel_.negate(cache_write().value, dtype);
}

/// What is quantised in the step, and the codes of what was before it; scales are the same.
void PluginPipeline::negate_int8() {
  negate_query();
  const Dtype dtype = dtype_of(cache_write().source_element);
  kernel_.negate(cache_write().key, dtype);
  kernel_.negate(cache_write().value, dtype);
  negate_codes();
}

/// Of a cache whose scales lie between its codes: those of all cells, and nothing else.
void PluginPipeline::negate_codes() {
  const attn::KvParams& kv = params().kv;
  Tensor cache = memory().read(kv.key, inputs_.cache->data.dtype(), inputs_.cache->data.shape());
  const bool is_int8 = cache.dtype() == Dtype::kI8;
  const auto* const first = static_cast<const char*>(kv.key);
  const std::int64_t value_plane = static_cast<const char*>(kv.value) - first;
  const AttentionSpec& a = problem().attention;
  const auto flip = [&](std::int64_t cell) {
    auto* const codes = reinterpret_cast<std::uint8_t*>(cache.bytes()) + cell;
    for (int d = 0; d < a.head_size; ++d) {
      const auto code = static_cast<int>(codes[d]);
      codes[d] = static_cast<std::uint8_t>(is_int8 ? -code : code ^ 0x80);
    }
  };
  // Values of 16 bits lie behind the codes of the keys at int8 level 2.
  const bool is_wide = int8_ && params().int8.value_element != attn::Element::kI8;
  const auto flip_value = [&](std::int64_t cell) {
    if (!is_wide) return flip(value_plane + cell);
    const auto size = static_cast<std::int64_t>(element_size(params().int8.value_element));
    negate_elements(cache.bytes() + value_plane + cell * size, a.head_size, size);
  };
  for (std::int64_t block = 0; block < problem_.get()->num_blocks; ++block) {
    for (std::int64_t slot = 0; slot < kv.block_size; ++slot) {
      for (std::int64_t head = 0; head < a.num_kv_heads; ++head) {
        const std::int64_t cell =
            block * kv.block_stride + slot * kv.token_stride_key + head * kv.head_stride_key;
        flip(cell);
        flip_value(cell);
      }
    }
  }
  ops().upload(memory().starting_at(kv.key), cache.bytes(), cache.size_bytes());
}

std::string PluginPipeline::changed_input() {
  std::vector<PluginKernel::Input> inputs = values();
  // The cache has new keys by now, which whoever checks the write compares.
  if (kernel_.tensors().key_cache != nullptr) inputs.pop_back();
  return kernel_.changed_input(inputs);
}

std::optional<SampleSide> PluginPipeline::sample_side() {
  std::optional<SampleSide> side = AttentionPipeline::sample_side();
  // Why not earlier: another stream could begin while the cache is written, which is not counted.
  side->first_reader = attend_step();
  if (int8_) {
    int8_->change(*side);
    // Codes of another query are not those that the stage expects.
    side->read = [this] { return read_sample(); };
  }
  if (kernel_.collects()) side->collect = [this] { kernel_.collect_sample(); };
  if (kernel_.table().lse == ATTNBENCH_LSE_NONE) side->outputs.pop_back();
  return side;
}

PipelineOutput PluginPipeline::read_sample() {
  kernel_.collect();
  PipelineOutput output = AttentionPipeline::read_output(false);
  kernel_.convert_lse(output);
  return output;
}

PipelineOutput PluginPipeline::read_output(bool with_cache) {
  kernel_.collect();
  PipelineOutput output = AttentionPipeline::read_output(with_cache);
  // Why not always: on a device all of it is copied, which takes as long as copying the cache.
  if (int8_) int8_->read(output, is_query_own_);
  if (with_cache && output.defect.empty()) output.defect = changed_input();
  kernel_.convert_lse(output);
  return output;
}

}  // namespace attnbench
