#include "backends/cudnn/pipeline.h"

#include <fmt/format.h>

#include <span>

namespace attnbench {

CudnnPipeline::CudnnPipeline(const Problem& problem, const BackendInputs& inputs, Ops& ops,
                             const CudnnLibrary& library)
    : AttentionPipeline(problem, inputs, ops, kCudnnRules, !cudnn_reads_pages(problem)),
      form_(make_cudnn_form(problem, math())),
      inputs_(inputs) {
  add_write_step();
  // Why: where nothing is going to run the tensors have no memory and there is no device.
  if (inputs.inputs->shapes_only) return;
  set_memory(inputs);
  plan_ = library.plan(form_.graph, ops.stream_for("the plan of CUDNN"));
  run_name_ = fmt::format("CUDNN's {}", plan_->name());
  const auto workspace_bytes = static_cast<std::size_t>(plan_->workspace_bytes());
  if (workspace_bytes > 0) {
    workspace_ = new_buffer(workspace_bytes, "cuDNN's workspace", true)->data();
  }
  add_step(attention_step("attend", [this] { run(); }));
}

void CudnnPipeline::set_memory(const BackendInputs& inputs) {
  const attn::AttendParams& p = params();
  memory_.query = p.query;
  memory_.key = p.kv.key;
  memory_.value = p.kv.value;
  memory_.output = p.output;
  memory_.stats = workspace<float>(cudnn_stats_size(problem()), "statistics");
  memory_.sinks = p.score.sinks;
  memory_.query_offsets = upload_offsets(form_.query_offsets, "query offsets");
  memory_.key_offsets = upload_offsets(form_.key_offsets, "key offsets");
  memory_.value_offsets = upload_offsets(form_.value_offsets, "value offsets");
  memory_.output_offsets = upload_offsets(form_.output_offsets, "output offsets");
  memory_.stats_offsets = upload_offsets(form_.stats_offsets, "statistics offsets");
  if (form_.graph.has_lengths) {
    memory_.query_lens = upload(form_.query_lens, "query lengths");
    memory_.key_lens = upload(form_.key_lens, "key lengths");
  }
  if (form_.graph.pages) {
    const Tensor cache = cudnn_cache(problem(), *inputs.cache);
    ops().upload(buffer_at(p.kv.key), cache.bytes(), cache.size_bytes());
    memory_.block_table = upload(
        cudnn_block_table(problem(), inputs.cache->block_table, form_.graph.pages->table_width),
        "cuDNN's block table");
  }
  if (form_.graph.input == Dtype::kE4M3) set_fp8_memory(inputs);
}

/// Keys and values as a cache of them would hold them, quantised before anything is timed.
void CudnnPipeline::set_fp8_memory(const BackendInputs& inputs) {
  const StoreRule rule = resolve_store_rule(problem(), kCudnnRules);
  memory_.query_descale = upload_scalar(inputs.query.scale, "query descale");
  memory_.key_descale = upload_scalar(rule.k_scale.front(), "key descale");
  memory_.value_descale = upload_scalar(rule.v_scale.front(), "value descale");
  memory_.probability_scale = upload_scalar(attn::kE4M3ProbabilityShift, "probability scale");
  memory_.probability_descale =
      upload_scalar(1.0f / attn::kE4M3ProbabilityShift, "probability descale");
  const auto output_scale = static_cast<float>(problem().output_quant.scale);
  const bool quantised = form_.graph.output == Dtype::kE4M3;
  memory_.output_scale = upload_scalar(quantised ? 1.0f / output_scale : 1.0f, "output scale");
  memory_.probability_amax = workspace<float>(1, "amax of the probabilities");
  memory_.output_amax = workspace<float>(1, "amax of the output");
}

const void* CudnnPipeline::upload_offsets(const std::vector<std::int64_t>& offsets,
                                          const char* name) {
  if (offsets.empty()) return nullptr;
  if (form_.graph.wide_offsets) return upload(offsets, name);
  return upload(std::vector<std::int32_t>(offsets.begin(), offsets.end()), name);
}

const float* CudnnPipeline::upload_scalar(float value, const char* name) {
  return upload(std::vector<float>{value}, name);
}

void CudnnPipeline::run() {
  ops().stream_for(run_name_);
  plan_->run(memory_, workspace_);
}

PipelineOutput CudnnPipeline::read_output(bool with_cache) {
  PipelineOutput output = AttentionPipeline::read_output(with_cache);
  Tensor stats(Dtype::kF32, {cudnn_stats_size(problem())});
  download_workspace(memory_.stats, stats, 0, stats.size_bytes());
  const std::span<const float> values(stats.data<float>(),
                                      static_cast<std::size_t>(stats.num_elements()));
  output.lse = lse_of_cudnn_stats(problem(), values, form_.is_uniform);
  output.declared_lse = LseConvention{};
  if (output.cache) restore_cudnn_cache(problem(), *inputs_.cache, *output.cache);
  return output;
}

}  // namespace attnbench
