// The query of a call is gathered by a step of ours, so where it has to change, what it is gathered
// from changes. Results that Python returns come to their places behind the whole step; ours that
// read them are run once more then.
#include "backends/plugin/dcp_pipeline.h"

#include <utility>

#include "backends/sample_side.h"
#include "metadata/batch.h"
#include "metadata/parts/dcp.h"

namespace attnbench {

std::vector<std::unique_ptr<PluginProblem>> dcp_calls(const Problem& problem,
                                                      const PluginDevice& device) {
  std::vector<std::unique_ptr<PluginProblem>> calls;
  for (int rank = 0; rank < problem.dcp.world_size; ++rank) {
    calls.push_back(std::make_unique<PluginProblem>(problem, device));
    calls.back()->set_rank(
        rank, dcp_local_seq_lens(context_lens_of(problem), rank, DcpGroup::of(problem)));
  }
  return calls;
}

PluginDcpPipeline::PluginDcpPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                                     const PluginTable& plugin, const PluginDevice& device)
    : inputs_(inputs), ops_(ops), plugin_(plugin), device_(device) {
  problems_ = dcp_calls(problem, device);
  users_.add_call = [this](DeviceBuffers& memory, const attn::AttendParams& p, int rank) {
    return add_call(memory, p, rank);
  };
  ours_ = make_dcp_pipeline(problem, inputs, ops, kPluginRules, &users_);
}

std::function<void()> PluginDcpPipeline::add_call(DeviceBuffers& memory,
                                                  const attn::AttendParams& p, int rank) {
  if (memory_ == nullptr) caches_ = p.kv.key;
  memory_ = &memory;
  Call& call = calls_.emplace_back(std::move(problems_[static_cast<std::size_t>(rank)]), memory,
                                   plugin_, device_);
  const AttnbenchProblem& problem = *call.problem->get();
  const std::int64_t tokens = problem.num_tokens, heads = p.num_heads, kv_heads = p.num_kv_heads;
  PluginTensors& list = call.kernel.list();
  AttnbenchTensors& t = call.kernel.tensors();
  t.query = list.add(p.query, dtype_of(p.query_element), {tokens, heads, p.head_size});
  if (inputs_.query.query.dtype() == Dtype::kE4M3) {
    t.q_scale = list.add(memory.upload(std::vector<float>{inputs_.query.scale}, "q_scale"),
                         Dtype::kF32, {1});
  }
  t.output = list.add(p.output, Dtype::kF32, {tokens, heads, p.v_head_size});
  t.lse = list.add_lse(p.lse, heads, tokens, p.lse_stride);
  t.query_start_loc = list.add(p.query_start_loc, Dtype::kI32, {problem.num_requests + 1});
  t.seq_lens = list.add(p.seq_lens, Dtype::kI32, {problem.num_requests});
  const attn::KvParams& kv = p.kv;
  const Dtype element = dtype_of(kv.element);
  t.k_scale = list.add(kv.k_scale, Dtype::kF32, {kv_heads});
  t.v_scale = list.add(kv.v_scale, Dtype::kF32, {kv_heads});
  const std::vector<std::int64_t> shape{problem.num_blocks, kv.block_size, kv_heads, p.head_size};
  const std::vector<std::int64_t> strides{kv.block_stride, kv.token_stride_key, kv.head_stride_key,
                                          1};
  t.key_cache = list.add(kv.key, element, shape, strides);
  t.value_cache = list.add(kv.value, element, shape, strides);
  t.block_table =
      list.add(kv.block_table, Dtype::kI32, {problem.num_requests, kv.block_table_stride});
  if (inputs_.inputs->shapes_only) return [&call] { call.kernel.run(); };
  call.kernel.watch("query_start_loc", t.query_start_loc, Dtype::kI32);
  call.kernel.watch("seq_lens", t.seq_lens, Dtype::kI32);
  call.kernel.watch("block_table", t.block_table, Dtype::kI32);
  call.kernel.watch("q_scale", t.q_scale, Dtype::kF32);
  call.kernel.watch("k_scale", t.k_scale, Dtype::kF32);
  call.kernel.watch("v_scale", t.v_scale, Dtype::kF32);
  call.kernel.prepare(problem, {{"kv_cache", caches_, &inputs_.cache->data}});
  return [&call] { call.kernel.run(); };
}

void PluginDcpPipeline::run_later_steps() {
  const std::vector<Step>& all = ours_->steps();
  for (std::size_t i = users_.attend_step + 1; i < all.size(); ++i) all[i].run();
}

PipelineOutput PluginDcpPipeline::read_output(bool with_cache) {
  bool has_new = false;
  for (Call& call : calls_) has_new = call.kernel.collect() || has_new;
  if (has_new) {
    run_later_steps();
    ops_.synchronize();
  }
  PipelineOutput output = ours_->read_output(with_cache);
  for (Call& call : calls_) {
    if (with_cache && output.defect.empty()) output.defect = call.kernel.changed_input({});
  }
  return output;
}

std::optional<SampleSide> PluginDcpPipeline::sample_side() {
  std::optional<SampleSide> side = ours_->sample_side();
  if (!side) return side;
  // The query is read by a step of ours in front of the kernel, which gathers it: first_reader
  // stays.
  side->read = [this] { return read_output(false); };
  if (plugin_.returned == nullptr) return side;
  side->collect = [this] {
    for (Call& call : calls_) call.kernel.collect_sample();
    run_later_steps();
  };
  return side;
}

void PluginDcpPipeline::negate_query() {
  ops_.synchronize();
  for (const void* query : users_.queries) {
    negate_buffer(*memory_, query, inputs_.query.query.dtype());
  }
}

void PluginDcpPipeline::negate_inputs() {
  negate_query();
  negate_buffer(*memory_, caches_, inputs_.cache->data.dtype());
  const Dtype dtype = dtype_of(users_.write.source_element);
  negate_buffer(*memory_, users_.write.key, dtype);
  negate_buffer(*memory_, users_.write.value, dtype);
}

void PluginDcpPipeline::negate_output(PipelineOutput& output) const {
  negate(output.output);
  for (auto& [name, tensor] : output.more) {
    if (name == "rank_output") negate(tensor);
  }
}

void PluginDcpPipeline::finish() {
  for (Call& call : calls_) call.kernel.finish();
}

}  // namespace attnbench
