// All steps but one are ours. The kernel's query is made by steps, so its values cannot be uploaded
// like those of other inputs: where they have to change, what they are made from changes.
#include "backends/plugin/mla_pipeline.h"

#include <utility>

#include "backends/mla/plan.h"
#include "backends/mla/query.h"
#include "backends/mla/sparse.h"

namespace attnbench {
namespace {

using enum KvCacheDtype;

/// Flips the signs of values and rope part of fp8_ds_mla entries, u8 [..., 656]; the scales between
/// them stay.
void negate_ds_mla(Tensor& entries) {
  constexpr int kRopeBytes = 2 * attn::kDsMlaRope;
  for (std::size_t begin = 0; begin < entries.size_bytes(); begin += attn::kDsMlaEntryBytes) {
    std::byte* entry = entries.bytes() + begin;
    for (int i = 0; i < attn::kDsMlaLatent; ++i) entry[i] ^= std::byte{0x80};
    for (int i = attn::kDsMlaEntryBytes - kRopeBytes + 1; i < attn::kDsMlaEntryBytes; i += 2) {
      entry[i] ^= std::byte{0x80};
    }
  }
}

/// Lists of every second of the keys, at least one where there are any.
Tensor thinned(const Tensor& slots) {
  Tensor result = slots;
  for (std::int64_t row = 0; row < slots.dim(0); ++row) {
    std::int32_t* list = result.data<std::int32_t>() + row * slots.dim(1);
    bool is_dropped = false;
    for (std::int64_t k = 0; k < slots.dim(1); ++k) {
      if (list[k] < 0) continue;
      if (is_dropped) list[k] = -1;
      is_dropped = !is_dropped;
    }
  }
  return result;
}

}  // namespace

MlaCapability plugin_mla_capability(const AttnbenchBackend& table, bool sparse) {
  MlaCapability c;
  c.name = table.name;
  c.dtypes = {Dtype::kF16, Dtype::kBF16};
  // What is not declared is refused by the name of its feature; fp8 stands for fp8_ds_mla where
  // that is the only one, as in FLASHMLA_SPARSE.
  c.kv_dtypes = {kAuto, kFloat16, kBFloat16, kFp8, kFp8DsMla};
  const bool only_ds_mla =
      (table.features & ATTNBENCH_MLA_DS_KV) != 0 && (table.features & ATTNBENCH_FP8_KV) == 0;
  if (!only_ds_mla) c.kv_dtypes.push_back(kFp8E4M3);
  c.block_sizes = {{1, true}};
  c.sparse = sparse;
  c.fp8_query = (table.features & ATTNBENCH_FP8_QUERY) != 0;
  c.latent_only = true;
  return c;
}

MlaCapability plugin_prefill_capability(const AttnbenchBackend& table) {
  MlaCapability c = plain_mla_capability();
  c.name = table.name;
  c.dtypes = {Dtype::kF16, Dtype::kBF16};
  return c;
}

PluginMlaPipeline::PluginMlaPipeline(const MlaCapability& capability, const Problem& problem,
                                     const BackendInputs& inputs, Ops& ops,
                                     const PluginTable& plugin, const PluginDevice& device)
    : MlaPipeline(capability, problem, inputs, ops),
      problem_(problem, capability, device),
      kernel_(work().memory, plugin, device) {
  add_query_steps();
  describe_tensors();
  // Why: where nothing is going to run the tensors have no memory.
  if (!problem.inputs.shapes_only) prepare();
  attention_step_ = work().steps.size();
  work().add_attend_step("attend", [this] { kernel_.run(); });
  const attn::i64 row = work().padded_heads() * work().sizes.latent;
  add_value_projection(work(), {{latent_output_, row}}, work().num_tokens);
  add_output_quant();
}

void PluginMlaPipeline::add_query_steps() {
  MlaWork& w = work();
  first_query_step_ = w.steps.size();
  const LatentQuery query = add_joined_query(w, w.num_tokens, w.plan.quantised_query,
                                             w.padded_heads(), QueryReader::kUsers);
  query_element_ = query.element;
  query_ = query.data;
}

void PluginMlaPipeline::describe_tensors() {
  MlaWork& w = work();
  const std::int64_t heads = w.padded_heads();
  latent_output_ = w.workspace(w.num_tokens * heads * w.sizes.latent, w.element, "output");
  w.lse = w.memory.workspace_of<float>(heads * w.num_rows, "lse");
  PluginTensors& list = kernel_.list();
  AttnbenchTensors& t = kernel_.tensors();
  const auto requests = static_cast<std::int64_t>(w.problem.batch.size());
  t.query = list.add(query_, dtype_of(query_element_), {w.num_tokens, heads, w.sizes.entry()});
  t.output = list.add(latent_output_, dtype_of(w.element), {w.num_tokens, heads, w.sizes.latent});
  if (kernel_.table().lse != ATTNBENCH_LSE_NONE) {
    t.lse = list.add_lse(w.lse, heads, w.num_tokens, w.num_rows);
  }
  t.query_start_loc = list.add(w.memory.upload(w.inputs.query_start_loc, "query_start_loc"),
                               Dtype::kI32, {requests + 1});
  t.seq_lens = list.add(w.memory.upload(w.inputs.seq_lens, "seq_lens"), Dtype::kI32, {requests});
  t.block_table = list.add(w.block_table, Dtype::kI32, {requests, w.block_table_columns()});
  const Tensor& cache = w.cache_before.data;
  t.kv_cache = list.add(w.cache->data(), cache.dtype(), cache.shape());
  if (w.entry_format() == attn::MlaEntry::kE4M3) t.k_scale = list.add(w.k_scale, Dtype::kF32, {1});
  if (w.plan.quantised_query) t.q_scale = list.add(w.q_scale, Dtype::kF32, {1});
  if (!w.capability.sparse) return;
  slots_ = Tensor::from_i32(mla_sparse_slots(w), w.inputs.topk_indices.shape());
  t.topk_slots = list.add(w.memory.upload(slots_, "topk_slots"), Dtype::kI32, slots_.shape());
}

void PluginMlaPipeline::prepare() {
  MlaWork& w = work();
  const AttnbenchTensors& t = kernel_.tensors();
  kernel_.watch("query_start_loc", t.query_start_loc, Dtype::kI32);
  kernel_.watch("seq_lens", t.seq_lens, Dtype::kI32);
  kernel_.watch("block_table", t.block_table, Dtype::kI32);
  kernel_.watch("topk_slots", t.topk_slots, Dtype::kI32);
  if (!w.kv_scales) {  // those that a step makes are held against the problem's by read_output()
    kernel_.watch("k_scale", t.k_scale, Dtype::kF32);
    kernel_.watch("q_scale", t.q_scale, Dtype::kF32);
  }
  // The query is poison still: it is memory that no step has written.
  std::vector<PluginKernel::Input> values{{"kv_cache", w.cache->data(), &w.cache_before.data}};
  // Poison is -1 there, no key. What a kernel made of the lists here would not be timed.
  if (t.topk_slots != nullptr) values.push_back({"topk_slots", t.topk_slots->data, &slots_});
  kernel_.prepare(*problem_.get(), values);
}

void PluginMlaPipeline::run_steps(std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) work().steps[i].run();
  work().ops.synchronize();
}

