// Limits and plans of the MLA backends.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>

#include "backends/bare_reasons_testing.h"
#include "backends/mla/plan.h"
#include "backends/mla/reference_pipeline.h"
#include "backends/traffic.h"
#include "core/error.h"
#include "inputs/mla_problem_testing.h"

namespace attnbench {
namespace {

Problem mla_problem() {
  Problem problem = mla_test_problem({4, 512, 128, 64, 128});
  problem.kv_cache.block_size = 64;
  problem.kv_cache.num_blocks = 64;
  problem.batch = {{1, 100}, {1, 200}, {300, 600}, {40, 40}};
  return problem;
}

const MlaCapability& capability(const char* name) {
  return *find_backend(name)->mla_capability(Problem{});
}

std::vector<std::string> refusals(const char* name, const Problem& problem, int sm = 90) {
  return bare_reasons(mla_refusals(capability(name), problem, {sm, 132}));
}

bool contains(const std::vector<std::string>& reasons, const std::string& reason) {
  return std::find(reasons.begin(), reasons.end(), reason) != reasons.end();
}

}  // namespace

TEST_CASE("dense MLA backends take a dense problem and the sparse one refuses it") {
  const Problem problem = mla_problem();
  for (const char* name : {"MLA", "FLASHMLA", "FLASH_ATTN_MLA"})
    CHECK(refusals(name, problem).empty());
  CHECK(refusals("FLASHMLA_SPARSE", problem) ==
        std::vector<std::string>{"non-sparse not supported"});
}

TEST_CASE(
    "an entry size outside the list is refused by all MLA backends but MLA, in both wordings") {
  Problem problem = mla_problem();
  problem.mla.kv_lora_rank = 128;
  CHECK(refusals("MLA", problem).empty());
  const std::vector<std::string> expected{"head_size not supported",
                                          "Head dimension 192 is not supported by MLA."};
  CHECK(refusals("FLASHMLA", problem) == expected);
  CHECK(refusals("FLASH_ATTN_MLA", problem) == expected);
}

TEST_CASE("cache types, block sizes and devices follow the table of MLA backends") {
  Problem problem = mla_problem();
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  CHECK(refusals("MLA", problem).empty());
  CHECK(contains(refusals("FLASH_ATTN_MLA", problem), "kv_cache_dtype not supported"));
  problem.kv_cache.dtype = KvCacheDtype::kAuto;
  problem.kv_cache.block_size = 16;
  CHECK(refusals("MLA", problem).empty());
  CHECK(contains(refusals("FLASHMLA", problem), "block_size not supported"));
  problem.kv_cache.block_size = 64;
  CHECK(contains(refusals("FLASHMLA", problem, 80), "compute capability not supported"));
  CHECK(contains(refusals("FLASH_ATTN_MLA", problem, 100), "compute capability not supported"));
  CHECK(refusals("FLASHMLA", problem, 100).empty());
}

TEST_CASE("scores of decodes are e4m3 where the backend quantises the query") {
  Problem problem = mla_problem();
  CHECK_FALSE(has_fp8_decodes(capability("FLASHMLA"), problem));
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  CHECK(has_fp8_decodes(capability("FLASHMLA"), problem));
  CHECK_FALSE(has_fp8_decodes(capability("MLA"), problem));
  CHECK_FALSE(has_fp8_decodes(capability("FLASHMLA_SPARSE"), problem));
  problem.batch = {{300, 600}, {40, 40}};
  CHECK_FALSE(has_fp8_decodes(capability("FLASHMLA"), problem));
}

TEST_CASE("MLA over ranks takes 16-bit dense caches, one token a decode unless I is 1") {
  Problem problem = mla_problem();
  problem.dcp.world_size = 2;
  for (const char* name : {"MLA", "FLASHMLA", "FLASH_ATTN_MLA"})
    CHECK(refusals(name, problem).empty());
  problem.attention.num_speculative_tokens = 2;
  CHECK(refusals("FLASH_ATTN_MLA", problem).empty());
  problem.dcp.interleave_size = 4;
  CHECK(contains(refusals("FLASH_ATTN_MLA", problem),
                 "MTP with cp_kv_cache_interleave_size > 1 is not supported"));
  problem.attention.num_speculative_tokens = 0;
  problem.batch = {{3, 100}, {300, 600}};
  CHECK(plan_mla(capability("FLASH_ATTN_MLA"), problem).batch.num_decodes == 0);
  problem.dcp.interleave_size = 1;
  CHECK(plan_mla(capability("FLASH_ATTN_MLA"), problem).batch.num_decodes == 2);
  CHECK(plan_mla(capability("FLASHMLA"), problem).batch.num_decodes == 0);
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  CHECK(contains(refusals("MLA", problem), "DCP not support fp8 kvcache now."));
  problem.kv_cache.dtype = KvCacheDtype::kAuto;
  problem.mla.sparse_topk = 128;
  CHECK(contains(refusals("FLASHMLA_SPARSE", problem), "DCP requires LSE from decode"));
}

TEST_CASE("heads that no prefill takes refuse a batch with prefills alone") {
  Problem problem = mla_problem();
  problem.mla.qk_nope_head_dim = 256;
  problem.attention.head_size = 320;
  CHECK(contains(refusals("MLA", problem),
                 "Selected MLA prefill backend FLASH_ATTN_PREFILL is not valid for this "
                 "configuration. Reason: [head_size 320 not supported]"));
  problem.batch = {{1, 100}, {1, 200}};
  CHECK(refusals("MLA", problem).empty());
}

TEST_CASE("REFERENCE computes every MLA case that has a meaning") {
  Problem problem = mla_problem();
  CHECK(mla_reference_refusals(problem).empty());
  problem.mla.sparse_topk = 128;
  problem.kv_cache.dtype = KvCacheDtype::kFp8DsMla;
  problem.output_quant.type = OutputQuantType::kNvfp4;
  CHECK(mla_reference_refusals(problem).empty());
  CHECK(split_mla_batch(mla_reference_capability(problem), problem).num_prefills == 0);
  problem.attention.sinks = SinksKind::kNormal;
  CHECK(mla_reference_refusals(problem).empty());
  problem.mla.sparse_topk.reset();
  problem.kv_cache.dtype = KvCacheDtype::kAuto;
  CHECK(mla_reference_refusals(problem) ==
        std::vector<std::string>{"attention sinks not supported"});
  CHECK(find_backend("REFERENCE")->mla_capability(problem) == nullptr);
  CHECK(find_backend("FLASH_ATTN")->mla_capability(problem) == nullptr);
}

TEST_CASE("sparse MLA takes fp8 as another name of fp8_ds_mla and refuses other fp8 caches") {
  Problem problem = mla_problem();
  problem.mla.sparse_topk = 128;
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  CHECK(refusals("FLASHMLA_SPARSE", problem).empty());
  CHECK(mla_cache_dtype(capability("FLASHMLA_SPARSE"), problem) == KvCacheDtype::kFp8DsMla);
  problem.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
  CHECK(contains(refusals("FLASHMLA_SPARSE", problem),
                 "FlashMLA Sparse Attention backend fp8 only supports fp8_ds_mla kv-cache dtype"));
  CHECK(contains(refusals("MLA", problem), "sparse not supported"));
}

TEST_CASE(
    "CUTLASS_MLA runs on SM 10, with pages of 128 and at most the 128 heads that it pads to") {
  Problem problem = mla_problem();
  problem.kv_cache.block_size = 128;
  CHECK(refusals("CUTLASS_MLA", problem, 100).empty());
  CHECK(refusals("CUTLASS_MLA", problem, 103).empty());
  for (const int sm : {90, 120}) {
    CHECK(refusals("CUTLASS_MLA", problem, sm) ==
          std::vector<std::string>{"compute capability not supported"});
  }
  CHECK(mla_padded_heads(capability("CUTLASS_MLA"), problem) == 128);
  CHECK(mla_padded_heads(capability("MLA"), problem) == 4);
  problem.mla.q_pad_num_heads = 16;
  CHECK(mla_padded_heads(capability("CUTLASS_MLA"), problem) == 16);
  problem.mla.q_pad_num_heads.reset();
  problem.attention.num_heads = 128;
  CHECK(refusals("CUTLASS_MLA", problem, 100).empty());
  problem.attention.num_heads = 136;
  CHECK(refusals("CUTLASS_MLA", problem, 100) ==
        std::vector<std::string>{"H must be <= 128, but got 136"});
  problem = mla_problem();
  CHECK(refusals("CUTLASS_MLA", problem, 100) ==
        std::vector<std::string>{"block_size not supported"});
  problem.kv_cache.block_size = 128;
  problem.kv_cache.dtype = KvCacheDtype::kFp8E4M3;
  CHECK(refusals("CUTLASS_MLA", problem, 100).empty());
  CHECK(plan_mla(capability("CUTLASS_MLA"), problem).quantised_query);
  // One query token a decode.
  problem.batch = {{2, 100}, {300, 600}};
  CHECK(plan_mla(capability("CUTLASS_MLA"), problem).batch.num_decodes == 0);
}

TEST_CASE("FLASHINFER_MLA_SPARSE keeps plain fp8 entries, with a query of their type, on SM 10") {
  const char* const name = "FLASHINFER_MLA_SPARSE";
  Problem problem = mla_problem();
  problem.kv_cache.block_size = 32;
  CHECK(refusals(name, problem, 100) == std::vector<std::string>{"non-sparse not supported"});
  problem.mla.sparse_topk = 128;
  CHECK(refusals(name, problem, 100).empty());
  CHECK(refusals(name, problem) == std::vector<std::string>{"compute capability not supported"});
  CHECK_FALSE(plan_mla(capability(name), problem).quantised_query);
  for (const KvCacheDtype dtype : {KvCacheDtype::kFp8, KvCacheDtype::kFp8E4M3}) {
    problem.kv_cache.dtype = dtype;
    CHECK(refusals(name, problem, 100).empty());
    CHECK(mla_cache_dtype(capability(name), problem) == dtype);
    CHECK(plan_mla(capability(name), problem).quantised_query);
  }
  problem.kv_cache.dtype = KvCacheDtype::kFp8DsMla;
  CHECK(refusals(name, problem, 100) == std::vector<std::string>{"kv_cache_dtype not supported"});
  problem.kv_cache.dtype = KvCacheDtype::kAuto;
  problem.mla.qk_nope_head_dim = 64;
  CHECK(refusals(name, problem, 100) ==
        std::vector<std::string>{"FlashInfer MLA Sparse kernel requires qk_nope_head_dim in [128, "
                                 "192], but got 64"});
  problem = mla_problem();
  problem.mla.sparse_topk = 128;
  problem.kv_cache.block_size = 48;
  CHECK(refusals(name, problem, 100) == std::vector<std::string>{"block_size not supported"});
  problem.kv_cache.block_size = 64;
  problem.dcp.world_size = 2;
  CHECK(refusals(name, problem, 100) == std::vector<std::string>{"DCP requires LSE from decode"});
}

TEST_CASE("the prefills of SM 10 run there, and no dense backend takes them elsewhere") {
  Problem problem = mla_problem();
  for (const char* prefill : {"TRTLLM_RAGGED", "FLASHINFER"}) {
    problem.mla.prefill_backend = prefill;
    const std::string reason = fmt::format(
        "Selected MLA prefill backend {} is not valid for this configuration. Reason: "
        "[compute capability 9.0 not supported]",
        prefill);
    CHECK(refusals("MLA", problem, 100).empty());
    CHECK(refusals("MLA", problem) == std::vector<std::string>{reason});
  }
  // Upstream chooses it when it starts, not when a prefill comes.
  problem.batch = {{1, 100}};
  CHECK(refusals("FLASHMLA", problem).size() == 1);
  problem.mla.sparse_topk = 128;
  CHECK(refusals("FLASHMLA_SPARSE", problem).empty());
}

TEST_CASE("prefills are in e4m3 where the cache, the setting and their backend are for it") {
  Problem problem = mla_problem();
  problem.mla.use_prefill_query_quantization = true;
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  CHECK_FALSE(plan_mla(capability("MLA"), problem).fp8_prefill);
  problem.mla.prefill_backend = "TRTLLM_RAGGED";
  CHECK(plan_mla(capability("MLA"), problem).fp8_prefill);
  problem.kv_cache.dtype = KvCacheDtype::kAuto;
  CHECK_FALSE(plan_mla(capability("MLA"), problem).fp8_prefill);
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  problem.mla.use_prefill_query_quantization = false;
  CHECK_FALSE(plan_mla(capability("MLA"), problem).fp8_prefill);
}

TEST_CASE("values are padded by themselves where FlashAttention takes no narrow ones") {
  Problem problem = mla_problem();
  const auto pads = [&](int sm) { return plan_mla(capability("MLA"), problem, 132, sm).pad_v; };
  CHECK_FALSE(pads(90));
  CHECK(pads(80));
  CHECK(pads(100));
  problem.mla.prefill_backend = "FLASHINFER";
  CHECK_FALSE(pads(100));
  problem.mla.v_pad = Switch::kOn;
  CHECK(pads(90));
  CHECK(pads(100));
  problem.mla.prefill_backend = "FLASH_ATTN_PREFILL";
  problem.mla.v_pad = Switch::kOff;
  CHECK_FALSE(pads(80));
}

TEST_CASE("windows, sinks and other types are refused in the order of the table") {
  Problem problem = mla_problem();
  problem.attention.sinks = SinksKind::kNormal;
  problem.attention.sliding_window = 16;
  CHECK(
      refusals("MLA", problem) ==
      std::vector<std::string>{"attention sinks not supported",
                               "FlashMLAImpl does not support one of the following: alibi_slopes, "
                               "sliding_window, logits_soft_cap"});
  problem = mla_problem();
  problem.attention.type = AttentionType::kDecoder;
  CHECK(refusals("MLA", problem) == std::vector<std::string>{"non-MLA not supported"});
}

TEST_CASE("the longest query of a decode depends on the backend") {
  const Problem problem = mla_problem();
  CHECK(plan_mla(capability("MLA"), problem).batch.num_decodes == 2);
  // FLASHMLA wants decodes of one length; FLASH_ATTN_MLA takes queries of up to 512 tokens.
  CHECK(plan_mla(capability("FLASHMLA"), problem).batch.num_decodes == 2);
  CHECK(plan_mla(capability("FLASH_ATTN_MLA"), problem).batch.num_decodes == 4);
  CHECK(plan_mla(capability("FLASHMLA_SPARSE"), problem).batch.num_decode_tokens == 342);
}

TEST_CASE("FLASHMLA quantises its query for an fp8 cache only, and MLA never") {
  Problem problem = mla_problem();
  CHECK_FALSE(plan_mla(capability("FLASHMLA"), problem).quantised_query);
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  CHECK(plan_mla(capability("FLASHMLA"), problem).quantised_query);
  CHECK_FALSE(plan_mla(capability("MLA"), problem).quantised_query);
}

TEST_CASE("P in e4m3 is for decodes with an e4m3 query") {
  const std::vector<std::string> refused{"e4m3 P without fp8 query, key and value"};
  Problem problem = mla_problem();
  problem.attention.probability_dtype = ProbabilityDtype::kFp8E4M3;
  problem.batch = {{2, 100}, {2, 300}};
  CHECK(refusals("FLASHMLA", problem) == refused);
  problem.kv_cache.dtype = KvCacheDtype::kFp8;
  CHECK(refusals("FLASHMLA", problem).empty());
  CHECK(find_backend("FLASHMLA")->probability_dtype(problem) == Dtype::kE4M3);
  CHECK(refusals("MLA", problem) == refused);
  problem.batch.push_back({300, 600});
  CHECK(refusals("FLASHMLA", problem) == refused);
  problem.mla.sparse_topk = 128;
  problem.kv_cache.block_size = 32;
  CHECK(refusals("FLASHINFER_MLA_SPARSE", problem, 100) == refused);
}

TEST_CASE("a prefill with context behind one without is refused where it is a prefill") {
  Problem problem = mla_problem();
  problem.batch = {{1, 100}, {200, 200}, {300, 600}};
  CHECK_FALSE(refusals("MLA", problem).empty());
  CHECK(refusals("FLASH_ATTN_MLA", problem).empty());
}

TEST_CASE("work counts latents for decodes and expanded heads for prefills") {
  Problem problem = mla_problem();
  problem.batch = {{1, 100}, {300, 600}};
  const double decode_pairs = 100;
  const double prefill_pairs = 300.0 * 300 + 300.0 * 301 / 2;
  CHECK(attention_flops(problem, *find_backend("MLA")) ==
        doctest::Approx(2 * 4 * (decode_pairs * (2 * 512 + 64) + prefill_pairs * (192 + 128))));
  const double entries = 100.0 * 576 * 2;
  const double expanded = 600.0 * 4 * (192 + 128) * 2;
  const double rows = 4 * (576 + 512) * 2 + 300.0 * 4 * (192 + 128) * 2;
  CHECK(attention_traffic(problem, *find_backend("MLA")).unique_bytes ==
        doctest::Approx(entries + expanded + rows));
}

TEST_CASE("a captured graph of MLA has no prefills by the backend's split") {
  Problem problem = mla_problem();
  problem.timing.mode = TimingMode::kGraph;
  problem.batch = {{1, 300}, {1, 40}};
  for (const char* name : {"MLA", "FLASHMLA", "FLASH_ATTN_MLA"}) {
    CHECK(refusals(name, problem).empty());
  }
  problem.batch = {{4, 300}, {4, 40}};
  CHECK(refusals("MLA", problem) ==
        std::vector<std::string>{"MLA graph: expected max_query_len <= 1, got 4"});
  CHECK(refusals("FLASHMLA", problem).empty());
  problem.batch = {{4, 300}, {3, 40}};
  CHECK(refusals("FLASHMLA", problem) ==
        std::vector<std::string>{"MLA graph: expected decodes only, got 1 prefills"});
  CHECK(refusals("FLASH_ATTN_MLA", problem).empty());
}

TEST_CASE("splits by number are of the backends that split by one") {
  Problem problem = mla_problem();
  problem.attention.num_splits = 3;
  problem.batch = {{1, 300}, {1, 40}};
  CHECK(plan_mla(capability("MLA"), problem).num_parts == 3);
  CHECK(refusals("FLASH_ATTN_MLA", problem).empty());
  CHECK(refusals("FLASHMLA", problem) == std::vector<std::string>{"num_splits not supported"});
  problem.batch = {{40, 40}};
  CHECK(refusals("MLA", problem) == std::vector<std::string>{"num_splits 3 without decodes"});
}

}  // namespace attnbench
