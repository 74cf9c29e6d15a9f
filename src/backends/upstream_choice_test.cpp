#include "backends/upstream_choice.h"

#include <doctest/doctest.h>

namespace attnbench {
namespace {

using Names = std::vector<std::string>;

Problem decoder() {
  Problem p;
  p.attention.num_heads = 32;
  p.attention.num_kv_heads = 8;
  p.attention.head_size = p.attention.v_head_size = 128;
  p.batch = {{1, 70}};
  return p;
}

Problem mla() {
  Problem p = decoder();
  p.attention.type = AttentionType::kMla;
  p.attention.num_heads = 128;
  p.attention.num_kv_heads = 1;
  p.attention.head_size = 192;
  p.kv_cache.block_size = 64;
  return p;
}

std::string chosen(const Problem& problem, int sm) {
  const auto all = upstream_candidates(problem, DeviceFacts{sm, 132});
  const std::size_t choice = upstream_choice(all);
  return choice == all.size() ? "none" : all[choice].name;
}

Names reasons(const Problem& problem, int sm, const std::string& name) {
  for (const UpstreamCandidate& candidate : upstream_candidates(problem, DeviceFacts{sm, 132})) {
    if (candidate.name == name) return candidate.reasons;
  }
  return {"not considered"};
}

Names names(const Problem& problem, int sm) {
  Names all;
  for (const UpstreamCandidate& candidate : upstream_candidates(problem, DeviceFacts{sm, 132})) {
    all.push_back(candidate.name);
  }
  return all;
}

Names afterthoughts(const Problem& problem, int sm) {
  const DeviceFacts device{sm, 132};
  return upstream_afterthoughts(problem, device, upstream_candidates(problem, device));
}

TEST_CASE("the priorities depend on the generation of the device") {
  CHECK(chosen(decoder(), 90) == "FLASH_ATTN");
  CHECK(chosen(decoder(), 100) == "FLASHINFER");
  CHECK(chosen(decoder(), 75) == "FLASHINFER");
  CHECK(chosen(mla(), 90) == "FLASH_ATTN_MLA");
  CHECK(chosen(mla(), 100) == "FLASHINFER_MLA");
  CHECK(chosen(mla(), 80) == "TRITON_MLA");
  CHECK(names(decoder(), 90) ==
        Names{"FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT"});
  CHECK(names(decoder(), 100) ==
        Names{"FLASHINFER", "FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT"});
  CHECK(names(mla(), 90) ==
        Names{"FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "TRITON_MLA", "FLASHMLA_SPARSE"});
  CHECK(names(mla(), 100) == Names{"FLASHINFER_MLA", "TOKENSPEED_MLA", "CUTLASS_MLA",
                                   "FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA", "FLASHMLA_SPARSE",
                                   "FLASHINFER_MLA_SPARSE"});
}

TEST_CASE("the first without a reason is taken, and every reason is told in order") {
  Problem sinks = decoder();
  sinks.attention.sinks = SinksKind::kNormal;
  CHECK(chosen(sinks, 90) == "FLASH_ATTN");
  CHECK(chosen(sinks, 80) == "TRITON_ATTN");
  CHECK(reasons(sinks, 80, "FLASH_ATTN") ==
        Names{"attention sinks not supported", "sink not supported on compute capability < 9.0"});
  // FlashAttention 4 knows sinks too, unless results must not depend on the batch.
  CHECK(reasons(sinks, 100, "FLASH_ATTN").empty());
  sinks.attention.batch_invariant = true;
  CHECK(reasons(sinks, 100, "FLASH_ATTN") == Names{"attention sinks not supported"});
  CHECK(reasons(sinks, 100, "FLASHINFER") ==
        Names{"attention sinks not supported", "batch invariance not supported"});
  CHECK(reasons(sinks, 90, "FLASH_ATTN").empty());
  Problem wide = decoder();
  wide.attention.dtype = Dtype::kF32;
  wide.attention.head_size = 80;
  CHECK(chosen(wide, 90) == "TRITON_ATTN");
  CHECK(reasons(wide, 90, "FLASHINFER") == Names{"head_size not supported", "dtype not supported"});
  Problem by_token = decoder();
  by_token.kv_cache.dtype = KvCacheDtype::kInt8PerTokenHead;
  CHECK(chosen(by_token, 90) == "TRITON_ATTN");
  CHECK(reasons(by_token, 90, "FLEX_ATTENTION") == Names{"kv_cache_dtype not supported"});
  Problem loose = decoder();
  loose.attention.causal = false;
  loose.attention.batch_invariant = true;
  CHECK(reasons(loose, 90, "FLEX_ATTENTION").empty());
  CHECK(reasons(loose, 90, "TRITON_ATTN") == Names{"non-causal attention not supported"});
  Problem large = decoder();
  large.attention.head_size = large.attention.v_head_size = 512;
  CHECK(reasons(large, 80, "FLASH_ATTN") == Names{"head_size not supported"});
  CHECK(reasons(large, 90, "FLASH_ATTN").empty());
  CHECK(reasons(large, 90, "FLASHINFER").empty());
  Problem slots = decoder();
  slots.kv_cache.dtype = KvCacheDtype::kTurboK3V4;
  CHECK(chosen(slots, 90) == "TURBOQUANT");
  CHECK(chosen(slots, 100) == "TURBOQUANT");
  CHECK(reasons(decoder(), 90, "TURBOQUANT") == Names{"kv_cache_dtype not supported"});
}

TEST_CASE("MLA goes by the size of an entry, pages and cache type") {
  Problem fp8 = mla();
  fp8.kv_cache.dtype = KvCacheDtype::kFp8;
  CHECK(chosen(fp8, 90) == "FLASHMLA");
  fp8.kv_cache.block_size = 16;
  CHECK(chosen(fp8, 90) == "TRITON_MLA");
  CHECK(reasons(fp8, 90, "FLASHMLA") == Names{"block_size not supported"});
  CHECK(afterthoughts(fp8, 90) ==
        Names{"only block_size 16 rules out FLASHMLA, which vLLM tries earlier"});
  fp8.kv_cache.block_size = 64;
  CHECK(afterthoughts(fp8, 90).empty());
  CHECK(reasons(fp8, 100, "TOKENSPEED_MLA").empty());
  fp8.mla.v_head_dim = 64;
  CHECK(reasons(fp8, 100, "TOKENSPEED_MLA") ==
        Names{"tokenspeed_mla requires DeepSeek R1 MLA dimensions (qk_nope_head_dim=128, "
              "qk_rope_head_dim=64, v_head_dim=128), got (128, 64, 64)"});
  fp8.mla.qk_nope_head_dim = 96;
  CHECK(reasons(fp8, 100, "FLASHINFER_MLA") ==
        Names{"FlashInfer MLA kernel requires qk_nope_head_dim in [64, 128, 192], but got 96"});
  CHECK(reasons(fp8, 100, "FLASHMLA") ==
        Names{"FlashMLA Dense is only supported on Hopper devices."});
  Problem narrow = mla();
  narrow.mla.kv_lora_rank = 128;
  CHECK(chosen(narrow, 90) == "TRITON_MLA");
  CHECK(reasons(narrow, 90, "FLASH_ATTN_MLA") == Names{"head_size not supported"});
  Problem sparse = mla();
  sparse.mla.sparse_topk = 2048;
  CHECK(chosen(sparse, 90) == "FLASHMLA_SPARSE");
  CHECK(reasons(sparse, 90, "FLASH_ATTN_MLA") == Names{"sparse not supported"});
  CHECK(chosen(sparse, 100) == "FLASHMLA_SPARSE");
  sparse.attention.num_heads = 16;
  CHECK(chosen(sparse, 100) == "FLASHINFER_MLA_SPARSE");
  sparse.mla.qk_nope_head_dim = 64;
  CHECK(reasons(sparse, 100, "FLASHINFER_MLA_SPARSE") ==
        Names{"FlashInfer MLA Sparse kernel requires qk_nope_head_dim in [128, 192], but got 64"});
  sparse.mla.kv_lora_rank = 256;
  CHECK(chosen(sparse, 100) == "none");
}

TEST_CASE("an encoder's choice asks for heads, dtype and capability, and fp8 shows afterwards") {
  Problem encoder = decoder();
  encoder.attention.type = AttentionType::kMmEncoder;
  encoder.attention.head_size = 72;
  CHECK(chosen(encoder, 90) == "FLASH_ATTN");
  CHECK(chosen(encoder, 75) == "TORCH_SDPA");
  CHECK(names(encoder, 75) == Names{"FLASH_ATTN", "TORCH_SDPA", "TRITON_ATTN", "FLASHINFER"});
  CHECK(names(encoder, 90) == Names{"FLASH_ATTN", "TRITON_ATTN", "TORCH_SDPA", "FLASHINFER"});
  encoder.attention.head_size = 30;
  CHECK(chosen(encoder, 90) == "TORCH_SDPA");
  encoder.mm_encoder.attn_dtype = MmAttnDtype::kFp8;
  CHECK(afterthoughts(encoder, 90) ==
        Names{"mm_encoder_attn_dtype='fp8' requires the FLASHINFER backend, got TORCH_SDPA"});
}

TEST_CASE("what is refused after the choice follows it") {
  Problem ranks = decoder();
  ranks.attention.alibi = AlibiKind::kSqrt;
  ranks.dcp.world_size = 2;
  CHECK(afterthoughts(ranks, 90) ==
        Names{"use_alibi_sqrt is not supported by backend FLASH_ATTN."});
  ranks.attention.dtype = Dtype::kF32;
  ranks.dcp.interleave_size = 4;
  ranks.attention.num_speculative_tokens = 1;
  CHECK(afterthoughts(ranks, 90) ==
        Names{"MTP with cp_kv_cache_interleave_size > 1 is not supported in TritonAttentionImpl.",
              "Decode Context Parallelism (DCP) requires attention implementations to return the "
              "softmax LSE during decode, but TritonAttentionImpl does not."});
}

TEST_CASE("a name is refused in the words for the problem, and only where upstream does") {
  const auto said = [](std::string_view name, const Problem& problem, int sm) {
    return upstream_refusal(name, problem, DeviceFacts{sm, 132});
  };
  CHECK(said("FLASHINFER", decoder(), 90) == "");
  CHECK(
      said("FLASHINFER_MLA", decoder(), 90) ==
      "Selected backend AttentionBackendEnum.FLASHINFER_MLA is not valid for this "
      "configuration. Reason: ['head_size not supported', 'block_size not supported', 'non-MLA not "
      "supported', 'compute capability not supported']");
  CHECK(said("ROCM_ATTN", decoder(), 90) == "");
  CHECK(said("ROCM_ATTN", mla(), 90) ==
        "Selected backend AttentionBackendEnum.ROCM_ATTN is not valid for this configuration. "
        "Reason: ['head_size not supported', 'MLA not supported']");
  CHECK(said("HPC_ATTN", decoder(), 90) == "");
}

TEST_CASE("names that this program serves under another one say so") {
  for (const UpstreamCandidate& candidate : upstream_candidates(mla(), DeviceFacts{80, 108})) {
    if (candidate.name == "TRITON_MLA") CHECK(find_backend(candidate.here) != nullptr);
  }
  Problem op = decoder();
  op.attention.type = AttentionType::kOp;
  CHECK(upstream_candidates(op, {}).empty());
}

}  // namespace
}  // namespace attnbench
