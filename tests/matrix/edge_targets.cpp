#include "edge_targets.h"

#include <fmt/format.h>

#include <algorithm>

namespace attnbench::matrix {
namespace {

std::string base_text(Family family) {
  switch (family) {
    case Family::kMla:
      return "name: edge\n"
             "attention: {type: mla, num_heads: 2}\n"
             "mla: {kv_lora_rank: 256, qk_rope_head_dim: 64, qk_nope_head_dim: 16, v_head_dim: "
             "16}\n"
             "kv_cache: {block_size: 64}\n";
    case Family::kEncoder:
      return "name: edge\n"
             "attention: {type: encoder, num_heads: 4, num_kv_heads: 2, head_size: 32}\n";
    case Family::kCross:
      return "name: edge\n"
             "attention: {type: encoder_decoder, num_heads: 4, num_kv_heads: 2, head_size: 32}\n";
    case Family::kMm:
      return "name: edge\n"
             "attention: {type: mm_encoder, num_heads: 4, num_kv_heads: 2, head_size: 32}\n";
    case Family::kPaged:
      break;
  }
  return "name: edge\nattention: {num_heads: 4, num_kv_heads: 2, head_size: 32}\n";
}

Target paged(std::string name, std::string backend, std::vector<Setting> settings = {}) {
  return {.name = std::move(name), .backend = std::move(backend), .settings = std::move(settings)};
}

Target of_family(Family family, std::string name, std::string backend,
                 std::vector<Setting> settings = {}) {
  Target target = paged(std::move(name), std::move(backend), std::move(settings));
  target.family = family;
  return target;
}

Target cascade(std::string name, std::string backend) {
  Target target = paged(std::move(name), std::move(backend),
                        {{"cascade.mode", "always"}, {"cascade.common_prefix_len", "32"}});
  target.cascade = true;
  return target;
}

Target dcp(Target target, const std::string& world_size, const std::string& interleave,
           const std::string& comm) {
  target.settings.insert(
      target.settings.end(),
      {{"dcp.world_size", world_size}, {"dcp.interleave_size", interleave}, {"dcp.comm", comm}});
  target.dcp = true;
  return target;
}

Target int8(int level) {
  Target target = paged(fmt::format("FLASH_ATTN_IX level {}", level), "FLASH_ATTN_IX",
                        {{"kv_cache.int8_level", std::to_string(level)}});
  target.int8_level = level;
  return target;
}

Target sparse(std::string name, const std::string& cache_dtype, bool ds_mla) {
  Target target = of_family(Family::kMla, std::move(name), "FLASHMLA_SPARSE",
                            {{"mla.kv_lora_rank", "512"},
                             {"mla.sparse_topk", "128"},
                             {"mla.sparse.valid", "0.4"},
                             {"mla.sparse.duplicates", "0.2"},
                             {"kv_cache.dtype", cache_dtype}});
  target.sparse = true;
  target.ds_mla = ds_mla;
  return target;
}

/// Decodes whose keys are dealt to several workers; most splits of the short ones are empty.
Target split(Target target, std::int64_t keys) {
  target.name += " split";
  target.decode_only = true;
  target.long_request = keys;
  return target;
}

constexpr std::int64_t kSplitKeys = 800;

void add_split(std::vector<Target>& all) {
  all.push_back(split(paged("FLASH_ATTN", "FLASH_ATTN"), kSplitKeys));
  all.push_back(split(paged("FLASH_ATTN_IX", "FLASH_ATTN_IX"), kSplitKeys));
  all.push_back(split(int8(1), kSplitKeys));
  all.push_back(
      split(dcp(paged("FLASH_ATTN DCP", "FLASH_ATTN"), "2", "1", "ag_rs"), 2 * kSplitKeys));
}

void add_paged(std::vector<Target>& all) {
  all.push_back(paged("FLASH_ATTN", "FLASH_ATTN"));
  all.push_back(paged("FLASH_ATTN HND", "FLASH_ATTN", {{"kv_cache.layout", "HND"}}));
  all.push_back(paged("FLASH_ATTN fp8", "FLASH_ATTN",
                      {{"kv_cache.dtype", "fp8"},
                       {"kv_cache.k_scale", "0.02"},
                       {"kv_cache.v_scale", "0.03"},
                       {"kv_cache.q_scale", "0.025"}}));
  all.push_back(paged("FLASH_ATTN_IX", "FLASH_ATTN_IX"));
  all.push_back(int8(1));
  all.push_back(int8(2));
  all.push_back(paged("TRITON_ATTN 2d", "TRITON_ATTN", {{"triton.path", "2d"}}));
  Target segments = paged("TRITON_ATTN 3d", "TRITON_ATTN", {{"triton.path", "3d"}});
  segments.decode_only = true;
  all.push_back(segments);
  add_split(all);
  for (const char* dtype : {"fp8", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head"}) {
    all.push_back(paged(fmt::format("TRITON_ATTN {}", dtype), "TRITON_ATTN",
                        {{"kv_cache.dtype", dtype}, {"kv_cache.layout", "HND"}}));
  }
  all.push_back(cascade("FLASH_ATTN cascade", "FLASH_ATTN"));
  all.push_back(cascade("FLASH_ATTN_IX cascade", "FLASH_ATTN_IX"));
  all.push_back(dcp(paged("FLASH_ATTN DCP ag_rs", "FLASH_ATTN"), "2", "1", "ag_rs"));
  all.push_back(dcp(paged("FLASH_ATTN DCP ag_ar", "FLASH_ATTN"), "2", "16", "ag_ar"));
  all.push_back(dcp(paged("FLASH_ATTN_IX DCP a2a", "FLASH_ATTN_IX"), "2", "4", "a2a"));
}

std::vector<Target> make_targets() {
  std::vector<Target> all;
  add_paged(all);
  for (const char* backend : {"FLASH_ATTN", "FLASH_ATTN_IX", "TRITON_ATTN"}) {
    all.push_back(of_family(Family::kEncoder, fmt::format("{} encoder", backend), backend));
    all.push_back(of_family(Family::kCross, fmt::format("{} cross", backend), backend));
  }
  Target cross_segments =
      of_family(Family::kCross, "TRITON_ATTN cross 3d", "TRITON_ATTN", {{"triton.path", "3d"}});
  cross_segments.decode_only = true;
  all.push_back(cross_segments);
  const std::vector<Setting> fp8{
      {"kv_cache.dtype", "fp8"}, {"kv_cache.k_scale", "0.25"}, {"kv_cache.q_scale", "0.05"}};
  all.push_back(of_family(Family::kMla, "MLA", "MLA"));
  all.push_back(of_family(Family::kMla, "MLA fp8", "MLA", fp8));
  all.push_back(split(of_family(Family::kMla, "MLA", "MLA"), kSplitKeys));
  all.push_back(of_family(Family::kMla, "FLASHMLA", "FLASHMLA"));
  all.push_back(of_family(Family::kMla, "FLASHMLA fp8", "FLASHMLA", fp8));
  all.push_back(of_family(Family::kMla, "FLASH_ATTN_MLA", "FLASH_ATTN_MLA"));
  all.push_back(sparse("FLASHMLA_SPARSE", "auto", false));
  all.push_back(sparse("FLASHMLA_SPARSE fp8_ds_mla", "fp8_ds_mla", true));
  for (const char* backend :
       {"MM_TORCH_SDPA", "MM_FLASH_ATTN", "MM_TRITON_ATTN", "MM_FLASHINFER"}) {
    all.push_back(of_family(Family::kMm, backend, backend));
  }
  all.push_back(of_family(Family::kMm, "MM_FLASHINFER fp8", "MM_FLASHINFER",
                          {{"mm_encoder.attn_dtype", "fp8"}}));
  Target dense = of_family(Family::kMm, "MM_TORCH_SDPA without cu_seqlens", "MM_TORCH_SDPA",
                           {{"mm_encoder.batch_size", "3"}, {"mm_encoder.kv_len", "40"}});
  dense.dense = true;
  all.push_back(dense);
  return all;
}

}  // namespace

const std::vector<Target>& edge_targets() {
  static const std::vector<Target> targets = make_targets();
  return targets;
}

Setting batch_setting(const Target& target, const std::vector<Request>& requests) {
  std::string rows;
  std::vector<Request> all = requests;
  if (target.long_request > 0) all.push_back({1, target.long_request});
  for (Request request : all) {
    if (target.decode_only) request.query_len = std::min<std::int64_t>(request.query_len, 1);
    if (target.cascade && request.seq_len > 0) request.seq_len += kCascadePrefix;
    if (!target.has_pages()) {
      request.seq_len = request.query_len == 0 ? 0 : request.seq_len;
      request.query_len = request.seq_len;
    }
    rows += fmt::format("{}{{count: 1, query_len: {}, seq_len: {}}}", rows.empty() ? "" : ", ",
                        request.query_len, request.seq_len);
  }
  return {"batch", "[" + rows + "]"};
}

Problem target_problem(const Target& target, const std::vector<Setting>& settings) {
  // A decode, one over several pages, a chunk with context, a fresh prompt.
  static const std::vector<Request> kBatch{{1, 33}, {1, 70}, {5, 37}, {20, 20}};
  std::vector<Setting> all;
  if (!target.dense) all.push_back(batch_setting(target, kBatch));
  all.insert(all.end(), target.settings.begin(), target.settings.end());
  all.insert(all.end(), settings.begin(), settings.end());
  return make_problem(base_text(target.family), all);
}

}  // namespace attnbench::matrix
