// One operation alone: which latents, layout and rotation it works on, and the keys that it does
// not read.
#include <fmt/format.h>

#include <string_view>

#include "scenario/resolve/resolve.h"

namespace attnbench {
namespace {

bool is_op(const Problem& problem) { return problem.attention.type == AttentionType::kOp; }

bool writes_cache(OpKind op) {
  return op == OpKind::kReshapeAndCache || op == OpKind::kRopeAndCache;
}
bool rotates(OpKind op) { return op == OpKind::kRope || op == OpKind::kRopeAndCache; }

OpCacheLayout default_layout(const Problem& problem) {
  const bool triton = problem.op.name == OpKind::kRopeAndCache;
  if (is_per_token_head(problem.kv_cache.dtype) || triton) return OpCacheLayout::kTr;
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

void check_section(const UnusedKeys& keys, OpKind op, const OpSpec& spec) {
  keys.reject_if(op == OpKind::kGather && !spec.mla, "op.mla",
                 "true (entries of K and V have no gather)", "false");
  keys.reject_if(op == OpKind::kMmQuant && spec.mla, "op.mla", "false", "true");
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

}  // namespace

void resolve_op_entries(const CaseValues& values, Problem& problem) {
  if (!is_op(problem) || values.gives("op.mla")) return;
  const std::optional<OpKind> op = problem.op.name;
  problem.op.mla = op != OpKind::kMmQuant && (op == OpKind::kGather || values.gives_section("mla"));
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

void check_op(const CaseValues& values, const Problem& problem) {
  if (!is_op(problem)) return;
  const OpKind op = *problem.op.name;
  const UnusedKeys keys(values, op);
  check_section(keys, op, problem.op);
  check_quantisation(keys, op, problem);
  check_sources(keys, op, problem);
  if (rotates(op)) check_rotation(values, problem);
  check_rows(values, problem);
}

}  // namespace attnbench
