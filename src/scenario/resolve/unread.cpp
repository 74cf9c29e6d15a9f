#include "scenario/resolve/unread.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/problem/fields.h"

namespace attnbench {
namespace {

// ---- What a case is -----------------------------------------------------------------------------

bool is_attention(const Problem& p) { return p.attention.type != AttentionType::kOp; }
bool is_mla(const Problem& p) { return p.attention.type == AttentionType::kMla; }
bool is_encoder(const Problem& p) { return is_encoder_type(p.attention.type); }
bool is_image(const Problem& p) { return p.attention.type == AttentionType::kMmEncoder; }

/// Attention over a KV cache in pages.
bool attends_pages(const Problem& p) { return is_attention(p) && !has_direct_kv(p.attention.type); }
bool attends_heads(const Problem& p) { return attends_pages(p) && !is_mla(p); }

bool is_op(const Problem& p, OpKind kind) { return !is_attention(p) && p.op.name == kind; }
bool is_cache_write(const Problem& p) { return is_op(p, OpKind::kReshapeAndCache); }
bool writes_pages(const Problem& p) { return is_cache_write(p) || is_op(p, OpKind::kRopeAndCache); }
bool is_rotation(const Problem& p) {
  return is_op(p, OpKind::kRope) || is_op(p, OpKind::kRopeAndCache);
}
bool has_pages(const Problem& p) {
  return attends_pages(p) || writes_pages(p) || is_op(p, OpKind::kGather);
}
/// A block table, whether or not what lies in its pages is read.
bool is_of_indexer(const Problem& p) {
  return is_op(p, OpKind::kIndexKeyCache) || is_op(p, OpKind::kIndexLogits) ||
         is_op(p, OpKind::kIndexTopk);
}
bool has_block_table(const Problem& p) {
  return has_pages(p) || is_op(p, OpKind::kMetadata) || is_of_indexer(p);
}
/// A batch that is divided into decodes and prefills.
bool has_decodes(const Problem& p) { return attends_pages(p) || is_op(p, OpKind::kMetadata); }
bool is_sparse(const Problem& p) { return is_mla(p) && p.mla.sparse_topk; }
bool has_index(const Problem& p) {
  return is_sparse(p) && p.mla.sparse_indices == SparseIndices::kIndexer;
}
bool has_latents(const Problem& p) { return is_mla(p) || (!is_attention(p) && p.op.mla); }

bool has_ranks(const Problem& p) { return p.dcp.world_size > 1; }
bool stores(const Problem& p, Dtype codes) {
  return has_pages(p) && kv_format(p.kv_cache.dtype).codes == codes;
}
bool has_scales(const Problem& p) { return has_pages(p) && has_tensor_scales(p.kv_cache.dtype); }
bool reads_scales(const Problem& p) {
  return has_pages(p) && reads_tensor_scales(p.kv_cache.dtype);
}
bool quantises_encoder(const Problem& p) {
  return is_op(p, OpKind::kMmQuant) ||
         (is_image(p) && p.mm_encoder.attn_dtype == MmAttnDtype::kFp8);
}

bool takes_output_quant(const Problem& p) {
  return is_attention(p) || is_op(p, OpKind::kOutputQuant) || is_op(p, OpKind::kMerge);
}
template <OutputQuantType... kTypes>
bool has_output(const Problem& p) {
  return takes_output_quant(p) && ((p.output_quant.type == kTypes) || ...);
}

template <OpKind kKind>
bool is_kind(const Problem& p) {
  return is_op(p, kKind);
}

// ---- The table ----------------------------------------------------------------------------------

constexpr bool kOfModel = true;
constexpr std::string_view kAttention = "an attention.type other than op";
constexpr std::string_view kPagedAttention = "attention.type decoder, encoder_decoder or mla";
constexpr std::string_view kHeads = "attention.type decoder or encoder_decoder";
constexpr std::string_view kDecodes =
    "attention.type decoder, encoder_decoder or mla, or op.name metadata";
constexpr std::string_view kBlocks =
    "attention.type decoder, encoder_decoder or mla, or op.name reshape_and_cache, rope_and_cache, "
    "gather, metadata or index_...";
constexpr std::string_view kPages =
    "attention.type decoder, encoder_decoder or mla, or op.name reshape_and_cache, rope_and_cache "
    "or gather";
constexpr std::string_view kHeadPages =
    "attention.type decoder or encoder_decoder, or op.name reshape_and_cache or rope_and_cache of "
    "keys and values";
constexpr std::string_view kLatents = "attention.type mla, or an operation with op.mla true";
constexpr std::string_view kMla = "attention.type mla";
constexpr std::string_view kImages = "attention.type mm_encoder";
constexpr std::string_view kImageSizes = "attention.type mm_encoder and mm_encoder.images";
constexpr std::string_view kImageQuant = "attention.type mm_encoder or op.name mm_quant";
constexpr std::string_view kGroups = "output_quant.type fp8_group128 or fp8_group64";
constexpr std::string_view kRotation = "op.name rope or rope_and_cache";
constexpr std::string_view kOps = "attention.type op";

/// "a KV cache of dtype fp8, fp8_e4m3 or fp8_e5m2", and the same with more behind it.
std::string fp8_cache(std::string_view more = "") {
  return fmt::format("a KV cache of dtype {}{}", kv_format_names([](const KvFormat& format) {
                       return has_tensor_scales(format.value);
                     }),
                     more);
}

void add_attention(std::vector<ReadRule>& rules) {
  for (const char* key : {"attention.type", "attention.num_heads", "attention.num_kv_heads",
                          "attention.head_size", "attention.v_head_size", "attention.dtype"}) {
    rules.push_back({key, nullptr});
  }
  rules.push_back({"attention.query_dtype", is_attention, kAttention});
  for (const char* key : {"attention.scale", "attention.causal", "attention.sliding_window"}) {
    rules.push_back({key, is_attention, kAttention, "op.name", kOfModel});
  }
  rules.push_back({"attention.chunk_size",
                   [](const Problem& p) { return p.attention.type == AttentionType::kDecoder; },
                   "attention.type decoder", "op.name", kOfModel});
  rules.push_back({"attention.encoder_window", is_encoder,
                   "attention.type encoder or encoder_only (layout IX)"});
  for (const char* key : {"attention.logits_soft_cap", "attention.alibi", "attention.alibi_slopes",
                          "attention.sinks"}) {
    rules.push_back({key, is_attention, kAttention, "op.name", kOfModel});
  }
  rules.push_back({"attention.mm_prefix_ranges",
                   [](const Problem& p) { return is_attention(p) && !is_image(p); },
                   "attention.type decoder"});
  rules.push_back({"attention.num_speculative_tokens", has_decodes, kDecodes, "op.name"});
  rules.push_back({"attention.batch_invariant", is_attention, kAttention, "op.name"});
  rules.push_back({"attention.num_splits", attends_pages, kPagedAttention});
  rules.push_back({"attention.split_form", attends_heads, kHeads});
  rules.push_back(
      {"attention.kv_sharing",
       [](const Problem& p) { return is_mla(p) || p.attention.type == AttentionType::kDecoder; },
       "attention.type decoder or mla"});
  rules.push_back({"attention.probability_dtype", is_attention, kAttention, "op.name"});
  rules.push_back({"attention.fp8_accumulation", is_attention, kAttention, "op.name"});
  for (const char* key : {"triton.path", "triton.capture_sizes"}) {
    rules.push_back({key, attends_heads, kHeads});
  }
}

void add_mla(std::vector<ReadRule>& rules) {
  for (const char* key :
       {"mla.kv_lora_rank", "mla.qk_nope_head_dim", "mla.qk_rope_head_dim", "mla.v_head_dim"}) {
    rules.push_back({key, has_latents, kLatents, "op.mla", kOfModel});
  }
  for (const char* key :
       {"mla.ref_form", "mla.workspace_tokens", "mla.prefill_backend", "mla.v_pad",
        "mla.emulate_fp8_prefill", "mla.use_prefill_query_quantization", "mla.fused_steps"}) {
    rules.push_back({key, is_mla, kMla});
  }
  rules.push_back({"mla.sparse_topk",
                   [](const Problem& p) { return is_mla(p) || is_op(p, OpKind::kIndexTopk); },
                   "attention.type mla or op.name index_topk", "op.name", kOfModel});
  for (const char* key : {"mla.sparse.valid", "mla.sparse.duplicates"}) {
    rules.push_back({key, is_sparse, "attention.type mla and mla.sparse_topk", "mla.sparse_topk"});
  }
  rules.push_back({"mla.sparse.indices", is_sparse, "attention.type mla and mla.sparse_topk",
                   "mla.sparse_topk"});
  rules.push_back({"mla.sparse.topk_length", is_sparse, "attention.type mla and mla.sparse_topk",
                   "mla.sparse_topk"});
  rules.push_back({"mla.sparse.extra_topk", is_sparse, "attention.type mla and mla.sparse_topk",
                   "mla.sparse_topk"});
  for (const char* key :
       {"mla.sparse.extra_keys", "mla.sparse.extra_block_size", "mla.sparse.extra_topk_length"}) {
    rules.push_back({key, [](const Problem& p) { return is_sparse(p) && p.mla.sparse_extra_topk; },
                     "mla.sparse.extra_topk", "mla.sparse.extra_topk"});
  }
  rules.push_back({"mla.index_n_heads",
                   [](const Problem& p) { return has_index(p) || is_op(p, OpKind::kIndexLogits); },
                   "mla.sparse.indices indexer or op.name index_logits", "mla.sparse.indices",
                   kOfModel});
  rules.push_back({"mla.index_ue8m0",
                   [](const Problem& p) {
                     return has_index(p) || is_op(p, OpKind::kIndexKeyCache) ||
                            is_op(p, OpKind::kIndexLogits);
                   },
                   "mla.sparse.indices indexer or op.name index_key_cache or index_logits",
                   "mla.sparse.indices", kOfModel});
  rules.push_back({"mla.q_pad_num_heads", is_mla, kMla});
  for (const char* key : {"mla.kv_b_proj.dtype", "mla.kv_b_proj.block_size"}) {
    rules.push_back({key, is_mla, kMla, {}, kOfModel});
  }
}

void add_mm_encoder(std::vector<ReadRule>& rules) {
  const auto has_images = [](const Problem& p) { return is_image(p) && p.mm_encoder.images; };
  const auto saves_scales = [](const Problem& p) {
    return is_image(p) && p.mm_encoder.fp8_scale_save_path;
  };
  const auto quantises = [](const Problem& p) { return is_image(p) || is_op(p, OpKind::kMmQuant); };
  rules.push_back({"mm_encoder.attn_dtype", is_image, kImages});
  rules.push_back({"mm_encoder.images", is_image, kImages});
  for (const char* key : {"mm_encoder.patch_size", "mm_encoder.window"}) {
    rules.push_back({key, has_images, kImageSizes, "mm_encoder.images", kOfModel});
  }
  rules.push_back({"mm_encoder.batch_size", is_image, kImages});
  rules.push_back({"mm_encoder.kv_len", is_image, kImages});
  rules.push_back({"mm_encoder.layer_names", quantises, kImageQuant, "op.name", kOfModel});
  rules.push_back({"mm_encoder.hidden_size", is_image, kImages, {}, kOfModel});
  rules.push_back({"mm_encoder.tp_size", is_image, kImages});
  rules.push_back({"mm_encoder.fp8_scale_path", quantises_encoder,
                   "mm_encoder.attn_dtype fp8 (attention.type mm_encoder) or op.name mm_quant",
                   "mm_encoder.attn_dtype"});
  rules.push_back({"mm_encoder.fp8_scale_save_path",
                   [](const Problem& p) { return is_image(p) && quantises_encoder(p); },
                   "attention.type mm_encoder and mm_encoder.attn_dtype fp8",
                   "mm_encoder.attn_dtype"});
  rules.push_back({"mm_encoder.fp8_scale_save_margin", saves_scales,
                   "mm_encoder.fp8_scale_save_path (attention.type mm_encoder)",
                   "mm_encoder.fp8_scale_save_path"});
  rules.push_back({"mm_encoder.amax", quantises, kImageQuant, "op.name"});
  rules.push_back(
      {"mm_encoder.fp8_fused", [](const Problem& p) { return is_image(p) && quantises_encoder(p); },
       "attention.type mm_encoder and mm_encoder.attn_dtype fp8", "mm_encoder.attn_dtype"});
}

void add_engine(std::vector<ReadRule>& rules) {
  rules.push_back({"engine.max_model_len", is_mla, kMla});
  rules.push_back({"engine.max_num_seqs", is_mla, kMla});
}

void add_cache_form(std::vector<ReadRule>& rules) {
  const auto has_dtype = [](const Problem& p) { return is_attention(p) || has_pages(p); };
  const auto has_layout = [](const Problem& p) {
    return attends_heads(p) || (writes_pages(p) && !p.op.mla);
  };
  const auto has_level = [](const Problem& p) {
    return is_attention(p) || writes_pages(p) || is_op(p, OpKind::kQuantize);
  };
  rules.push_back({"kv_cache.dtype", has_dtype, kPages, "op.name", kOfModel});
  rules.push_back({"kv_cache.int8_level", has_level,
                   "an attention.type other than op, or op.name reshape_and_cache or quantize",
                   "op.name"});
  rules.push_back({"kv_cache.block_size", has_block_table, kBlocks, "op.name", kOfModel});
  rules.push_back({"kv_cache.layout", has_layout, kHeadPages, "op.name"});
  for (const char* key : {"kv_cache.num_blocks", "kv_cache.shuffle_blocks"}) {
    rules.push_back({key, has_block_table, kBlocks, "op.name"});
  }
}

void add_cache_scales(std::vector<ReadRule>& rules) {
  const auto has_value_scale = [](const Problem& p) { return reads_scales(p) && !has_latents(p); };
  const auto has_query_scale = [](const Problem& p) {
    const bool fp8_query = p.attention.query_dtype == QueryDtype::kFp8E4M3;
    return (attends_pages(p) && (fp8_query || has_scales(p))) ||
           (is_op(p, OpKind::kQuantize) && p.kv_cache.int8_level == 0);
  };
  const auto has_value_file = [](const Problem& p) {
    return p.kv_cache.int8_level == 1 && (attends_pages(p) || !is_attention(p));
  };
  const auto calculates = [](const Problem& p) { return attends_pages(p) && has_scales(p); };
  static const std::string kCache = fp8_cache();
  static const std::string kWithScales = fmt::format(
      "a KV cache of dtype {}",
      kv_format_names([](const KvFormat& format) { return reads_tensor_scales(format.value); }));
  static const std::string kOfHeads = kWithScales + " with keys and values (latents have k_scale)";
  static const std::string kQuery = fp8_cache(", or op.name quantize with kv_cache.int8_level 0");
  static const std::string kCalculated = fp8_cache(" that attention reads");
  constexpr std::string_view kDtype = "kv_cache.dtype";
  rules.push_back({"kv_cache.k_scale", reads_scales, kWithScales, kDtype});
  rules.push_back({"kv_cache.v_scale", has_value_scale, kOfHeads, kDtype});
  rules.push_back({"kv_cache.q_scale", has_query_scale, kQuery, kDtype});
  rules.push_back({"kv_cache.scale_file", has_scales, kCache, kDtype});
  rules.push_back({"kv_cache.value_scale_file", has_value_file, "kv_cache.int8_level 1",
                   "kv_cache.int8_level"});
  rules.push_back({"kv_cache.pth_int8_round",
                   [](const Problem& p) { return stores(p, Dtype::kI8); },
                   "a KV cache of dtype int8_per_token_head", kDtype});
  rules.push_back({"kv_cache.e5m2_as_e4m3",
                   [](const Problem& p) { return stores(p, Dtype::kE5M2); },
                   "a KV cache of dtype fp8_e5m2", kDtype});
  rules.push_back({"kv_cache.calculate_kv_scales", calculates, kCalculated, kDtype});
  const auto has_layers = [](const Problem& p) { return attends_heads(p) && p.kv_cache.layers; };
  const auto makes_scales = [](const Problem& p) {
    return attends_pages(p) && has_scales(p) && p.kv_cache.calculate_kv_scales;
  };
  rules.push_back({"kv_cache.layers", attends_heads, "attention.type decoder or encoder_decoder"});
  rules.push_back({"kv_cache.layer", has_layers, "kv_cache.layers", "kv_cache.layers"});
  rules.push_back({"kv_cache.manager_block_size", has_block_table, kBlocks, "op.name"});
  for (const char* key :
       {"kv_cache.q_scale_constant", "kv_cache.k_scale_constant", "kv_cache.v_scale_constant"}) {
    rules.push_back(
        {key, makes_scales, "kv_cache.calculate_kv_scales true", "kv_cache.calculate_kv_scales"});
  }
}

void add_batch(std::vector<ReadRule>& rules) {
  const auto divides = [](const Problem& p) {
    return is_attention(p) || is_cache_write(p) || is_op(p, OpKind::kDcpCorrect);
  };
  const auto stripes = [](const Problem& p) {
    return has_ranks(p) && (is_attention(p) || is_cache_write(p));
  };
  const auto exchanges = [](const Problem& p) {
    return has_ranks(p) && (is_attention(p) || is_op(p, OpKind::kDcpCorrect));
  };
  constexpr std::string_view kRanks = "dcp.world_size";
  rules.push_back(
      {"batch_options.treat_short_extends_as_decodes", has_decodes, kDecodes, "op.name"});
  rules.push_back({"cascade.common_prefix_len", has_block_table, kBlocks, "op.name"});
  rules.push_back({"cascade.mode", attends_pages, kPagedAttention});
  rules.push_back({"cascade.groups", attends_pages, kPagedAttention});
  rules.push_back({kRanks, divides,
                   "an attention.type other than op, or op.name reshape_and_cache or dcp_correct",
                   "op.name"});
  rules.push_back({"dcp.interleave_size", stripes,
                   "dcp.world_size > 1 and attention or op.name reshape_and_cache", kRanks});
  rules.push_back(
      {"dcp.comm", exchanges, "dcp.world_size > 1 and attention or op.name dcp_correct", kRanks});
  // Also of a group of one: `mpirun -n 1` of a scenario that is run with more.
  rules.push_back({"dcp.transport", divides,
                   "an attention.type other than op, or op.name reshape_and_cache or dcp_correct",
                   "op.name"});
  rules.push_back(
      {"dcp.overlap",
       [](const Problem& p) { return has_ranks(p) && p.attention.type == AttentionType::kDecoder; },
       "dcp.world_size > 1 and attention.type decoder", kRanks});
}

void add_output_quant(std::vector<ReadRule>& rules) {
  using enum OutputQuantType;
  constexpr std::string_view kType = "output_quant.type";
  rules.push_back({kType, takes_output_quant,
                   "an attention.type other than op, or op.name output_quant or merge", "op.name"});
  rules.push_back({"output_quant.scale", has_output<kFp8Static, kNvfp4>,
                   "output_quant.type fp8_static or nvfp4", kType});
  for (const char* key :
       {"output_quant.ue8m0", "output_quant.column_major", "output_quant.tma_aligned"}) {
    rules.push_back({key, has_output<kFp8Group128, kFp8Group64>, kGroups, kType});
  }
  rules.push_back({"output_quant.swizzle", has_output<kNvfp4>, "output_quant.type nvfp4", kType});
}

void add_op(std::vector<ReadRule>& rules) {
  const auto any = [](const Problem& p) { return !is_attention(p); };
  constexpr std::string_view kName = "op.name";
  for (const char* key : {"op.name", "op.tokens", "op.mla"}) rules.push_back({key, any, kOps});
  rules.push_back({"op.cache_layout", [](const Problem& p) { return writes_pages(p) && !p.op.mla; },
                   "op.name reshape_and_cache or rope_and_cache of keys and values", kName});
  rules.push_back({"op.raw", is_kind<OpKind::kGather>, "op.name gather", kName});
  rules.push_back({"op.tokens_with_context", is_kind<OpKind::kMerge>, "op.name merge", kName});
  for (const char* key : {"op.rotary_dim", "op.rope_style", "op.rope_base", "op.cos_sin_dtype"}) {
    rules.push_back({key, is_rotation, kRotation, kName});
  }
  rules.push_back({"op.lse_base", is_kind<OpKind::kDcpCorrect>, "op.name dcp_correct", kName});
}

/// How a case is drawn, checked and timed concerns all of them.
void add_run(std::vector<ReadRule>& rules) {
  const auto draws = [](const Problem& p) { return !p.inputs.file; };
  const auto draws_values = [](const Problem& p) { return is_attention(p) && !p.inputs.file; };
  constexpr std::string_view kDrawn = "inputs.file null";
  constexpr std::string_view kFile = "inputs.file";
  rules.push_back({"inputs.distribution", draws, kDrawn, kFile});
  rules.push_back({"inputs.std", draws, kDrawn, kFile});
  for (const char* key : {"inputs.mean", "inputs.needles"}) {
    rules.push_back(
        {key, draws_values, "an attention.type other than op and inputs.file null", kFile});
  }
  for (const char* key : {"inputs.seed", "inputs.file", "validation.max_rows", "validation.rule"}) {
    rules.push_back({key, nullptr});
  }
  rules.push_back({"validation.max_quantization_error", is_attention, kAttention, "op.name"});
  for (const char* key :
       {"timing.samples", "timing.min_time_ms", "timing.max_noise", "timing.timeout_s", "timing.l2",
        "timing.pace", "timing.mode", "timing.order"}) {
    rules.push_back({key, nullptr});
  }
  rules.push_back({"timing.rounds",
                   [](const Problem& p) { return p.timing.order == TimingOrder::kAlternate; },
                   "timing.order alternate", "timing.order"});
}

std::vector<ReadRule> make_rules() {
  std::vector<ReadRule> rules;
  add_attention(rules);
  add_mla(rules);
  add_mm_encoder(rules);
  add_engine(rules);
  add_cache_form(rules);
  add_cache_scales(rules);
  add_batch(rules);
  add_output_quant(rules);
  add_op(rules);
  add_run(rules);
  return rules;
}

// ---- Documents ----------------------------------------------------------------------------------

bool is_value(const Value& value) {
  const bool is_empty =
      (value.is_list() && value.items.empty()) || (value.is_map() && value.entries.empty());
  return !value.is_null() && !value.is_string("auto") && !is_empty;
}

/// The values that the field is swept over; null where it is not.
const Value* swept_values(const Value& document, std::string_view key) {
  const Value* const sweep = document.find("sweep");
  return sweep == nullptr ? nullptr : sweep->find(key);
}

/// The place of a value of the field, fixed or swept; null where there is none.
const Mark* written_at(const Value& document, std::string_view key) {
  if (const Value* values = swept_values(document, key)) {
    const bool any = std::any_of(values->items.begin(), values->items.end(), is_value);
    return any ? &values->mark : nullptr;
  }
  const Value* value = document.find_path(key);
  return value != nullptr && is_value(*value) ? &value->mark : nullptr;
}

/// Whether the document is a resolved problem, as results and `explain` have it: nobody chose what
/// stands in it. Not every field, since a later version may have more.
bool gives_nearly_every_field(const Value& document) {
  const std::vector<Field>& fields = problem_fields();
  const auto given = std::count_if(fields.begin(), fields.end(), [&](const Field& field) {
    return document.find_path(field.key) != nullptr;
  });
  return given * 10 >= std::ssize(fields) * 9;
}

/// "attention.type decoder, kv_cache.dtype auto"; an operation is told by its name.
std::string describe_case(const Problem& problem, std::string_view decided_by) {
  std::vector<std::string_view> keys{is_attention(problem) ? "attention.type" : "op.name"};
  const bool is_told = decided_by.empty() || decided_by == keys[0] ||
                       (is_attention(problem) && decided_by.starts_with("op."));
  if (!is_told) keys.push_back(decided_by);
  std::string text;
  for (const std::string_view key : keys) {
    const Value value = find_field(key)->get(problem);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key,
                        value.is_string() ? value.text : to_json_text(value));
  }
  return text;
}

}  // namespace

