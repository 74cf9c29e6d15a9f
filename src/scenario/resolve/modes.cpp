#include "scenario/resolve/modes.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "metadata/batch.h"
#include "metadata/mla/prefill.h"

namespace attnbench {
namespace {

/// A prefill backend that a scenario names must fit (§13.3); whether the device does is a matter of
/// each backend.
void check_prefill_backend(const CaseValues& values, const Problem& problem) {
  constexpr std::string_view kKey = "mla.prefill_backend";
  const std::string& name = problem.mla.prefill_backend;
  if (!values.gives(kKey)) return;
  if (!is_mla_prefill_backend(name)) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected FLASH_ATTN_PREFILL, TRTLLM_RAGGED or FLASHINFER, found '{}'", name);
  }
  const std::vector<std::string> reasons =
      mla_prefill_reasons(name, problem.mla, problem.attention.dtype);
  if (!reasons.empty()) {
    values.reject(ErrorKind::kConfig, kKey, "{}", mla_prefill_message(name, reasons));
  }
}

/// §8.6: e4m3 prefill reads an fp8 cache as it is stored. Which devices do so is not known here.
void check_fp8_prefill(const CaseValues& values, const Problem& problem) {
  const bool is_native = has_fp8_mla_prefill(problem);
  const std::string_view key =
      is_native ? "mla.use_prefill_query_quantization" : "mla.emulate_fp8_prefill";
  if (!problem.mla.emulate_fp8_prefill && !is_native) return;
  const auto is_one = [](double scale) { return scale == 1.0; };
  const std::vector<double>& k_scale = problem.kv_cache.k_scale;
  if (!std::all_of(k_scale.begin(), k_scale.end(), is_one)) {
    values.reject(ErrorKind::kConfig, key,
                  "expected kv_cache.k_scale 1 (the cache is gathered raw), found {}",
                  k_scale.front());
  }
  const KvCacheDtype dtype = problem.kv_cache.dtype;
  if (!is_e4m3_cache(dtype)) {
    values.reject(ErrorKind::kConfig, key, "expected kv_cache.dtype fp8 with it, found {}",
                  to_string(dtype));
  }
}

/// Limits of the engine bound the batch, and size the workspace where nothing else does (§8.5).
void check_engine(const CaseValues& values, const Problem& problem) {
  const auto check = [&](std::string_view key, const std::optional<std::int64_t>& limit,
                         std::int64_t needed, std::string_view what) {
    if (!limit) return;
    if (problem.mla.workspace_tokens) {
      values.reject(ErrorKind::kConfig, key,
                    "expected null with mla.workspace_tokens (which it would size), found {}",
                    *limit);
    }
    if (*limit < needed) {
      values.reject(ErrorKind::kConfig, key, "expected at least the {} {} of the batch, found {}",
                    needed, what, *limit);
    }
  };
  check("engine.max_model_len", problem.engine.max_model_len, problem.max_seq_len(),
        "tokens of the longest request");
  check("engine.max_num_seqs", problem.engine.max_num_seqs, problem.num_requests(), "requests");
}

/// Keys of other types than theirs, which nothing would read.
void check_types(const CaseValues& values, const Problem& problem) {
  const AttentionType type = problem.attention.type;
  const auto reject_unless = [&](bool applies, std::string_view key, std::string_view types) {
    if (applies || !values.gives(key)) return;
    values.reject(ErrorKind::kConfig, key, "expected it with type {} only, found type {}", types,
                  to_string(type));
  };
  const bool is_mla = type == AttentionType::kMla;
  reject_unless(is_mla, "engine.max_model_len", "mla");
  reject_unless(is_mla, "engine.max_num_seqs", "mla");
  const bool has_decodes =
      is_mla || type == AttentionType::kDecoder || type == AttentionType::kEncoderDecoder;
  reject_unless(has_decodes, "attention.num_splits", "decoder, encoder_decoder or mla");
  reject_unless(has_decodes && !is_mla, "attention.split_form", "decoder or encoder_decoder");
  reject_unless(type == AttentionType::kDecoder, "attention.chunk_size", "decoder");
  reject_unless(is_mla || type == AttentionType::kDecoder || !problem.attention.kv_sharing,
                "attention.kv_sharing", "decoder or mla");
}

/// §3.11: chunks are whole pages of a causal decoder, and a window would be a second one.
void check_chunks(const CaseValues& values, const Problem& problem) {
  constexpr std::string_view kKey = "attention.chunk_size";
  const AttentionSpec& attention = problem.attention;
  if (!attention.chunk_size) return;
  if (!attention.causal) {
    values.reject(ErrorKind::kConfig, kKey, "expected attention.causal true with it, found false");
  }
  if (attention.sliding_window) {
    values.reject(ErrorKind::kConfig, kKey, "expected null with attention.sliding_window, found {}",
                  *attention.chunk_size);
  }
  if (!attention.mm_prefix_ranges.empty()) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected null with attention.mm_prefix_ranges, found {}", *attention.chunk_size);
  }
  if (*attention.chunk_size % problem.kv_cache.block_size != 0) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected a multiple of kv_cache.block_size = {}, found {}",
                  problem.kv_cache.block_size, *attention.chunk_size);
  }
}

