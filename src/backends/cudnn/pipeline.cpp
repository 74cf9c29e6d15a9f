// The plan is made in the constructor, outside of what is timed, as an engine would keep one per
// shape.
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
  if (plan_->workspace_bytes() > 0) {
    workspace_ = memory().workspace(plan_->workspace_bytes(), "cuDNN's workspace");
  }
  add_attend_step("attend", [this] { run(); });
}

void CudnnPipeline::set_memory(const BackendInputs& inputs) {
  const attn::AttendParams& p = params();
  arguments_.query = p.query;
  arguments_.key = p.kv.key;
  arguments_.value = p.kv.value;
  arguments_.output = p.output;
  arguments_.stats = memory().workspace_of<float>(cudnn_stats_size(problem()), "statistics");
  arguments_.sinks = p.score.sinks;
  arguments_.query_offsets = upload_offsets(form_.query_offsets, "query offsets");
  arguments_.key_offsets = upload_offsets(form_.key_offsets, "key offsets");
  arguments_.value_offsets = upload_offsets(form_.value_offsets, "value offsets");
  arguments_.output_offsets = upload_offsets(form_.output_offsets, "output offsets");
  arguments_.stats_offsets = upload_offsets(form_.stats_offsets, "statistics offsets");
  if (form_.graph.has_lengths) {
    arguments_.query_lens = memory().upload(form_.query_lens, "query lengths");
    arguments_.key_lens = memory().upload(form_.key_lens, "key lengths");
  }
  if (form_.graph.pages) {
    const Tensor cache = cudnn_cache(problem(), *inputs.cache);
    ops().upload(memory().starting_at(p.kv.key), cache.bytes(), cache.size_bytes());
    arguments_.block_table = memory().upload(
        cudnn_block_table(problem(), inputs.cache->block_table, form_.graph.pages->table_width),
        "cuDNN's block table");
  }
  if (form_.graph.input == Dtype::kE4M3) set_fp8_memory(inputs);
}

/// Keys and values as a cache of them would hold them, quantised before anything is timed.
void CudnnPipeline::set_fp8_memory(const BackendInputs& inputs) {
  const StoreRule rule = resolve_store_rule(problem(), kCudnnRules);
  arguments_.query_descale = upload_scalar(inputs.query.scale, "query descale");
  arguments_.key_descale = upload_scalar(rule.k_scale.front(), "key descale");
  arguments_.value_descale = upload_scalar(rule.v_scale.front(), "value descale");
  arguments_.probability_scale = upload_scalar(attn::kE4M3ProbabilityShift, "probability scale");
  arguments_.probability_descale =
      upload_scalar(1.0f / attn::kE4M3ProbabilityShift, "probability descale");
  const auto output_scale = static_cast<float>(problem().output_quant.scale);
  const bool quantised = form_.graph.output == Dtype::kE4M3;
  arguments_.output_scale = upload_scalar(quantised ? 1.0f / output_scale : 1.0f, "output scale");
  arguments_.probability_amax = memory().workspace_of<float>(1, "amax of the probabilities");
  arguments_.output_amax = memory().workspace_of<float>(1, "amax of the output");
}

const void* CudnnPipeline::upload_offsets(const std::vector<std::int64_t>& offsets,
                                          const char* name) {
  if (offsets.empty()) return nullptr;
  if (form_.graph.wide_offsets) return memory().upload(offsets, name);
  return memory().upload(std::vector<std::int32_t>(offsets.begin(), offsets.end()), name);
}

const float* CudnnPipeline::upload_scalar(float value, const char* name) {
  return memory().upload(std::vector<float>{value}, name);
}

void CudnnPipeline::run() {
  ops().stream_for(run_name_);
  plan_->run(arguments_, workspace_);
}

std::optional<SampleSide> CudnnPipeline::sample_side() {
  std::optional<SampleSide> side = AttentionPipeline::sample_side();
  side->outputs.pop_back();  // our LSE, which is made of the statistics
  side->add_output(memory(), arguments_.stats, attn::Element::kF32);
  return side;
}

PipelineOutput CudnnPipeline::read_output(bool with_cache) {
  PipelineOutput output = AttentionPipeline::read_output(with_cache);
  const Tensor stats = memory().read(arguments_.stats, Dtype::kF32, {cudnn_stats_size(problem())});
  const std::span<const float> values(stats.data<float>(),
                                      static_cast<std::size_t>(stats.num_elements()));
  output.lse = lse_of_cudnn_stats(problem(), values, form_.is_uniform);
  // The statistics are natural LSEs already; only their order in memory is converted.
  output.declared_lse = LseConvention{};
  if (output.cache) restore_cudnn_cache(problem(), *inputs_.cache, *output.cache);
  return output;
}

}  // namespace attnbench