const std::vector<ReadRule>& read_rules() {
  static const std::vector<ReadRule> rules = make_rules();
  return rules;
}

UnreadKeys::UnreadKeys(const Value& document, const std::string& file) {
  const bool is_resolved = gives_nearly_every_field(document);
  for (const ReadRule& rule : read_rules()) {
    const Mark* const mark = rule.reads == nullptr ? nullptr : written_at(document, rule.key);
    if (mark == nullptr) continue;
    // Options have no lines; everything else with another name was extended.
    const bool is_option = mark->line == 0;
    const bool is_extended = mark->file && !is_option && *mark->file != file;
    if (is_resolved && !is_option) continue;
    if (is_extended && rule.of_model) continue;
    unread_.push_back({&rule, *mark, swept_values(document, rule.key) != nullptr, ""});
  }
}

void UnreadKeys::see(const Problem& problem) {
  std::erase_if(unread_, [&](const Written& key) { return key.rule->reads(problem); });
  if (num_cases_++ > 0) return;
  for (Written& key : unread_) key.found = describe_case(problem, key.rule->decided_by);
}

std::string UnreadKeys::why(const Written& key) const {
  const std::string others =
      num_cases_ > 1 ? fmt::format(" in the first of {} cases", num_cases_) : "";
  return fmt::format("read only with {}; found {}{}", key.rule->with, key.found, others);
}

void UnreadKeys::add_issues(IssueList& issues) const {
  for (const Written& key : unread_) {
    issues.add(ErrorKind::kConfig, key.mark, fmt::format("{}: {}", key.rule->key, why(key)));
  }
}

std::vector<UnreadKeys::Key> UnreadKeys::keys() const {
  std::vector<Key> keys;
  for (const Written& key : unread_) {
    keys.push_back({key.rule->key, location(key.mark), why(key), key.is_swept, key.mark.line == 0});
  }
  return keys;
}

}  // namespace attnbench