/// §18.2: in batch-invariant mode the order of every sum is fixed.
void check_num_splits(const CaseValues& values, const Problem& problem) {
  const std::optional<int>& num_splits = problem.attention.num_splits;
  const SplitForm form = problem.attention.split_form;
  if (form != SplitForm::kAuto && problem.attention.batch_invariant) {
    values.reject(ErrorKind::kConfig, "attention.split_form",
                  "expected auto with attention.batch_invariant, found {}", to_string(form));
  }
  if (form == SplitForm::kPlanned && num_splits) {
    values.reject(ErrorKind::kConfig, "attention.split_form",
                  "expected auto, separate or joined with attention.num_splits, found planned");
  }
  if (!num_splits || *num_splits == 1 || !problem.attention.batch_invariant) return;
  values.reject(ErrorKind::kConfig, "attention.num_splits",
                "expected 1 or null with attention.batch_invariant, found {}", *num_splits);
}

/// §8.2: weights are dequantised before they are split, which upstream does by the method that they
/// were quantised with.
void check_kv_b_proj(const CaseValues& values, const MlaSpec& mla) {
  constexpr std::string_view kKey = "mla.kv_b_proj.dtype";
  if (mla.kv_b_proj == WeightFormat::kNvfp4) {
    values.reject(
        ErrorKind::kConfig, kKey,
        "expected auto or fp8 (NVFP4 weights, e2m1 with an e4m3 scale for 16 of them, are "
        "not dequantised here), found nvfp4");
  }
  if (mla.kv_b_proj == WeightFormat::kAwq) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected auto or fp8 (AWQ weights, 4-bit integers with zero points, are not "
                  "dequantised here), found awq");
  }
  if (mla.kv_b_proj_block && mla.kv_b_proj != WeightFormat::kFp8) {
    values.reject(ErrorKind::kConfig, "mla.kv_b_proj.block_size",
                  "expected null with mla.kv_b_proj.dtype {}, found {}", to_string(mla.kv_b_proj),
                  *mla.kv_b_proj_block);
  }
}

/// What the indexer chooses is neither thinned nor repeated, and chosen of keys that are drawn.
void check_indexer(const CaseValues& values, const Problem& problem) {
  if (problem.mla.sparse_indices != SparseIndices::kIndexer) return;
  constexpr std::string_view kKey = "mla.sparse.indices";
  if (!problem.mla.sparse_topk) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected random without mla.sparse_topk, found indexer");
  }
  if (problem.mla.sparse_valid != 1.0 || problem.mla.sparse_duplicates != 0.0) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected random with mla.sparse.valid or duplicates, found indexer");
  }
  if (!problem.mla.sparse_topk_length.empty() || problem.mla.sparse_extra_topk) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected random with mla.sparse.topk_length or extra_topk, found indexer");
  }
  if (problem.inputs.file) {
    values.reject(ErrorKind::kConfig, kKey,
                  "expected random with inputs.file (which has no indexer), found indexer");
  }
  if (!problem.mla.index_ue8m0) {
    values.reject(
        ErrorKind::kConfig, "mla.index_ue8m0",
        "expected true with mla.sparse.indices indexer (codes by other scales are rounded, "
        "and choices could differ), found false");
  }
  // Sums over more heads than these are no longer exact, and choices could differ (§8.10).
  constexpr int kMostExactHeads = 512;
  if (problem.mla.index_n_heads > kMostExactHeads) {
    values.reject(ErrorKind::kConfig, "mla.index_n_heads",
                  "expected at most {} with indexer, found {}", kMostExactHeads,
                  problem.mla.index_n_heads);
  }
}

