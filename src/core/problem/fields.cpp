// The rows of the field table, section by section in the order of contract section 1, and the walk
// over them that writes a Problem as JSON. A row says everything about its key: where the value is
// kept, its type, its bounds and the word for "not set". The order of rows is that of the written
// JSON, whose bytes are part of every result file.
#include "core/problem/fields.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/problem/field_builders.h"
#include "core/problem/field_lists.h"
#include "core/value.h"

namespace attnbench {
namespace fields {

namespace {

// Limits that no model comes near, so that products of a few of them stay far inside 64 bits.
constexpr Range kCount{.low = 1, .high = 65536};
constexpr Range kTokens{.low = 0, .high = kMaxInt};
constexpr Range kAtLeastOne{.low = 1, .high = kMaxInt};
// As many as FlashAttention takes: the partial results of a row are combined by one warp.
constexpr double kMostNumSplits = 256;

/// A field for which "auto" means the same as null.
Field with_auto(Field field) {
  field.set = [set = std::move(field.set)](const Value& value, Problem& problem) {
    if (value.is_string("auto")) return set(Value::null(), problem);
    return set(value, problem);
  };
  return field;
}

// Accessor of a member, for const and mutable problems alike.
#define AT(member) \
  [](auto& problem) -> auto& { return problem.member; }

void add_attention(std::vector<Field>& table) {
  const std::vector<Dtype> dtypes = {Dtype::kBF16, Dtype::kF16, Dtype::kF32};
  std::vector<std::string> dtype_words;
  for (Dtype dtype : dtypes) dtype_words.emplace_back(dtype_name(dtype));

  table.push_back(enumeration("attention.type", AT(attention.type)));
  table.push_back(integer("attention.num_heads", AT(attention.num_heads), kCount));
  table.push_back(integer("attention.num_kv_heads", AT(attention.num_kv_heads), kCount, "null"));
  table.push_back(integer("attention.head_size", AT(attention.head_size), kCount));
  table.push_back(integer("attention.v_head_size", AT(attention.v_head_size), kCount, "null"));
  table.push_back(choice("attention.dtype", AT(attention.dtype), dtypes, dtype_words));
  table.push_back(enumeration("attention.query_dtype", AT(attention.query_dtype)));
  table.push_back(real("attention.scale", AT(attention.scale), kPositive, "null"));
  table.push_back(boolean("attention.causal", AT(attention.causal), "null"));
  table.push_back(
      integer("attention.sliding_window", AT(attention.sliding_window), kAtLeastOne, "null"));
  table.push_back(integer("attention.chunk_size", AT(attention.chunk_size), kAtLeastOne, "null"));
  table.push_back(enumeration("attention.encoder_window", AT(attention.encoder_window)));
  table.push_back(real("attention.logits_soft_cap", AT(attention.logits_soft_cap), kNotNegative));
  table.push_back(enumeration("attention.alibi", AT(attention.alibi)));
  table.push_back(alibi_slopes_field());
  table.push_back(sinks_field());
  table.push_back(mm_prefix_ranges_field());
  table.push_back(integer("attention.num_speculative_tokens", AT(attention.num_speculative_tokens),
                          {.low = 0, .high = 1024}));
  table.push_back(boolean("attention.batch_invariant", AT(attention.batch_invariant)));
  table.push_back(with_auto(integer("attention.num_splits", AT(attention.num_splits),
                                    {.low = 1, .high = kMostNumSplits}, "null")));
  table.push_back(enumeration("attention.split_form", AT(attention.split_form)));
  table.push_back(boolean("attention.kv_sharing", AT(attention.kv_sharing)));
  table.push_back(enumeration("attention.probability_dtype", AT(attention.probability_dtype)));
  table.push_back(enumeration("attention.fp8_accumulation", AT(attention.fp8_accumulation)));
  table.push_back(enumeration("triton.path", AT(triton.path)));
  table.push_back(capture_sizes_field());
}

void add_mla(std::vector<Field>& table) {
  table.push_back(integer("mla.kv_lora_rank", AT(mla.kv_lora_rank), kCount));
  table.push_back(integer("mla.qk_nope_head_dim", AT(mla.qk_nope_head_dim), kCount));
  table.push_back(integer("mla.qk_rope_head_dim", AT(mla.qk_rope_head_dim), kCount));
  table.push_back(integer("mla.v_head_dim", AT(mla.v_head_dim), kCount));
  table.push_back(enumeration("mla.ref_form", AT(mla.ref_form)));
  table.push_back(integer("mla.workspace_tokens", AT(mla.workspace_tokens), kAtLeastOne, "auto"));
  table.push_back(text("mla.prefill_backend", AT(mla.prefill_backend)));
  table.push_back(enumeration("mla.v_pad", AT(mla.v_pad)));
  table.push_back(boolean("mla.emulate_fp8_prefill", AT(mla.emulate_fp8_prefill)));
  table.push_back(
      boolean("mla.use_prefill_query_quantization", AT(mla.use_prefill_query_quantization)));
  table.push_back(boolean("mla.fused_steps", AT(mla.fused_steps)));
  table.push_back(integer("mla.sparse_topk", AT(mla.sparse_topk), kAtLeastOne, "null"));
  table.push_back(real("mla.sparse.valid", AT(mla.sparse_valid), kShare));
  table.push_back(real("mla.sparse.duplicates", AT(mla.sparse_duplicates), kShare));
  table.push_back(enumeration("mla.sparse.indices", AT(mla.sparse_indices)));
  table.push_back(topk_length_field("mla.sparse.topk_length", &MlaSpec::sparse_topk_length));
  table.push_back(integer("mla.sparse.extra_topk", AT(mla.sparse_extra_topk), kAtLeastOne, "null"));
  table.push_back(integer("mla.sparse.extra_keys", AT(mla.sparse_extra_keys), kAtLeastOne, "null"));
  table.push_back(
      integer("mla.sparse.extra_block_size", AT(mla.sparse_extra_block_size), kCount, "null"));
  table.push_back(
      topk_length_field("mla.sparse.extra_topk_length", &MlaSpec::sparse_extra_topk_length));
  table.push_back(integer("mla.index_n_heads", AT(mla.index_n_heads), kCount));
  table.push_back(boolean("mla.index_ue8m0", AT(mla.index_ue8m0)));
  table.push_back(integer("mla.q_pad_num_heads", AT(mla.q_pad_num_heads), kCount, "null"));
  table.push_back(enumeration("mla.kv_b_proj.dtype", AT(mla.kv_b_proj)));
  table.push_back(integer("mla.kv_b_proj.block_size", AT(mla.kv_b_proj_block), kCount, "null"));
}

void add_mm_encoder(std::vector<Field>& table) {
  table.push_back(enumeration("mm_encoder.attn_dtype", AT(mm_encoder.attn_dtype)));
  table.push_back(images_field());
  table.push_back(integer("mm_encoder.patch_size", AT(mm_encoder.patch_size), kCount));
  table.push_back(integer("mm_encoder.window", AT(mm_encoder.window), kCount, "null"));
  table.push_back(integer("mm_encoder.batch_size", AT(mm_encoder.batch_size), kCount, "null"));
  table.push_back(integer("mm_encoder.kv_len", AT(mm_encoder.kv_len), kTokens, "null"));
  table.push_back(layer_names_field());
  table.push_back(
      integer("mm_encoder.hidden_size", AT(mm_encoder.hidden_size), kAtLeastOne, "null"));
  table.push_back(integer("mm_encoder.tp_size", AT(mm_encoder.tp_size), kCount));
  table.push_back(text("mm_encoder.fp8_scale_path", AT(mm_encoder.fp8_scale_path), true));
  table.push_back(text("mm_encoder.fp8_scale_save_path", AT(mm_encoder.fp8_scale_save_path)));
  table.push_back(
      real("mm_encoder.fp8_scale_save_margin", AT(mm_encoder.fp8_scale_save_margin), kPositive));
  table.push_back(enumeration("mm_encoder.amax", AT(mm_encoder.amax)));
  table.push_back(boolean("mm_encoder.fp8_fused", AT(mm_encoder.fp8_fused)));
}

/// Levels outside of the range are refused in upstream's words (semantics §11.1).
Field int8_level_field() {
  Field field = integer("kv_cache.int8_level", AT(kv_cache.int8_level), {.low = 0, .high = 2});
  field.set = [inner = field.set](const Value& value, Problem& problem) {
    std::optional<Mismatch> mismatch = inner(value, problem);
    if (mismatch && value.is_int()) {
      mismatch->expected =
          "0, 1 or 2 (VLLM_ATTN_OPT_LEVEL only support [0 16-bit attention, 1 int8 query, key and "
          "value, 2 int8 query and key])";
    }
    return mismatch;
  };
  return field;
}

void add_engine(std::vector<Field>& table) {
  table.push_back(integer("engine.max_model_len", AT(engine.max_model_len), kAtLeastOne, "null"));
  table.push_back(integer("engine.max_num_seqs", AT(engine.max_num_seqs), kAtLeastOne, "null"));
}

void add_kv_cache(std::vector<Field>& table) {
  table.push_back(enumeration("kv_cache.dtype", AT(kv_cache.dtype)));
  table.push_back(int8_level_field());
  table.push_back(integer("kv_cache.block_size", AT(kv_cache.block_size), kAtLeastOne));
  table.push_back(enumeration("kv_cache.layout", AT(kv_cache.layout)));
  table.push_back(integer("kv_cache.num_blocks", AT(kv_cache.num_blocks), kTokens, "auto"));
  table.push_back(boolean("kv_cache.shuffle_blocks", AT(kv_cache.shuffle_blocks)));
  table.push_back(scale_field(
      "kv_cache.k_scale", [](Problem & p) -> auto& { return p.kv_cache.k_scale; }));
  table.push_back(scale_field(
      "kv_cache.v_scale", [](Problem & p) -> auto& { return p.kv_cache.v_scale; }));
  table.push_back(real("kv_cache.q_scale", AT(kv_cache.q_scale), kPositiveScale));
  table.push_back(text("kv_cache.scale_file", AT(kv_cache.scale_file), true));
  table.push_back(text("kv_cache.value_scale_file", AT(kv_cache.value_scale_file), true));
  table.push_back(enumeration("kv_cache.pth_int8_round", AT(kv_cache.pth_int8_round)));
  table.push_back(boolean("kv_cache.e5m2_as_e4m3", AT(kv_cache.e5m2_as_e4m3)));
  table.push_back(boolean("kv_cache.calculate_kv_scales", AT(kv_cache.calculate_kv_scales)));
  table.push_back(integer("kv_cache.layers", AT(kv_cache.layers), kCount, "null"));
  table.push_back(
      integer("kv_cache.layer", AT(kv_cache.layer), {.low = 0, .high = kCount.high - 1}));
  table.push_back(
      integer("kv_cache.manager_block_size", AT(kv_cache.manager_block_size), kAtLeastOne, "null"));
  table.push_back(real("kv_cache.q_scale_constant", AT(kv_cache.q_scale_constant), kPositiveScale));
  table.push_back(real("kv_cache.k_scale_constant", AT(kv_cache.k_scale_constant), kPositiveScale));
  table.push_back(real("kv_cache.v_scale_constant", AT(kv_cache.v_scale_constant), kPositiveScale));
  table.push_back(
      boolean("batch_options.treat_short_extends_as_decodes", AT(treat_short_extends_as_decodes)));
  table.push_back(integer("cascade.common_prefix_len", AT(cascade.common_prefix_len), kTokens));
  table.push_back(enumeration("cascade.mode", AT(cascade.mode)));
  table.push_back(cascade_groups_field());
  table.push_back(integer("dcp.world_size", AT(dcp.world_size), {.low = 1, .high = 1024}));
  table.push_back(integer("dcp.interleave_size", AT(dcp.interleave_size), kAtLeastOne));
  table.push_back(enumeration("dcp.comm", AT(dcp.comm)));
  table.push_back(enumeration("dcp.transport", AT(dcp.transport)));
  table.push_back(boolean("dcp.overlap", AT(dcp.overlap)));
}

void add_op(std::vector<Field>& table) {
  Field name = enumeration("op.name", AT(op.name));
  name.set = [set = name.set](const Value& value, Problem& problem) {
    if (!value.is_null()) return set(value, problem);
    problem.op.name.reset();
    return std::optional<Mismatch>();
  };
  table.push_back(std::move(name));
  table.push_back(integer("op.tokens", AT(op.tokens), kAtLeastOne, "null"));
  table.push_back(boolean("op.mla", AT(op.mla), "null"));
  table.push_back(enumeration("op.cache_layout", AT(op.cache_layout)));
  table.push_back(boolean("op.raw", AT(op.raw)));
  table.push_back(integer("op.tokens_with_context", AT(op.tokens_with_context), kTokens, "null"));
  table.push_back(integer("op.rotary_dim", AT(op.rotary_dim), kCount, "null"));
  table.push_back(enumeration("op.rope_style", AT(op.rope_style)));
  table.push_back(real("op.rope_base", AT(op.rope_base), kPositive));
  table.push_back(enumeration("op.cos_sin_dtype", AT(op.cos_sin_dtype)));
  table.push_back(enumeration("op.lse_base", AT(op.lse_base)));
}

/// One word so far.
Field rule_field() {
  Field field = text("validation.rule", AT(validation.rule));
  field.words = {"auto"};
  field.set = [](const Value& value, Problem& problem) -> std::optional<Mismatch> {
    if (!value.is_string("auto")) return Mismatch{ErrorKind::kFormat, "one of auto", &value};
    problem.validation.rule = value.text;
    return std::nullopt;
  };
  return field;
}

void add_run(std::vector<Field>& table) {
  table.push_back(enumeration("output_quant.type", AT(output_quant.type)));
  table.push_back(real("output_quant.scale", AT(output_quant.scale), kPositiveScale));
  table.push_back(boolean("output_quant.ue8m0", AT(output_quant.ue8m0)));
  table.push_back(boolean("output_quant.column_major", AT(output_quant.column_major)));
  table.push_back(boolean("output_quant.tma_aligned", AT(output_quant.tma_aligned)));
  table.push_back(boolean("output_quant.swizzle", AT(output_quant.swizzle)));
  add_op(table);
  table.push_back(enumeration("inputs.distribution", AT(inputs.distribution)));
  table.push_back(real("inputs.std", AT(inputs.std), kNotNegative));
  table.push_back(
      real("inputs.mean", AT(inputs.mean), {.low = -std::numeric_limits<double>::infinity()}));
  table.push_back(boolean("inputs.needles", AT(inputs.needles)));
  table.push_back(integer("inputs.seed", AT(inputs.seed), {.low = 0}));
  table.push_back(text("inputs.file", AT(inputs.file), true));
  table.push_back(integer("validation.max_rows", AT(validation.max_rows), kAtLeastOne, "auto"));
  table.push_back(rule_field());
  table.push_back(real("validation.max_quantization_error", AT(validation.max_quantization_error),
                       kPositive, "null"));
  table.push_back(integer("timing.samples", AT(timing.samples), kAtLeastOne, "auto"));
  table.push_back(real("timing.min_time_ms", AT(timing.min_time_ms), kNotNegative));
  table.push_back(real("timing.max_noise", AT(timing.max_noise), kPositive));
  table.push_back(real("timing.timeout_s", AT(timing.timeout_s), kPositive));
  table.push_back(enumeration("timing.l2", AT(timing.l2)));
  table.push_back(enumeration("timing.pace", AT(timing.pace)));
  table.push_back(enumeration("timing.mode", AT(timing.mode)));
  table.push_back(enumeration("timing.order", AT(timing.order)));
  table.push_back(integer("timing.rounds", AT(timing.rounds), {.low = 1, .high = 1000}));
}

#undef AT

std::vector<Field> make_table() {
  std::vector<Field> table;
  add_attention(table);
  add_mla(table);
  add_mm_encoder(table);
  add_engine(table);
  add_kv_cache(table);
  add_run(table);
  return table;
}

}  // namespace
}  // namespace fields

const std::vector<Field>& problem_fields() {
  static const std::vector<Field> table = fields::make_table();
  return table;
}

const Field* find_field(std::string_view key) {
  const std::vector<Field>& table = problem_fields();
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const Field& field) { return field.key == key; });
  return found == table.end() ? nullptr : &*found;
}

