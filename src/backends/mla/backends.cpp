// The MLA backends: MLA (vLLM's TRITON_MLA), FLASHMLA, FLASH_ATTN_MLA, FLASHMLA_SPARSE, CUTLASS_MLA
// and FLASHINFER_MLA_SPARSE. Each is its limits as a MlaCapability; MlaBackend is the same class
// for all. None of them has rules of its own for masks or rounding, so none states KernelRules.
#include <fmt/format.h>

#include <utility>

#include "backends/attention/capability.h"
#include "backends/backend_list.h"
#include "backends/mla/pipeline.h"
#include "backends/mla/plan.h"
#include "backends/ranks/exchange.h"
#include "metadata/parts/decode_plan.h"

namespace attnbench {
namespace {

using enum KvCacheDtype;

constexpr int kBlackwell = 100;  // SM 10.0

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
  c.kv_dtypes = {kAuto, kBFloat16, kFp8DsMla, kFp8, kFp8Model1Mla};
  c.entry_sizes = {576, 512};
  c.sparse = true;
  c.fp8_query = false;
  c.max_heads = 128;
  c.too_many_heads = "sparse MLA with {} heads, more than 128";
  c.head_tile = 64;
  c.sparse_operands = true;
  c.builder = MetadataBuilder::kFlashMlaSparse;
  return c;
}

/// CUTLASS on Blackwell: one query token a decode, always 128 heads, pages of 128, and a query of
/// the cache's type.
MlaCapability cutlass_mla() {
  MlaCapability c = plain_mla_capability();
  c.name = "CUTLASS_MLA";
  c.entry_sizes = {320, 576};
  c.block_sizes = {{128, false}};
  c.min_sm = kBlackwell;
  c.max_sm = kBlackwell + 9;
  c.fp8_query = true;
  c.max_heads = c.q_pad_num_heads = 128;
  c.too_many_heads = "H must be <= 128, but got {}";
  return c;
}

/// FlashInfer's TensorRT-LLM kernel over listed keys, on Blackwell: an fp8 cache has one scale, and
/// a query of its type.
MlaCapability flashinfer_mla_sparse() {
  MlaCapability c = plain_mla_capability();
  c.name = "FLASHINFER_MLA_SPARSE";
  c.entry_sizes = {576};
  c.block_sizes = {{32, false}, {64, false}};
  c.min_sm = kBlackwell;
  c.max_sm = kBlackwell + 9;
  c.sparse = true;
  c.fp8_query = true;
  c.nope_head_dims = {128, 192};
  c.builder = MetadataBuilder::kFlashMlaSparse;
  return c;
}

/// Keys of what a plan deals out: those of the decodes, or their lists, which it takes as full.
std::vector<std::int32_t> planned_lens(const Problem& problem, const MlaPlan& plan) {
  if (problem.mla.sparse_topk) {
    return std::vector<std::int32_t>(static_cast<std::size_t>(plan.sparse_batch.num_decodes),
                                     *problem.mla.sparse_topk);
  }
  std::vector<std::int32_t> lens = seq_lens_of(problem);
  lens.resize(static_cast<std::size_t>(plan.batch.num_decodes));
  return lens;
}

/// Whether the plan of the decodes splits requests, and how many.
std::string describe_decode_plan(std::vector<std::int32_t> lens, const MlaPlan& plan) {
  const DecodePlan decodes = plan_dense_decode(lens, plan.num_parts);
  int num_split = 0;
  for (std::size_t b = 0; b < lens.size(); ++b) {
    num_split += decodes.num_splits[b + 1] - decodes.num_splits[b] > 1 ? 1 : 0;
  }
  if (num_split == 0) return "whole requests";
  return fmt::format("{} of {} requests split, {} partial results", num_split, lens.size(),
                     decodes.num_splits.back() - static_cast<int>(lens.size()) + num_split);
}

/// Upstream says it in its log where a quantised query was asked for and there is none (§8.6).
std::string describe_prefill_query(const Problem& problem, const MlaPlan& plan) {
  if (plan.fp8_prefill) return "fp8_e4m3";
  if (!problem.mla.use_prefill_query_quantization)
    return std::string(dtype_name(problem.attention.dtype));
  return fmt::format("{}; fp8 needs an fp8 cache and FLASHINFER or TRTLLM_RAGGED",
                     dtype_name(problem.attention.dtype));
}

std::string describe_weights(const Problem& problem) {
  const std::optional<int>& block = problem.mla.kv_b_proj_block;
  const std::string scales = block ? fmt::format("a scale for {0} x {0}", *block) : "one scale";
  return fmt::format("fp8_e4m3, {}, dequantised to {}", scales,
                     dtype_name(problem.attention.dtype));
}

void add_prefill_facts(const Problem& problem, const MlaPlan& plan, Facts& facts) {
  facts.emplace_back("prefill backend", problem.mla.prefill_backend);
  facts.emplace_back("prefill query", describe_prefill_query(problem, plan));
  facts.emplace_back("prefill values", plan.pad_v ? "padded to the width of keys" : "as wide as V");
}

/// What there is beside the lists (§8.9).
void add_list_facts(const Problem& problem, Facts& facts) {
  const MlaSpec& mla = problem.mla;
  const auto words = [](const std::vector<int>& lengths) {
    return lengths.size() == 1 ? fmt::format("{} of every list", lengths.front())
                               : fmt::format("{} by request", fmt::join(lengths, ", "));
  };
  if (!mla.sparse_topk_length.empty()) {
    facts.emplace_back("list lengths", words(mla.sparse_topk_length));
  }
  if (mla.sparse_extra_topk) {
    facts.emplace_back(
        "second cache",
        fmt::format("{} keys a request in pages of {}, {} listed; a pass of its own, merged",
                    mla.sparse_extra_keys.value_or(0),
                    mla.sparse_extra_block_size.value_or(problem.kv_cache.block_size),
                    *mla.sparse_extra_topk));
    if (!mla.sparse_extra_topk_length.empty()) {
      facts.emplace_back("second list lengths", words(mla.sparse_extra_topk_length));
    }
  }
  if (problem.attention.sinks != SinksKind::kNone) {
    facts.emplace_back("sinks", "behind the attention, not in the LSE");
  }
}

class MlaBackend : public Backend {
 public:
  MlaBackend(MlaCapability capability, std::string_view description)
      : capability_(std::move(capability)), description_(description) {}
  std::string_view name() const override { return capability_.name; }
  std::string_view description() const override { return description_; }
  KernelRules kernel_rules() const override { return {}; }
  std::vector<BlockSizeRule> block_sizes() const override { return capability_.block_sizes; }
  bool states_rules() const override { return false; }
  bool is_default_for(AttentionType type) const override { return type == AttentionType::kMla; }
  std::vector<std::string> refusals(const Problem& problem,
                                    const DeviceFacts& device) const override {
    return mla_refusals(capability_, problem, device);
  }
  const MlaCapability* mla_capability(const Problem&) const override { return &capability_; }
  std::optional<CacheLayoutKind> cache_layout() const override { return std::nullopt; }
  Dtype probability_dtype(const Problem& problem) const override {
    return probability_dtype_of(problem);
  }
  std::unique_ptr<Pipeline> prepare(const Problem& problem, const BackendInputs& inputs,
                                    Ops& ops) const override {
    return make_mla_pipeline(capability_, problem, inputs, ops);
  }
  Facts explain(const Problem& problem, const DeviceFacts& device) const override {
    const MlaPlan plan = plan_mla(capability_, problem, device.num_sms, device.sm);
    Facts facts;
    add_batch_facts(plan.batch, facts);
    facts.emplace_back("decode form", capability_.sparse ? "latent, listed keys" : "latent");
    facts.emplace_back("decode parts", std::to_string(plan.num_parts));
    facts.emplace_back("decode query", plan.quantised_query ? "fp8_e4m3" : "as given");
    const bool is_planned = capability_.split == MlaDecodeSplit::kPlan || capability_.sparse;
    if (is_planned && plan.num_parts > 1 && problem.dcp.world_size == 1) {
      facts.emplace_back("decode plan", describe_decode_plan(planned_lens(problem, plan), plan));
    }
    if (plan.batch.num_prefills > 0) add_prefill_facts(problem, plan, facts);
    if (plan.chunks) {
      facts.emplace_back("context chunks", std::to_string(plan.chunks->chunks.size()));
      facts.emplace_back("max_context_chunk", std::to_string(plan.chunks->max_context_chunk));
    }
    facts.emplace_back("workspace tokens", std::to_string(plan.workspace_tokens));
    if (problem.mla.kv_b_proj == WeightFormat::kFp8) {
      facts.emplace_back("kv_b_proj", describe_weights(problem));
    }
    if (const int heads = mla_padded_heads(capability_, problem);
        heads > problem.attention.num_heads) {
      facts.emplace_back("padded heads", std::to_string(heads));
    }
    if (capability_.sparse) add_list_facts(problem, facts);
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
const Backend& cutlass_mla_backend() {
  static const MlaBackend backend(cutlass_mla(),
                                  "CUTLASS MLA of SM 10: decode padded to 128 heads, pages of 128");
  return backend;
}
const Backend& flashinfer_mla_sparse_backend() {
  static const MlaBackend backend(
      flashinfer_mla_sparse(),
      "FlashInfer sparse MLA of SM 10: top-k listed keys, 16-bit or fp8 cache and query");
  return backend;
}

}  // namespace attnbench