/// One number, or one for each request, none beyond the list.
void check_topk_lengths(const CaseValues& values, std::string_view key,
                        const std::vector<int>& lengths, int topk, std::size_t num_requests) {
  if (lengths.size() > 1 && lengths.size() != num_requests) {
    values.reject(ErrorKind::kShape, key, "expected one integer, or {}, one a request, found {}",
                  num_requests, lengths.size());
  }
  for (const int length : lengths) {
    if (length <= topk) continue;
    values.reject(ErrorKind::kValue, key, "expected at most {}, the keys of a list, found {}", topk,
                  length);
  }
}

/// What FlashMLA's sparse kernels take beside the lists (§8.9).
void check_sparse_operands(const CaseValues& values, const Problem& problem) {
  const MlaSpec& mla = problem.mla;
  if (!mla.sparse_topk) return;
  check_topk_lengths(values, "mla.sparse.topk_length", mla.sparse_topk_length, *mla.sparse_topk,
                     problem.batch.size());
  if (!mla.sparse_extra_topk) return;
  constexpr int kExtraMultiple = 128;
  if (*mla.sparse_extra_topk % kExtraMultiple != 0) {
    values.reject(ErrorKind::kConfig, "mla.sparse.extra_topk",
                  "expected a multiple of {}, found {}", kExtraMultiple, *mla.sparse_extra_topk);
  }
  if (!mla.sparse_extra_keys) {
    values.reject(ErrorKind::kConfig, "mla.sparse.extra_keys",
                  "expected how many keys a request has in the second cache, found null");
  }
  if (problem.inputs.file) {
    values.reject(ErrorKind::kConfig, "mla.sparse.extra_topk",
                  "expected null with inputs.file (which has no second cache), found {}",
                  *mla.sparse_extra_topk);
  }
  check_topk_lengths(values, "mla.sparse.extra_topk_length", mla.sparse_extra_topk_length,
                     *mla.sparse_extra_topk, problem.batch.size());
}

void check_mla(const CaseValues& values, const Problem& problem) {
  const MlaSpec& mla = problem.mla;
  if (mla.sparse_topk && *mla.sparse_topk % 128 != 0) {
    values.reject(ErrorKind::kConfig, "mla.sparse_topk", "expected a multiple of 128, found {}",
                  *mla.sparse_topk);
  }
  if (mla.workspace_tokens && *mla.workspace_tokens % problem.dcp.world_size != 0) {
    values.reject(ErrorKind::kConfig, "mla.workspace_tokens",
                  "expected a multiple of dcp.world_size = {}, found {}", problem.dcp.world_size,
                  *mla.workspace_tokens);
  }
  if (mla.q_pad_num_heads && *mla.q_pad_num_heads < problem.attention.num_heads) {
    values.reject(ErrorKind::kConfig, "mla.q_pad_num_heads",
                  "expected at least attention.num_heads = {}, found {}",
                  problem.attention.num_heads, *mla.q_pad_num_heads);
  }
  check_kv_b_proj(values, mla);
  check_indexer(values, problem);
  check_sparse_operands(values, problem);
  check_prefill_backend(values, problem);
  check_fp8_prefill(values, problem);
  check_engine(values, problem);
}

/// The chunk plan of one kind of MLA backend (§8.5). E-VALUE for prefills in the wrong order
/// (§1.4), E-CONFIG for a workspace that is too small.
void plan_dense_mla(const Problem& problem, MetadataBuilder builder) {
  const int first_prefill = split_batch(problem, builder).num_decodes;
  plan_mla_chunks(query_start_loc_of(problem, first_prefill), seq_lens_of(problem, first_prefill),
                  mla_workspace_tokens(problem), problem.kv_cache.block_size,
                  DcpGroup::of(problem));
}

/// Nothing when `check` passes for one of the dense MLA backends, else the error of the first.
template <typename Check>
std::optional<Error> error_of_all(const Check& check) {
  std::optional<Error> first;
  for (const MetadataBuilder builder : {MetadataBuilder::kMlaSingleOnly, MetadataBuilder::kFlashMla,
                                        MetadataBuilder::kFlashAttnMla}) {
    try {
      check(builder);
      return std::nullopt;
    } catch (const Error& error) {
      if (!first) first = error;
    }
  }
  return first;
}