/// The query is made by steps of ours, so another one is held against it. The cache has new latents
/// by now, which whoever checks the write compares.
std::string PluginMlaPipeline::changed_input() {
  const AttnbenchTensor& query = *kernel_.tensors().query;
  const Tensor found =
      work().memory.read(query_, dtype_of(query_element_), {query.shape, query.shape + query.ndim});
  run_steps(first_query_step_, attention_step_);
  return kernel_.changed_input({{"query", query_, &found}});
}

PipelineOutput PluginMlaPipeline::read_output(bool with_cache) {
  if (kernel_.collects()) {
    kernel_.collect();
    // They ran before the output was there.
    run_steps(attention_step_ + 1, work().steps.size());
  }
  PipelineOutput output = MlaPipeline::read_output(with_cache);
  if (with_cache && output.defect.empty()) output.defect = changed_input();
  kernel_.convert_lse(output);
  return output;
}

std::optional<SampleSide> PluginMlaPipeline::sample_side() {
  std::optional<SampleSide> side = MlaPipeline::sample_side();
  side->add_output(work().memory, latent_output_, work().element);
  if (!kernel_.collects()) return side;
  side->collect = [this] {
    kernel_.collect_sample();
    for (std::size_t i = attention_step_ + 1; i < work().steps.size(); ++i) work().steps[i].run();
  };
  return side;
}

UsersPipeline::Words PluginMlaPipeline::words() const {
  const bool has_lists = kernel_.tensors().topk_slots != nullptr;
  return {has_lists ? "the query negated and half of every list" : "the query negated",
          "query and latents were negated"};
}

void PluginMlaPipeline::negate_query() {
  flip_mla_query(work());
  const AttnbenchTensor* lists = kernel_.tensors().topk_slots;
  if (lists == nullptr) return;
  shows_other_lists_ = !shows_other_lists_;
  const Tensor shown = shows_other_lists_ ? thinned(slots_) : slots_;
  work().ops.upload(work().memory.starting_at(lists->data), shown.bytes(), shown.size_bytes());
}

void PluginMlaPipeline::negate_inputs() {
  flip_mla_query(work());
  flip_mla_latents(work());
}

void PluginMlaPipeline::negate_output(PipelineOutput& output) const {
  negate_mla_output(work().problem, output);
}

void flip_mla_query(MlaWork& work) {
  work.ops.synchronize();
  negate_buffer(work.memory, work.query, dtype_of(work.element));
}

void flip_mla_latents(MlaWork& work) {
  negate_buffer(work.memory, work.new_kv_c, dtype_of(work.element));
  negate_buffer(work.memory, work.new_k_pe, dtype_of(work.element));
  if (work.entry_format() != attn::MlaEntry::kDsMla) {
    return negate_buffer(work.memory, work.cache->data(), work.cache_before.data.dtype());
  }
  Tensor entries = work.read_cache();
  negate_ds_mla(entries);
  work.ops.upload(*work.cache, entries.bytes(), entries.size_bytes());
}

/// Two codes in a byte of NVFP4.
void negate_mla_output(const Problem& problem, PipelineOutput& output) {
  negate(output.output);
  if (problem.output_quant.type == OutputQuantType::kNvfp4) {
    std::byte* codes = output.output.bytes();
    for (std::size_t i = 0; i < output.output.size_bytes(); ++i) codes[i] ^= std::byte{0x08};
  }
  for (auto& [name, tensor] : output.more) {
    if (name == "output_unquantized") negate(tensor);
  }
}

}  // namespace attnbench
