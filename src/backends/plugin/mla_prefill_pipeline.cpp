// Every call has tensors of its own but for the query, and context chunks share the memory of keys
// and values, which our steps fill again before each of them.
#include "backends/plugin/mla_prefill_pipeline.h"

#include <algorithm>
#include <utility>

#include "backends/mla/decode.h"
#include "backends/mla/plan.h"
#include "backends/mla/prefill.h"
#include "backends/plugin/mla_pipeline.h"
#include "metadata/batch.h"

namespace attnbench {

using attn::i64;

std::vector<std::unique_ptr<PluginProblem>> mla_prefill_calls(const MlaCapability& capability,
                                                              const Problem& problem,
                                                              const PluginDevice& device) {
  std::vector<std::unique_ptr<PluginProblem>> calls;
  const MlaPlan plan = plan_mla(capability, problem);
  if (plan.batch.num_prefills == 0) return calls;
  const int first = plan.batch.num_decodes;
  if (plan.chunks) {
    for (const MlaChunk& chunk : plan.chunks->chunks) {
      calls.push_back(std::make_unique<PluginProblem>(problem, first, chunk.lens, false, device));
    }
  }
  calls.push_back(
      std::make_unique<PluginProblem>(problem, first, query_lens_of(problem, first), true, device));
  return calls;
}

PluginMlaPrefillPipeline::PluginMlaPrefillPipeline(const MlaCapability& capability,
                                                   const Problem& problem,
                                                   const BackendInputs& inputs, Ops& ops,
                                                   const PluginTable& plugin,
                                                   const PluginDevice& device)
    : MlaPipeline(capability, problem, inputs, ops), plugin_(plugin), device_(device) {
  MlaWork& w = work();
  w.plan.pad_v = false;  // the kernel takes values of their own width
  w.users_prefill = [this](const attn::AttendParams& p, const std::vector<std::int32_t>& key_lens) {
    return add_call(p, key_lens);
  };
  query_.push_back({"query", w.query, &w.inputs.query});
  first_step_ = w.steps.size();
  if (w.plan.batch.num_decodes > 0) add_mla_decode(w);
  add_mla_prefill(w);
  add_output_quant();
  for (std::size_t i = first_step_; i < w.steps.size(); ++i) {
    const std::string& name = w.steps[i].name;
    if (name == "attend_context" || name == "attend_new_tokens") calls_at_.push_back(i);
  }
}

std::function<void()> PluginMlaPrefillPipeline::add_call(
    const attn::AttendParams& p, const std::vector<std::int32_t>& key_lens) {
  MlaWork& w = work();
  const int first = w.plan.batch.num_decodes;
  const bool causal = p.score.window_right == 0;
  Call& call = calls_.emplace_back(
      std::make_unique<PluginProblem>(w.problem, first, key_lens, causal, device_), w.memory,
      plugin_, device_);
  const i64 tokens = w.plan.batch.num_prefill_tokens;
  const i64 heads = p.num_heads;
  const i64 requests = p.num_requests;
  i64 keys = 0;
  for (const std::int32_t len : key_lens) keys += len;
  PluginTensors& list = call.kernel.list();
  AttnbenchTensors& t = call.kernel.tensors();
  const Dtype dtype = dtype_of(p.query_element);
  t.query = list.add(p.query, dtype, {tokens, heads, i64{p.head_size}},
                     {p.query_token_stride, p.query_head_stride, 1});
  t.key = list.add(p.kv.key, dtype, {keys, heads, i64{p.head_size}},
                   {p.kv.token_stride_key, p.kv.head_stride_key, 1});
  t.value = list.add(p.kv.value, dtype, {keys, heads, w.sizes.value},
                     {p.kv.token_stride_value, p.kv.head_stride_value, 1});
  t.output = list.add(p.output, dtype_of(p.output_element), {tokens, heads, w.sizes.value},
                      {p.output_token_stride, p.output_head_stride, 1});
  t.lse = list.add_lse(p.lse, heads, tokens, p.lse_stride);
  t.query_start_loc = list.add(p.query_start_loc, Dtype::kI32, {requests + 1});
  t.seq_lens = list.add(p.seq_lens, Dtype::kI32, {requests});
  t.key_start_loc = list.add(p.kv.kv_start_loc, Dtype::kI64, {requests + 1});
  if (!w.problem.inputs.shapes_only) {
    call.kernel.watch("query_start_loc", t.query_start_loc, Dtype::kI32);
    call.kernel.watch("seq_lens", t.seq_lens, Dtype::kI32);
    call.kernel.watch("key_start_loc", t.key_start_loc, Dtype::kI64);
    // Keys and values are poison still: memory that no step has written.
    call.kernel.prepare(*call.problem->get(), query_);
  }
  return [&call] { call.kernel.run(); };
}

/// Once more, behind calls whose results have come to their places only now.
void PluginMlaPrefillPipeline::run_our_steps() {
  for (std::size_t i = first_step_; i < work().steps.size(); ++i) {
    if (std::find(calls_at_.begin(), calls_at_.end(), i) != calls_at_.end()) continue;
    work().steps[i].run();
  }
}

PipelineOutput PluginMlaPrefillPipeline::read_output(bool with_cache) {
  bool has_new = false;
  for (Call& call : calls_) has_new = call.kernel.collect() || has_new;
  if (has_new) {
    run_our_steps();
    work().ops.synchronize();
  }
  PipelineOutput output = MlaPipeline::read_output(with_cache);
  for (Call& call : calls_) {
    if (with_cache && output.defect.empty()) output.defect = call.kernel.changed_input(query_);
  }
  return output;
}

std::optional<SampleSide> PluginMlaPrefillPipeline::sample_side() {
  std::optional<SampleSide> side = MlaPipeline::sample_side();
  if (plugin_.returned == nullptr) return side;
  side->collect = [this] {
    for (Call& call : calls_) call.kernel.collect_sample();
    run_our_steps();
  };
  return side;
}

void PluginMlaPrefillPipeline::negate_query() { flip_mla_query(work()); }

void PluginMlaPrefillPipeline::negate_inputs() {
  flip_mla_query(work());
  flip_mla_latents(work());
}

void PluginMlaPrefillPipeline::negate_output(PipelineOutput& output) const {
  negate_mla_output(work().problem, output);
}

void PluginMlaPrefillPipeline::finish() {
  for (Call& call : calls_) call.kernel.finish();
}

}  // namespace attnbench