/// A batch that no dense MLA backend could run, or capture. Sparse ones run every row as a decode.
void check_mla_batch(const CaseValues& values, const Problem& problem) {
  if (problem.mla.sparse_topk) return;
  const auto planned =
      error_of_all([&](MetadataBuilder builder) { plan_dense_mla(problem, builder); });
  if (planned) {
    values.reject(planned->kind(),
                  planned->kind() == ErrorKind::kConfig ? "mla.workspace_tokens" : "batch", "{}",
                  planned->what());
  }
  if (problem.timing.mode != TimingMode::kGraph) return;
  const auto captured =
      error_of_all([&](MetadataBuilder builder) { check_mla_graph_capture(problem, builder); });
  if (captured) values.reject(captured->kind(), "timing.mode", "{}", captured->what());
}

/// Semantics §10.6, §10.7.
void check_mm_encoder(const CaseValues& values, const Problem& problem) {
  const MmEncoderSpec& mm = problem.mm_encoder;
  if (problem.attention.v_head_size != problem.attention.head_size) {
    values.reject(ErrorKind::kShape, "attention.v_head_size",
                  "expected head_size = {} for {} {}, found {}", problem.attention.head_size,
                  problem.op.name ? "op" : "type",
                  problem.op.name ? to_string(*problem.op.name) : "mm_encoder",
                  problem.attention.v_head_size);
  }
  const bool is_op = problem.attention.type == AttentionType::kOp;
  const bool fp8 = is_op || mm.attn_dtype == MmAttnDtype::kFp8;
  for (const char* key : {"mm_encoder.fp8_scale_path", "mm_encoder.fp8_scale_save_path"}) {
    if (!fp8 && values.gives(key)) {
      values.reject(ErrorKind::kConfig, key, "expected mm_encoder.attn_dtype fp8 with it, found {}",
                    to_string(mm.attn_dtype));
    }
  }
  if (mm.fp8_scale_path && mm.fp8_scale_save_path) {
    values.reject(ErrorKind::kConfig, "mm_encoder.fp8_scale_save_path",
                  "expected no fp8_scale_path beside it (saving requires dynamic scaling), found "
                  "both");
  }
  if (fp8 && !mm.fp8_scale_path && problem.timing.mode == TimingMode::kGraph) {
    values.reject(ErrorKind::kConfig, "timing.mode",
                  "expected stream with dynamic fp8 scales (they cannot be captured), found graph");
  }
}

/// Semantics §9: groups must fill the row of H * Dv columns, under DCP that of a rank's own heads.
void check_output_quant(const CaseValues& values, const Problem& problem) {
  const std::int64_t columns = std::int64_t{problem.attention.num_heads / problem.dcp.world_size} *
                               problem.attention.v_head_size;
  const char* heads = problem.dcp.world_size > 1 ? "num_heads / dcp.world_size" : "num_heads";
  const auto check = [&](std::int64_t group) {
    if (columns % group == 0) return;
    values.reject(ErrorKind::kShape, "output_quant.type",
                  "expected {} * v_head_size to be a multiple of {} for {}, found {}", heads, group,
                  to_string(problem.output_quant.type), columns);
  };
  switch (problem.output_quant.type) {
    case OutputQuantType::kFp8Group128:
      return check(128);
    case OutputQuantType::kFp8Group64:
      return check(64);
    case OutputQuantType::kNvfp4:
      return check(16);
    case OutputQuantType::kNone:
    case OutputQuantType::kFp8Static:
      return;
  }
}

bool is_op(const Problem& problem) { return problem.attention.type == AttentionType::kOp; }

bool writes_cache(OpKind op) {
  return op == OpKind::kReshapeAndCache || op == OpKind::kRopeAndCache;
}
bool rotates(OpKind op) { return op == OpKind::kRope || op == OpKind::kRopeAndCache; }

OpCacheLayout default_layout(const Problem& problem) {
  const bool triton = problem.op.name == OpKind::kRopeAndCache;
  const bool inner =
      kv_format(problem.kv_cache.dtype).of_heads && has_inner_scales(problem.kv_cache.dtype);
  if (inner || triton) return OpCacheLayout::kTr;
  return problem.kv_cache.int8_level > 0 ? OpCacheLayout::kIx : OpCacheLayout::kFa;
}

