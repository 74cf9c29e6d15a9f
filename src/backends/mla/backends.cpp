// The MLA backends: MLA (vLLM's TRITON_MLA), FLASHMLA, FLASH_ATTN_MLA and FLASHMLA_SPARSE. Each is
// its limits as a MlaCapability; MlaBackend is the same class for all. None of them has rules of
// its own for masks or rounding, so none states KernelRules.
#include <fmt/format.h>

#include <utility>

#include "backends/backend_list.h"
#include "backends/mla/pipeline.h"
#include "backends/mla/plan.h"
#include "backends/ranks/exchange.h"
#include "metadata/parts/decode_plan.h"

namespace attnbench {
namespace {

using enum KvCacheDtype;

/// FlashMLA: entries of DeepSeek's sizes in pages of 64 on Hopper, decodes by a plan that spreads
/// the keys of all requests evenly over the device.
MlaCapability flash_mla() {
  MlaCapability c = plain_mla_capability();
  c.name = "FLASHMLA";
  c.entry_sizes = {320, 576};
  c.block_sizes = {{64, false}};
  c.min_sm = 90;
  c.max_sm = 109;
  c.fp8_query = true;
  c.builder = MetadataBuilder::kFlashMla;
  c.split = MlaDecodeSplit::kPlan;
  return c;
}

/// FlashAttention 3 on Hopper, which reads 16-bit latents only.
MlaCapability flash_attn_mla() {
  MlaCapability c = plain_mla_capability();
  c.name = "FLASH_ATTN_MLA";
  c.kv_dtypes = {kAuto, kFloat16, kBFloat16};
  c.entry_sizes = {320, 576};
  c.min_sm = 90;
  c.max_sm = 99;
  c.builder = MetadataBuilder::kFlashAttnMla;
  return c;
}

/// FlashMLA over listed keys. "fp8" means the packed entries here (mla_cache_dtype()).
MlaCapability flash_mla_sparse() {
  MlaCapability c = flash_mla();
  c.name = "FLASHMLA_SPARSE";
  c.dtypes = {Dtype::kBF16};
  c.kv_dtypes = {kAuto, kBFloat16, kFp8DsMla, kFp8};
  c.entry_sizes = {576};
  c.sparse = true;
  c.fp8_query = false;
  c.builder = MetadataBuilder::kFlashMlaSparse;
  return c;
}

/// Whether the plan of the decodes splits requests, and how many.
std::string describe_decode_plan(const Problem& problem, const MlaPlan& plan) {
  std::vector<std::int32_t> lens = seq_lens_of(problem);
  lens.resize(static_cast<std::size_t>(plan.batch.num_decodes));
  const DecodePlan decodes = plan_dense_decode(lens, plan.num_parts);
  int num_split = 0;
  for (std::size_t b = 0; b < lens.size(); ++b) {
    num_split += decodes.num_splits[b + 1] - decodes.num_splits[b] > 1 ? 1 : 0;
  }
  if (num_split == 0) return "whole requests";
  return fmt::format("{} of {} requests split, {} partial results", num_split, lens.size(),
                     decodes.num_splits.back() - static_cast<int>(lens.size()) + num_split);
}

class MlaBackend : public Backend {
 public:
  MlaBackend(MlaCapability capability, std::string_view description)
      : capability_(std::move(capability)), description_(description) {}
  std::string_view name() const override { return capability_.name; }
  std::string_view description() const override { return description_; }
  KernelRules kernel_rules() const override { return {}; }
  bool states_rules() const override { return false; }
  bool is_default_for(AttentionType type) const override { return type == AttentionType::kMla; }
  std::vector<std::string> refusals(const Problem& problem,
                                    const DeviceFacts& device) const override {
    return mla_refusals(capability_, problem, device);
  }
  const MlaCapability* mla_capability(const Problem&) const override { return &capability_; }
  std::optional<CacheLayoutKind> cache_layout() const override { return std::nullopt; }
  Dtype probability_dtype(const Problem& problem) const override { return problem.attention.dtype; }
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override {
    return make_mla_pipeline(capability_, problem, inputs, ops);
  }
  Facts explain(const Problem& problem, const DeviceFacts& device) const override {
    const MlaPlan plan = plan_mla(capability_, problem, device.num_sms);
    Facts facts{{"num_decodes", std::to_string(plan.batch.num_decodes)},
                {"num_prefills", std::to_string(plan.batch.num_prefills)},
                {"num_decode_tokens", std::to_string(plan.batch.num_decode_tokens)},
                {"num_prefill_tokens", std::to_string(plan.batch.num_prefill_tokens)},
                {"decode form", capability_.sparse ? "latent, listed keys" : "latent"},
                {"decode parts", std::to_string(plan.num_parts)},
                {"decode query", plan.quantised_query ? "fp8_e4m3" : "as given"}};
    const bool is_planned = capability_.split == MlaDecodeSplit::kPlan && !capability_.sparse;
    if (is_planned && plan.num_parts > 1 && problem.dcp.world_size == 1) {
      facts.emplace_back("decode plan", describe_decode_plan(problem, plan));
    }
    if (plan.chunks) {
      facts.emplace_back("context chunks", std::to_string(plan.chunks->chunks.size()));
      facts.emplace_back("max_context_chunk", std::to_string(plan.chunks->max_context_chunk));
    }
    facts.emplace_back("workspace tokens", std::to_string(plan.workspace_tokens));
    if (capability_.sparse && plan.sparse_batch.num_prefills > 0) {
      facts.emplace_back("upconverted requests", std::to_string(plan.sparse_batch.num_prefills));
    }
    if (problem.dcp.world_size > 1) {
      facts.emplace_back("ranks", explain_ranks(problem.dcp));
      facts.emplace_back("heads of a rank",
                         std::to_string(problem.attention.num_heads / problem.dcp.world_size));
      facts.emplace_back("exchange", to_string(problem.dcp.comm));
    }
    if (problem.output_quant.type != OutputQuantType::kNone) {
      facts.emplace_back("output", to_string(problem.output_quant.type));
    }
    return facts;
  }

 private:
  MlaCapability capability_;
  std::string_view description_;
};

}  // namespace

const Backend& mla_backend() {
  static const MlaBackend backend(plain_mla_capability(),
                                  "vLLM TRITON_MLA: latent decode with split keys, any size");
  return backend;
}
const Backend& flashmla_backend() {
  static const MlaBackend backend(flash_mla(),
                                  "FlashMLA: decode by a split plan, fp8 query with fp8 cache");
  return backend;
}
const Backend& flash_attn_mla_backend() {
  static const MlaBackend backend(flash_attn_mla(), "FlashAttention 3 latent decode, varlen");
  return backend;
}
const Backend& flashmla_sparse_backend() {
  static const MlaBackend backend(flash_mla_sparse(),
                                  "FlashMLA sparse: top-k listed keys, bf16 or fp8_ds_mla cache");
  return backend;
}

}  // namespace attnbench
