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

TEST_CASE("the priorities depend on the generation of the device") {
  CHECK(chosen(decoder(), 90) == "FLASH_ATTN");
  CHECK(chosen(decoder(), 100) == "FLASHINFER");
  CHECK(chosen(decoder(), 75) == "FLASHINFER");
  CHECK(chosen(mla(), 90) == "FLASH_ATTN_MLA");
  CHECK(chosen(mla(), 100) == "FLASHINFER_MLA");
  CHECK(chosen(mla(), 80) == "TRITON_MLA");
}

TEST_CASE("the first without a reason is taken, and every reason is told in order") {
  Problem sinks = decoder();
  sinks.attention.sinks = SinksKind::kNormal;
  CHECK(chosen(sinks, 90) == "FLASH_ATTN");
  CHECK(chosen(sinks, 80) == "TRITON_ATTN");
  CHECK(reasons(sinks, 80, "FLASH_ATTN") ==
        Names{"attention sinks not supported", "sink not supported on compute capability < 9.0"});
  Problem wide = decoder();
  wide.attention.dtype = Dtype::kF32;
  wide.attention.head_size = 80;
  CHECK(chosen(wide, 90) == "TRITON_ATTN");
  CHECK(reasons(wide, 90, "FLASHINFER") == Names{"head_size not supported", "dtype not supported"});
  Problem by_token = decoder();
  by_token.kv_cache.dtype = KvCacheDtype::kInt8PerTokenHead;
  CHECK(chosen(by_token, 90) == "TRITON_ATTN");
  CHECK(reasons(by_token, 90, "FLEX_ATTENTION") == Names{"kv_cache_dtype not supported"});
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
  Problem sparse = mla();
  sparse.mla.sparse_topk = 2048;
  CHECK(chosen(sparse, 90) == "FLASHMLA_SPARSE");
  CHECK(reasons(sparse, 90, "FLASH_ATTN_MLA") == Names{"sparse not supported"});
  CHECK(chosen(sparse, 100) == "FLASHMLA_SPARSE");
  sparse.attention.num_heads = 16;
  CHECK(chosen(sparse, 100) == "FLASHINFER_MLA_SPARSE");
  sparse.mla.kv_lora_rank = 256;
  CHECK(chosen(sparse, 100) == "none");
}

TEST_CASE("an encoder's choice asks for heads, dtype and capability, and fp8 shows afterwards") {
  Problem encoder = decoder();
  encoder.attention.type = AttentionType::kMmEncoder;
  encoder.attention.head_size = 72;
  CHECK(chosen(encoder, 90) == "FLASH_ATTN");
  CHECK(chosen(encoder, 75) == "TRITON_ATTN");
  encoder.attention.head_size = 30;
  CHECK(chosen(encoder, 90) == "TORCH_SDPA");
  encoder.mm_encoder.attn_dtype = MmAttnDtype::kFp8;
  const auto all = upstream_candidates(encoder, DeviceFacts{90, 132});
  CHECK(upstream_afterthought(encoder, all[upstream_choice(all)]) ==
        "mm_encoder_attn_dtype='fp8' requires the FLASHINFER backend, got TORCH_SDPA");
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
