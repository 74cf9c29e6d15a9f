#include "edge_targets.h"

#include <fmt/format.h>

#include <algorithm>

namespace attnbench::matrix {
namespace {

std::string base_text(const Target& target) {
  switch (target.family) {
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
    case Family::kOp:
      if (target.latents) return "name: edge\nattention: {type: op, num_heads: 4}\n";
      return "name: edge\n"
             "attention: {type: op, num_heads: 4, num_kv_heads: 2, head_size: 32}\n";
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
  target.least_heads = 2;
  return target;
}

Target int8(int level) {
  Target target = paged(fmt::format("FLASH_ATTN_IX level {}", level), "FLASH_ATTN_IX",
                        {{"kv_cache.int8_level", std::to_string(level)}});
  target.int8_level = level;
  return target;
}

Target sparse(std::string name, const std::string& cache_dtype, bool ds_mla,
              const std::string& backend = "FLASHMLA_SPARSE") {
  Target target = of_family(Family::kMla, std::move(name), backend,
                            {{"mla.kv_lora_rank", "512"},
                             {"mla.sparse_topk", "128"},
                             {"mla.sparse.valid", "0.4"},
                             {"mla.sparse.duplicates", "0.2"},
                             {"kv_cache.dtype", cache_dtype}});
  target.sparse = true;
  target.ds_mla = ds_mla;
  return target;
}

/// The backends of SM 10.
void add_blackwell_mla(std::vector<Target>& all, const std::vector<Setting>& fp8) {
  const auto add = [&all](Target target, const std::vector<Setting>& more) {
    target.sm = 100;
    target.settings.insert(target.settings.end(), more.begin(), more.end());
    all.push_back(std::move(target));
  };
  const std::vector<Setting> pages{{"kv_cache.block_size", "128"}};
  for (const auto& [name, settings] :
       {std::pair{"CUTLASS_MLA", std::vector<Setting>{}}, std::pair{"CUTLASS_MLA fp8", fp8}}) {
    Target target = of_family(Family::kMla, name, "CUTLASS_MLA", settings);
    target.mla_block_size = 128;
    add(std::move(target), pages);
  }
  const std::string listed = "FLASHINFER_MLA_SPARSE";
  std::vector<Setting> codes{{"mla.qk_nope_head_dim", "128"}};
  add(sparse(listed, "auto", false, listed), codes);
  codes.insert(codes.end(), fp8.begin() + 1, fp8.end());
  add(sparse(listed + " fp8", "fp8", false, listed), codes);
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
  all.push_back(split(int8(2), kSplitKeys));
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
  all.push_back(all.back());
  all.back().name += " P";
  all.back().e4m3_probability = true;
  all.back().settings.push_back({"attention.probability_dtype", "fp8_e4m3"});
  all.push_back(paged("FLASH_ATTN fp8 calculated", "FLASH_ATTN",
                      {{"kv_cache.dtype", "fp8"}, {"kv_cache.calculate_kv_scales", "true"}}));
  all.push_back(paged("FLASH_ATTN_IX", "FLASH_ATTN_IX"));
  all.push_back(paged("FLASH_ATTN_IX fp8", "FLASH_ATTN_IX", {{"kv_cache.dtype", "fp8"}}));
  all.push_back(int8(1));
  all.push_back(int8(2));
  all.push_back(paged("TRITON_ATTN 2d", "TRITON_ATTN", {{"triton.path", "2d"}}));
  all.push_back(paged("TRITON_ATTN output fp8_static", "TRITON_ATTN",
                      {{"output_quant.type", "fp8_static"}, {"output_quant.scale", "0.021"}}));
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

Target operation(OpKind op, const std::string& what, std::vector<Setting> settings = {}) {
  Target target = of_family(Family::kOp, fmt::format("OPS {}{}", to_string(op), what), "OPS",
                            std::move(settings));
  target.settings.push_back({"op.name", to_string(op)});
  target.op = op;
  return target;
}

Target latent_operation(OpKind op, const std::string& what, std::vector<Setting> settings = {}) {
  Target target = operation(op, " latents" + what);
  target.settings.insert(target.settings.end(), {{"op.mla", "true"},
                                                 {"mla.kv_lora_rank", "256"},
                                                 {"mla.qk_nope_head_dim", "16"},
                                                 {"mla.v_head_dim", "16"}});
  target.settings.insert(target.settings.end(), settings.begin(), settings.end());
  target.latents = true;
  return target;
}

const std::vector<Setting> kPackedEntries{{"mla.kv_lora_rank", "512"},
                                          {"kv_cache.dtype", "fp8_ds_mla"}};
const std::vector<Setting> kFp8Entries{{"kv_cache.dtype", "fp8"}, {"kv_cache.k_scale", "0.023"}};

void add_writes(std::vector<Target>& all) {
  for (const char* layout : {"FA", "IX", "TR"}) {
    all.push_back(operation(OpKind::kReshapeAndCache, fmt::format(" {} fp8", layout),
                            {{"op.cache_layout", layout},
                             {"kv_cache.layout", layout[0] == 'F' ? "NHD" : "HND"},
                             {"kv_cache.dtype", "fp8"},
                             {"kv_cache.k_scale", "0.023"},
                             {"kv_cache.v_scale", "[0.03, 0.017]"}}));
  }
  all.push_back(operation(OpKind::kReshapeAndCache, " ranks",
                          {{"dcp.world_size", "2"}, {"dcp.interleave_size", "4"}}));
  for (const char* dtype : {"int8_per_token_head", "fp8_per_token_head"}) {
    all.push_back(operation(OpKind::kReshapeAndCache, fmt::format(" {}", dtype),
                            {{"kv_cache.dtype", dtype}}));
  }
  for (const char* level : {"1", "2"}) {
    Target target = operation(OpKind::kReshapeAndCache, fmt::format(" int8 level {}", level),
                              {{"kv_cache.int8_level", level}});
    all.push_back(target);
  }
  all.push_back(operation(OpKind::kRopeAndCache, "",
                          {{"kv_cache.dtype", "fp8"}, {"kv_cache.k_scale", "0.023"}}));
  for (const OpKind op : {OpKind::kReshapeAndCache, OpKind::kRopeAndCache}) {
    all.push_back(latent_operation(op, " fp8", kFp8Entries));
    all.push_back(latent_operation(op, " fp8_ds_mla", kPackedEntries));
    all.back().ds_mla = true;
  }
}

void add_gathers(std::vector<Target>& all) {
  all.push_back(latent_operation(OpKind::kGather, ""));
  all.push_back(latent_operation(OpKind::kGather, " fp8", kFp8Entries));
  all.push_back(latent_operation(OpKind::kGather, " raw", {{"op.raw", "true"}}));
  all.push_back(latent_operation(OpKind::kGather, " fp8_ds_mla", kPackedEntries));
  all.back().ds_mla = all.back().whole = true;
}

void add_quantisations(std::vector<Target>& all) {
  for (const char* level : {"0", "1", "2"}) {
    std::vector<Setting> settings{{"kv_cache.int8_level", level}};
    if (level[0] == '0') settings.push_back({"kv_cache.q_scale", "0.0113"});
    all.push_back(operation(OpKind::kQuantize, fmt::format(" int8 level {}", level), settings));
  }
  all.push_back(latent_operation(OpKind::kQuantize, "", {{"kv_cache.q_scale", "0.031"}}));
  // Heads of every size make whole groups.
  for (const char* type : {"fp8_static", "fp8_group128", "fp8_group64", "nvfp4"}) {
    all.push_back(operation(OpKind::kOutputQuant, fmt::format(" {}", type),
                            {{"attention.num_heads", "16"}, {"output_quant.type", type}}));
  }
  all.push_back(operation(OpKind::kMmQuant, ""));
  all.push_back(operation(OpKind::kMetadata, ""));
}

void add_operations(std::vector<Target>& all) {
  add_writes(all);
  add_gathers(all);
  all.push_back(operation(OpKind::kRope, "", {{"op.rope_style", "gptj"}}));
  all.push_back(latent_operation(OpKind::kRope, ""));
  all.push_back(operation(OpKind::kMerge, ""));
  all.push_back(operation(OpKind::kIndexKeyCache, ""));
  all.push_back(operation(OpKind::kIndexLogits, "", {{"mla.index_n_heads", "4"}}));
  all.push_back(operation(OpKind::kIndexTopk, "", {{"mla.sparse_topk", "16"}}));
  all.push_back(operation(OpKind::kMerge, " into fp8",
                          {{"output_quant.type", "fp8_static"}, {"output_quant.scale", "0.021"}}));
  for (const char* comm : {"ag_rs", "ag_ar", "a2a"}) {
    all.push_back(operation(OpKind::kDcpCorrect, fmt::format(" {}", comm),
                            {{"dcp.world_size", "2"}, {"dcp.comm", comm}}));
  }
  all.push_back(
      latent_operation(OpKind::kDcpCorrect, "", {{"dcp.world_size", "4"}, {"op.lse_base", "two"}}));
  add_quantisations(all);
}

/// MLA over ranks, with quantised outputs, with its prefill in e4m3, and its reference.
void add_mla_features(std::vector<Target>& all, const std::vector<Setting>& fp8) {
  const auto mla = [](const std::string& backend, const std::string& what,
                      std::vector<Setting> settings = {}) {
    return of_family(Family::kMla, backend + what, backend, std::move(settings));
  };
  all.push_back(dcp(mla("MLA", " DCP ag_rs"), "2", "1", "ag_rs"));
  all.push_back(dcp(mla("FLASHMLA", " DCP ag_ar"), "2", "16", "ag_ar"));
  all.push_back(dcp(mla("FLASH_ATTN_MLA", " DCP a2a"), "2", "64", "a2a"));
  // Two heads make a whole group.
  const Setting wide{"mla.v_head_dim", "32"};
  for (const char* type : {"fp8_static", "fp8_group64", "nvfp4"}) {
    all.push_back(mla("MLA", fmt::format(" output {}", type), {wide, {"output_quant.type", type}}));
    all.back().least_heads = 2;
  }
  all.push_back(mla("FLASHMLA", " output fp8_group64 ue8m0",
                    {wide, {"output_quant.type", "fp8_group64"}, {"output_quant.ue8m0", "true"}}));
  all.back().least_heads = 2;
  for (const char* backend : {"MLA", "FLASHMLA"}) {
    all.push_back(mla(backend, " fp8 prefill", fp8));
    // Its cache is gathered as it is.
    all.back().settings.insert(all.back().settings.end(),
                               {{"mla.emulate_fp8_prefill", "true"}, {"kv_cache.k_scale", "1"}});
  }
  all.push_back(mla("MLA", " fp8 calculated",
                    {{"kv_cache.dtype", "fp8"}, {"kv_cache.calculate_kv_scales", "true"}}));
  all.back().rounds_context = true;
  all.push_back(mla("REFERENCE", " of MLA"));
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
  add_blackwell_mla(all, fp8);
  add_mla_features(all, fp8);
  for (const char* backend :
       {"MM_TORCH_SDPA", "MM_FLASH_ATTN", "MM_TRITON_ATTN", "MM_FLASHINFER"}) {
    all.push_back(of_family(Family::kMm, backend, backend));
  }
  all.push_back(of_family(Family::kMm, "MM_FLASHINFER fp8", "MM_FLASHINFER",
                          {{"mm_encoder.attn_dtype", "fp8"}}));
  all.push_back(all.back());
  all.back().name += " P";
  all.back().e4m3_probability = true;
  all.back().settings.push_back({"attention.probability_dtype", "fp8_e4m3"});
  Target dense = of_family(Family::kMm, "MM_TORCH_SDPA without cu_seqlens", "MM_TORCH_SDPA",
                           {{"mm_encoder.batch_size", "3"}, {"mm_encoder.kv_len", "40"}});
  dense.dense = true;
  all.push_back(dense);
  add_operations(all);
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
    if (target.is_encoder() || target.whole) {
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
  return make_problem(base_text(target), all);
}

}  // namespace attnbench::matrix
