// OPS: one operation, as the pipelines of the other backends run it (contract section 2). This is
// where the kind of an operation becomes steps; what a kind needs beside that is in facts.cpp
// (limits, bytes) and in bench/cases/op_inputs.cpp (operands).
#include <fmt/format.h>

#include "backends/backend_list.h"
#include "backends/op/cache_steps.h"
#include "backends/op/facts.h"
#include "backends/op/index_steps.h"
#include "backends/op/merge_steps.h"
#include "backends/op/metadata_steps.h"
#include "backends/op/output_steps.h"
#include "backends/op/pipeline.h"
#include "backends/op/quant_steps.h"

namespace attnbench {

void queue_operation(OpPipeline& op) {
  const bool mla = op.problem().op.mla;
  switch (*op.problem().op.name) {
    case OpKind::kReshapeAndCache:
      return mla ? queue_mla_cache_write(op) : queue_cache_write(op);
    case OpKind::kMerge:
      return queue_merge(op);
    case OpKind::kGather:
      return queue_gather(op);
    case OpKind::kRope:
      return mla ? queue_mla_rope(op, false) : queue_rope(op, false);
    case OpKind::kRopeAndCache:
      return mla ? queue_mla_rope(op, true) : queue_rope(op, true);
    case OpKind::kQuantize:
      return queue_quantize(op);
    case OpKind::kDcpCorrect:
      return queue_dcp_correct(op);
    case OpKind::kOutputQuant:
      return queue_output_quant(op);
    case OpKind::kMmQuant:
      return queue_mm_quant(op);
    case OpKind::kMetadata:
      return queue_metadata(op);
    case OpKind::kIndexKeyCache:
      return queue_index_key_cache(op);
    case OpKind::kIndexLogits:
      return queue_index_logits(op);
    case OpKind::kIndexTopk:
      return queue_index_topk(op);
  }
}

namespace {

/// The variant by the name of the function that vLLM has for it.
std::string function_name(const Problem& problem) {
  const bool mla = problem.op.mla;
  const int level = problem.kv_cache.int8_level;
  switch (*problem.op.name) {
    case OpKind::kReshapeAndCache:
      if (mla) return "concat_and_cache_mla";
      if (level > 0)
        return level == 1 ? "reshape_and_cache_flash_int8" : "reshape_and_cache_flash_mix";
      return "reshape_and_cache_flash";
    case OpKind::kMerge:
      return "merge_attn_states";
    case OpKind::kGather:
      if (problem.op.raw) return "cp_gather_cache";
      return is_packed(problem.kv_cache.dtype) ? "cp_gather_and_upconvert_fp8_kv_cache"
                                               : "gather_and_maybe_dequant_cache";
    case OpKind::kRope:
      return "rotary_embedding";
    case OpKind::kRopeAndCache:
      return mla ? "concat_and_cache_mla_rope_fused" : "do_rope_and_kv_cache_update";
    case OpKind::kQuantize:
      if (level > 0 && !mla) return "scaled_int8_quant_for_attn";
      return mla ? "concat_mla_q, then scaled_fp8_quant" : "scaled_fp8_quant";
    case OpKind::kDcpCorrect:
      if (problem.dcp.comm == DcpComm::kA2a) return "dcp_a2a_lse_reduce";
      return problem.dcp.comm == DcpComm::kAgAr ? "cp_lse_ag_out_ar" : "cp_lse_ag_out_rs";
    case OpKind::kOutputQuant:
      switch (problem.output_quant.type) {
        case OutputQuantType::kFp8Group128:
          return "per_token_group_quant_fp8, kFp8Dynamic128Sym";
        case OutputQuantType::kFp8Group64:
          return "per_token_group_quant_fp8, kFp8Dynamic64Sym";
        case OutputQuantType::kNvfp4:
          return "scaled_fp4_quant, kNvfp4Dynamic";
        default:
          return "scaled_fp8_quant, kFp8StaticTensorSym";
      }
    case OpKind::kMmQuant:
      return "quantize_fp8_maybe_pad_head_dim";
    case OpKind::kMetadata:
      return "build, then update_block_table";
    case OpKind::kIndexKeyCache:
      return "indexer_k_quant_and_cache";
    case OpKind::kIndexLogits:
      return "fp8_paged_mqa_logits";
    case OpKind::kIndexTopk:
      return "top_k_per_row, then convert_req_index_to_global_index";
  }
  return "";
}

class OpsBackend final : public Backend {
 public:
  std::string_view name() const override { return "OPS"; }
  std::string_view description() const override {
    return "one operation alone: cache writes, gather, merge, RoPE, quantisation";
  }
  KernelRules kernel_rules() const override { return {}; }
  bool states_rules() const override { return false; }
  bool is_default_for(AttentionType type) const override { return type == AttentionType::kOp; }
  std::vector<std::string> refusals(const Problem& problem,
                                    const DeviceFacts& device) const override {
    return op_refusals(problem, device);
  }
  std::optional<CacheLayoutKind> cache_layout() const override { return std::nullopt; }
  Dtype probability_dtype(const Problem& problem) const override { return problem.attention.dtype; }
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override {
    if (inputs.op == nullptr) fail(ErrorKind::kInternal, "OPS: no operands were given");
    auto pipeline = std::make_unique<OpPipeline>(problem, *inputs.op, ops);
    queue_operation(*pipeline);
    return pipeline;
  }
  Facts explain(const Problem& problem, const DeviceFacts&) const override {
    Facts facts{{"operation", function_name(problem)}};
    add_op_facts(problem, facts);
    const OpSpec& op = problem.op;
    if (op.rotary_dim) {
      facts.emplace_back("rotated elements",
                         fmt::format("{}, {}", *op.rotary_dim, to_string(op.rope_style)));
    }
    if (*op.name == OpKind::kOutputQuant) {
      const OutputScaleLayout layout = output_scale_layout(problem);
      if (problem.output_quant.type != OutputQuantType::kFp8Static) {
        facts.emplace_back("scales", fmt::format("[{}]", fmt::join(layout.shape, ", ")));
      }
    }
    return facts;
  }
};

}  // namespace

const Backend& ops_backend() {
  static const OpsBackend backend;
  return backend;
}

}  // namespace attnbench