/// A key that stands away from its default although the operation has no use for it.
class UnusedKeys {
 public:
  UnusedKeys(const CaseValues& values, OpKind op) : values_(values), op_(op) {}

  template <typename Expected, typename Found>
  void reject_if(bool unused, std::string_view key, const Expected& expected,
                 const Found& found) const {
    if (!unused) return;
    values_.reject(ErrorKind::kConfig, key, "expected {} for op {}, found {}", expected,
                   to_string(op_), found);
  }

 private:
  const CaseValues& values_;
  OpKind op_;
};

bool is_of_indexer(OpKind op) {
  return op == OpKind::kIndexKeyCache || op == OpKind::kIndexLogits || op == OpKind::kIndexTopk;
}

/// Operations that have no form for latent entries.
bool has_no_latents(OpKind op) {
  return op == OpKind::kMmQuant || op == OpKind::kMetadata || is_of_indexer(op);
}

void check_section(const UnusedKeys& keys, OpKind op, const OpSpec& spec) {
  keys.reject_if(op == OpKind::kGather && !spec.mla, "op.mla",
                 "true (entries of K and V have no gather)", "false");
  keys.reject_if(has_no_latents(op) && spec.mla, "op.mla", "false", "true");
  const bool has_layout = writes_cache(op) && !spec.mla;
  keys.reject_if(!has_layout && spec.cache_layout != OpCacheLayout::kAuto, "op.cache_layout",
                 spec.mla ? "auto with latent entries" : "auto", to_string(spec.cache_layout));
  keys.reject_if(op != OpKind::kGather && spec.raw, "op.raw", "false", "true");
  keys.reject_if(op != OpKind::kMerge && spec.tokens_with_context, "op.tokens_with_context", "null",
                 spec.tokens_with_context.value_or(0));
  keys.reject_if(!rotates(op) && spec.rotary_dim, "op.rotary_dim", "null",
                 spec.rotary_dim.value_or(0));
  keys.reject_if(!rotates(op) && spec.rope_style != RopePairs::kNeox, "op.rope_style", "neox",
                 to_string(spec.rope_style));
  keys.reject_if(!rotates(op) && spec.rope_base != OpSpec{}.rope_base, "op.rope_base",
                 OpSpec{}.rope_base, spec.rope_base);
  keys.reject_if(!rotates(op) && spec.cos_sin_dtype != CosSinDtype::kAuto, "op.cos_sin_dtype",
                 "auto", to_string(spec.cos_sin_dtype));
  keys.reject_if(op != OpKind::kDcpCorrect && spec.lse_base != LseBase::kE, "op.lse_base", "e",
                 to_string(spec.lse_base));
}

void check_quantisation(const UnusedKeys& keys, OpKind op, const Problem& problem) {
  const OutputQuantType type = problem.output_quant.type;
  keys.reject_if(op == OpKind::kOutputQuant && type == OutputQuantType::kNone, "output_quant.type",
                 "a quantisation", "none");
  keys.reject_if(
      op == OpKind::kMerge && type != OutputQuantType::kNone && type != OutputQuantType::kFp8Static,
      "output_quant.type", "none or fp8_static", to_string(type));
  keys.reject_if(
      op != OpKind::kOutputQuant && op != OpKind::kMerge && type != OutputQuantType::kNone,
      "output_quant.type", "none", to_string(type));
  const bool int8 = op == OpKind::kReshapeAndCache || op == OpKind::kQuantize;
  keys.reject_if(problem.kv_cache.int8_level > 0 && (!int8 || problem.op.mla),
                 "kv_cache.int8_level", problem.op.mla ? "0 with latent entries" : "0",
                 problem.kv_cache.int8_level);
  keys.reject_if(problem.validation.max_quantization_error.has_value(),
                 "validation.max_quantization_error", "null",
                 problem.validation.max_quantization_error.value_or(0));
  keys.reject_if(problem.mm_encoder.fp8_scale_save_path.has_value(),
                 "mm_encoder.fp8_scale_save_path", "null",
                 problem.mm_encoder.fp8_scale_save_path.value_or(""));
}