namespace {

Value batch_rows(const std::vector<Request>& batch) {
  Value rows = Value::list();
  for (std::size_t i = 0; i < batch.size();) {
    std::size_t end = i + 1;
    while (end < batch.size() && batch[end] == batch[i]) ++end;
    Value& row = rows.items.emplace_back(Value::map());
    row.at_or_add("count") = Value::of(static_cast<std::int64_t>(end - i));
    row.at_or_add("query_len") = Value::of(batch[i].query_len);
    row.at_or_add("seq_len") = Value::of(batch[i].seq_len);
    if (batch[i].prefilling) row.at_or_add("prefilling") = Value::of(*batch[i].prefilling);
    i = end;
  }
  return rows;
}

}  // namespace

std::string problem_to_json(const Problem& problem, int indent) {
  Value document = Value::map();
  document.at_or_add("schema") = Value::of(std::int64_t{1});
  document.at_or_add("name") = Value::of(problem.scenario);
  document.at_or_add("description") = Value::of(problem.description);
  for (const Field& field : problem_fields()) {
    // Why here: contract section 1 lists the batch just before its options.
    if (field.key.starts_with("batch_options.")) {
      document.at_or_add("batch") = batch_rows(problem.batch);
    }
    if (field.key == "validation.max_rows") {
      Value& backends = document.at_or_add("backends") = Value::list();
      for (const std::string& name : problem.backends) backends.items.push_back(Value::of(name));
    }
    document.at_or_add_path(field.key) = field.get(problem);
  }
  return to_json_text(document, indent);
}

}  // namespace attnbench