void check_sources(const UnusedKeys& keys, OpKind op, const Problem& problem) {
  const bool ranks =
      op == OpKind::kDcpCorrect || (op == OpKind::kReshapeAndCache && !problem.op.mla);
  keys.reject_if(!ranks && problem.dcp.world_size > 1, "dcp.world_size", "1",
                 problem.dcp.world_size);
  const bool has_keys = op == OpKind::kReshapeAndCache || rotates(op) || op == OpKind::kQuantize ||
                        op == OpKind::kMmQuant;
  keys.reject_if(problem.inputs.file && (!has_keys || problem.op.mla), "inputs.file",
                 "null (its tensors are those of attention)", problem.inputs.file.value_or(""));
}

void check_rotation(const CaseValues& values, const Problem& problem) {
  const int rotated = *problem.op.rotary_dim;
  const int head = problem.op.mla ? problem.mla.qk_rope_head_dim : problem.attention.head_size;
  if (rotated % 2 == 0 && rotated <= head) return;
  values.reject(ErrorKind::kShape, "op.rotary_dim",
                "expected an even number of at most {} elements, found {}", head, rotated);
}

/// §6.3 with the rows of a batch; §8.4.3: an upconverted request starts at its first token.
void check_rows(const CaseValues& values, const Problem& problem) {
  const std::int64_t tokens = problem.num_tokens();
  if (problem.op.tokens_with_context.value_or(0) > tokens) {
    values.reject(ErrorKind::kConfig, "op.tokens_with_context",
                  "expected at most the {} tokens, found {}", tokens,
                  *problem.op.tokens_with_context);
  }
  const bool upconverts =
      problem.op.name == OpKind::kGather && !problem.op.raw && is_packed(problem.kv_cache.dtype);
  for (const Request& request : problem.batch) {
    if (!upconverts || request.seq_len == request.query_len) continue;
    values.reject(ErrorKind::kConfig, "batch",
                  "expected requests without context ({} is upconverted from position 0), "
                  "found query_len {} and seq_len {}",
                  to_string(problem.kv_cache.dtype), request.query_len, request.seq_len);
  }
}

/// Contradictions of an operation; output_quant and mm_encoder as far as it reads them.
void check_op(const CaseValues& values, const Problem& problem) {
  if (!is_op(problem)) return;
  const OpKind op = *problem.op.name;
  const UnusedKeys keys(values, op);
  check_section(keys, op, problem.op);
  check_quantisation(keys, op, problem);
  check_sources(keys, op, problem);
  if (rotates(op)) check_rotation(values, problem);
  if (op == OpKind::kIndexTopk && !problem.mla.sparse_topk) {
    values.reject(ErrorKind::kConfig, "mla.sparse_topk",
                  "expected how many keys are chosen for op index_topk, found null");
  }
  check_rows(values, problem);
}

}  // namespace

void check_modes(const CaseValues& values, const Problem& problem) {
  check_types(values, problem);
  check_num_splits(values, problem);
  check_chunks(values, problem);
  if (problem.attention.type == AttentionType::kMla) {
    check_mla(values, problem);
    check_mla_batch(values, problem);
  }
  check_op(values, problem);
  const bool quantises_encoder =
      problem.attention.type == AttentionType::kOp && problem.op.name == OpKind::kMmQuant;
  if (problem.attention.type == AttentionType::kMmEncoder || quantises_encoder) {
    check_mm_encoder(values, problem);
  }
  check_output_quant(values, problem);
}

void resolve_op_entries(const CaseValues& values, Problem& problem) {
  if (!is_op(problem) || values.gives("op.mla")) return;
  const std::optional<OpKind> op = problem.op.name;
  const bool has_none = op && has_no_latents(*op);
  problem.op.mla = !has_none && (op == OpKind::kGather || values.gives_section("mla"));
}

void resolve_op(const CaseValues& values, Problem& problem) {
  if (!is_op(problem)) return;
  if (!problem.op.name) {
    values.reject(ErrorKind::kFormat, "op.name", "expected an operation for type op, found none");
  }
  OpSpec& spec = problem.op;
  if (writes_cache(*spec.name) && !spec.mla && spec.cache_layout == OpCacheLayout::kAuto) {
    spec.cache_layout = default_layout(problem);
  }
  if (rotates(*spec.name) && !spec.rotary_dim) {
    spec.rotary_dim = spec.mla ? problem.mla.qk_rope_head_dim : problem.attention.head_size;
  }
}

}  // namespace attnbench
