#include "scenario/resolve/resolve.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "metadata/int_math.h"
#include "scenario/batch/batch_spec.h"
#include "scenario/resolve/cache.h"
#include "scenario/resolve/modes.h"

namespace attnbench {
namespace {

/// A dimension of MLA that follows from the others; given, it must agree.
void derive(const CaseValues& values, std::string_view key, int expected, std::string_view rule,
            int& dimension) {
  if (values.gives(key) && dimension != expected) {
    values.reject(ErrorKind::kShape, key, "expected {} = {} for type mla, found {}", rule, expected,
                  dimension);
  }
  dimension = expected;
}

void require(const CaseValues& values, std::string_view key) {
  if (!values.gives(key)) values.reject(ErrorKind::kFormat, key, "expected a value, found none");
}

void resolve_heads(const CaseValues& values, Problem& problem) {
  AttentionSpec& attention = problem.attention;
  require(values, "attention.num_heads");
  if (attention.type == AttentionType::kMla || problem.op.mla) {
    const MlaSpec& mla = problem.mla;
    derive(values, "attention.num_kv_heads", 1, "1", attention.num_kv_heads);
    derive(values, "attention.head_size", mla.qk_nope_head_dim + mla.qk_rope_head_dim,
           "qk_nope_head_dim + qk_rope_head_dim", attention.head_size);
    derive(values, "attention.v_head_size", mla.v_head_dim, "mla.v_head_dim",
           attention.v_head_size);
    return;
  }
  require(values, "attention.head_size");
  if (attention.num_kv_heads == 0) attention.num_kv_heads = attention.num_heads;
  if (attention.v_head_size == 0) attention.v_head_size = attention.head_size;
  if (attention.num_heads % attention.num_kv_heads != 0) {
    values.reject(ErrorKind::kShape, "attention.num_heads",
                  "expected a multiple of num_kv_heads = {}, found {}", attention.num_kv_heads,
                  attention.num_heads);
  }
}

/// Causal by type (semantics §3.7). A causal encoder is no attention that any backend knows, while
/// a non-causal decoder is (§13.1 row 12).
void resolve_causal(const CaseValues& values, AttentionSpec& attention) {
  const bool by_type =
      attention.type == AttentionType::kDecoder || attention.type == AttentionType::kMla;
  if (!values.gives("attention.causal")) attention.causal = by_type;
  if (attention.causal && !by_type && attention.type != AttentionType::kOp) {
    values.reject(ErrorKind::kConfig, "attention.causal", "expected false for type {}, found true",
                  to_string(attention.type));
  }
}

void resolve_mm_encoder(const CaseValues& values, Problem& problem) {
  MmEncoderSpec& mm = problem.mm_encoder;
  if (mm.layer_names.empty()) mm.layer_names = {"visual.blocks.0.attn.attn"};
  if (mm.hidden_size == 0)
    mm.hidden_size = problem.attention.num_heads * problem.attention.head_size;
  if (problem.attention.type == AttentionType::kMmEncoder && mm.hidden_size % mm.tp_size != 0) {
    values.reject(ErrorKind::kConfig, "mm_encoder.hidden_size",
                  "expected a multiple of tp_size = {}, found {}", mm.tp_size, mm.hidden_size);
  }
}

void check_sequence(const CaseValues& values, AttentionType type, std::size_t index,
                    const Request& request) {
  switch (type) {
    case AttentionType::kDecoder:
    case AttentionType::kMla:
    case AttentionType::kOp:
      if (request.seq_len >= request.query_len) return;
      values.reject(ErrorKind::kValue, "batch",
                    "expected seq_len >= query_len (the KV length counts the new tokens), found "
                    "query_len {} and seq_len {} in request {}",
                    request.query_len, request.seq_len, index);
    case AttentionType::kEncoder:
    case AttentionType::kEncoderOnly:
    case AttentionType::kMmEncoder:
      if (request.seq_len == request.query_len) return;
      values.reject(ErrorKind::kValue, "batch",
                    "expected seq_len = query_len for type {}, found query_len {} and seq_len {} "
                    "in request {}",
                    to_string(type), request.query_len, request.seq_len, index);
    case AttentionType::kEncoderDecoder:
      return;
  }
}

void check_per_head_list(const CaseValues& values, std::string_view key, std::size_t found,
                         int expected) {
  if (found != static_cast<std::size_t>(expected)) {
    values.reject(ErrorKind::kShape, key, "expected {} numbers, one a head, found {}", expected,
                  found);
  }
}

void check_mm_prefix(const CaseValues& values, const Problem& problem) {
  constexpr std::string_view kKey = "attention.mm_prefix_ranges";
  for (const auto& [request, ranges] : problem.attention.mm_prefix_ranges) {
    if (request >= problem.num_requests()) {
      values.reject(ErrorKind::kValue, kKey, "expected a request index below {}, found {}",
                    problem.num_requests(), request);
    }
    for (const auto& [start, end] : ranges) {
      if (start >= 0 && end >= start) continue;
      values.reject(ErrorKind::kValue, kKey, "expected 0 <= start <= end, found [{}, {}]", start,
                    end);
    }
  }
}

/// The batch that follows from other keys; a `batch` beside them must be the same.
std::string use_derived(const CaseValues& values, std::string_view source,
                        std::vector<Request> derived, Problem& problem) {
  const std::string label = canonical_batch_spec(derived);
  if (!problem.batch.empty() && problem.batch != derived) {
    values.reject(ErrorKind::kConfig, "batch", "expected {} as {} gives it, or no batch, found {}",
                  label, source, canonical_batch_spec(problem.batch));
  }
  problem.batch = std::move(derived);
  return label;
}

/// mm_encoder.batch_size rows of kv_len keys (semantics §10.2); the query length is the batch's
/// where one is given, else kv_len.
std::string use_dense_form(const CaseValues& values, Problem& problem) {
  const MmEncoderSpec& mm = problem.mm_encoder;
  const std::vector<Request>& rows = problem.batch;
  std::int64_t query_len = *mm.kv_len;
  if (!rows.empty()) {
    query_len = rows.front().query_len;
    const std::int64_t seq_len = rows.front().seq_len;
    const bool uniform = std::all_of(rows.begin(), rows.end(),
                                     [&](const Request& row) { return row == rows.front(); });
    const bool count_fits = rows.size() == 1 || problem.num_requests() == *mm.batch_size;
    if (!uniform || !count_fits || (seq_len != query_len && seq_len != *mm.kv_len)) {
      values.reject(ErrorKind::kConfig, "batch",
                    "expected one query length for batch_size = {} rows of kv_len = {}, found {}",
                    *mm.batch_size, *mm.kv_len, canonical_batch_spec(rows));
    }
  }
  problem.batch.assign(static_cast<std::size_t>(*mm.batch_size), {query_len, *mm.kv_len});
  return canonical_batch_spec(problem.batch);
}

void check_mm_forms(const CaseValues& values, const Problem& problem) {
  const MmEncoderSpec& mm = problem.mm_encoder;
  for (const char* key : {"mm_encoder.images", "mm_encoder.batch_size", "mm_encoder.kv_len"}) {
    if (values.gives(key) && problem.attention.type != AttentionType::kMmEncoder) {
      values.reject(ErrorKind::kConfig, key, "expected null unless type is mm_encoder, found {}",
                    describe(*values.find(key)));
    }
  }
  if (mm.batch_size.has_value() != mm.kv_len.has_value()) {
    values.reject(ErrorKind::kConfig, mm.batch_size ? "mm_encoder.batch_size" : "mm_encoder.kv_len",
                  "expected batch_size and kv_len both or neither, found only one");
  }
  if (mm.images && mm.batch_size) {
    values.reject(ErrorKind::kConfig, "mm_encoder.images",
                  "expected images or batch_size, found both");
  }
}

/// Tokens are counted in 32 bits in cumulative arrays.
void check_capacity(const CaseValues& values, const Problem& problem) {
  if (problem.num_requests() > kMaxRequests || problem.num_tokens() > kMaxTokens ||
      problem.num_keys() > kMaxTokens) {
    values.reject(ErrorKind::kCapacity, "batch",
                  "expected at most {} requests, {} tokens and {} keys, found {}, {} and {}",
                  kMaxRequests, kMaxTokens, kMaxTokens, problem.num_requests(),
                  problem.num_tokens(), problem.num_keys());
  }
}

/// Tokens before the new ones of the requests that have any (padding rows have none).
std::int64_t min_context_len(const Problem& problem) {
  std::int64_t shortest = kMaxTokens;
  for (const Request& request : problem.batch) {
    if (request.seq_len == 0 && request.query_len == 0) continue;
    shortest = std::min(shortest, request.seq_len - request.query_len);
  }
  return problem.batch.empty() ? 0 : std::max<std::int64_t>(0, shortest);
}

/// What a trace offers, in whole pages and no longer than cascade could use (§6.2).
void offer_shared_prefix(const CaseValues& values, std::int64_t tokens, Problem& problem) {
  const int page = problem.kv_cache.block_size;
  const bool is_given =
      values.gives("cascade.common_prefix_len") || !problem.cascade.groups.empty();
  if (is_given || page < 1) return;
  problem.cascade.common_prefix_len = round_down(std::min(tokens, min_context_len(problem)), page);
}

void resolve_dimensions(const CaseValues& values, Problem& problem) {
  AttentionSpec& attention = problem.attention;
  resolve_op_entries(values, problem);
  resolve_heads(values, problem);
  resolve_causal(values, attention);
  // head_size is P + R for MLA, so that one rule serves both (§8.1).
  if (attention.scale == 0) attention.scale = 1.0 / std::sqrt(double(attention.head_size));
  resolve_mm_encoder(values, problem);
}

void check_attention(const CaseValues& values, const Problem& problem) {
  const AttentionSpec& attention = problem.attention;
  if (attention.alibi_slopes) {
    if (attention.alibi == AlibiKind::kNone) {
      values.reject(ErrorKind::kConfig, "attention.alibi_slopes",
                    "expected null where attention.alibi is none, found {} numbers",
                    attention.alibi_slopes->size());
    }
    check_per_head_list(values, "attention.alibi_slopes", attention.alibi_slopes->size(),
                        attention.num_heads);
  }
  if (attention.sinks == SinksKind::kValues) {
    check_per_head_list(values, "attention.sinks", attention.sink_values.size(),
                        attention.num_heads);
  }
  check_mm_prefix(values, problem);
  // Why not for the form without cu_seqlens: there the KV length may differ from the query's
  // (§10.2).
  if (!problem.mm_encoder.batch_size) {
    for (std::size_t i = 0; i < problem.batch.size(); ++i) {
      check_sequence(values, attention.type, i, problem.batch[i]);
    }
  }
  if (problem.triton.path == TritonPath::k3d && problem.max_query_len() > 1) {
    values.reject(ErrorKind::kConfig, "triton.path",
                  "expected queries of one token for 3d, found a query_len of {}",
                  problem.max_query_len());
  }
}

std::string resolve_batch(const CaseValues& values, const Value* batch, BatchReader& reader,
                          Problem& problem) {
  const AttentionType type = problem.attention.type;
  std::string label;
  problem.batch.clear();
  if (batch != nullptr) {
    BatchResult read = reader.read(*batch, type == AttentionType::kEncoderDecoder);
    problem.batch = std::move(read.batch);
    label = std::move(read.label);
    if (read.shared_prefix_tokens > 0) {
      offer_shared_prefix(values, read.shared_prefix_tokens, problem);
    }
  }
  check_mm_forms(values, problem);
  if (problem.mm_encoder.images) {
    try {
      label = use_derived(values, "mm_encoder.images", image_requests(problem.mm_encoder), problem);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kConfig) throw;
      values.reject(error.kind(), "mm_encoder.images", "{}", error.what());
    }
  } else if (problem.mm_encoder.batch_size) {
    label = use_dense_form(values, problem);
  } else if (type == AttentionType::kOp && problem.op.tokens) {
    if (batch == nullptr) problem.batch = {{*problem.op.tokens, *problem.op.tokens}};
    if (batch == nullptr) label = canonical_batch_spec(problem.batch);
    if (problem.num_tokens() != *problem.op.tokens) {
      values.reject(ErrorKind::kConfig, "op.tokens", "expected {} as the batch has, found {}",
                    problem.num_tokens(), *problem.op.tokens);
    }
  }
  if (problem.batch.empty()) {
    values.reject(ErrorKind::kFormat, "batch", "expected a batch, found none");
  }
  check_capacity(values, problem);
  return label;
}

/// The probe is a draw with needles; so is any other that asks for them.
void resolve_inputs(const CaseValues& values, InputsSpec& inputs) {
  constexpr std::string_view kNeedles = "inputs.needles";
  const auto mean = static_cast<float>(inputs.mean);
  if (!std::isfinite(mean)) {
    values.reject(ErrorKind::kValue, "inputs.mean",
                  "expected a number that is finite in float32, found {}", inputs.mean);
  }
  if (inputs.file) return;
  if (inputs.distribution == Distribution::kOutlier && inputs.needles) {
    values.reject(ErrorKind::kConfig, kNeedles,
                  "expected false with inputs.distribution outlier, found true");
  }
  if (inputs.distribution != Distribution::kProbe) return;
  if (values.gives(kNeedles) && !inputs.needles) {
    values.reject(ErrorKind::kConfig, kNeedles,
                  "expected true with inputs.distribution probe, found false");
  }
  inputs.needles = true;
}

/// Kernels read scales in float32, where a double may vanish or be infinite.
void check_float32(const CaseValues& values, std::string_view key, double value) {
  const auto narrow = static_cast<float>(value);
  if (narrow > 0 && std::isfinite(narrow)) return;
  values.reject(ErrorKind::kValue, key,
                "expected a number that is finite and > 0 in float32, found {}", value);
}

void check_scales(const CaseValues& values, const Problem& problem) {
  const KvCacheSpec& cache = problem.kv_cache;
  for (const double scale : cache.k_scale) check_float32(values, "kv_cache.k_scale", scale);
  for (const double scale : cache.v_scale) check_float32(values, "kv_cache.v_scale", scale);
  check_float32(values, "kv_cache.q_scale", cache.q_scale);
  check_float32(values, "kv_cache.q_scale_constant", cache.q_scale_constant);
  check_float32(values, "kv_cache.k_scale_constant", cache.k_scale_constant);
  check_float32(values, "kv_cache.v_scale_constant", cache.v_scale_constant);
  check_float32(values, "attention.scale", problem.attention.scale);
  const double soft_cap = problem.attention.logits_soft_cap;
  if (soft_cap != 0) check_float32(values, "attention.logits_soft_cap", soft_cap);
  check_float32(values, "output_quant.scale", problem.output_quant.scale);
  check_float32(values, "mm_encoder.fp8_scale_save_margin",
                problem.mm_encoder.fp8_scale_save_margin);
}

}  // namespace

std::string resolve_case(const CaseValues& values, const Value* batch, BatchReader& reader,
                         Problem& problem) {
  resolve_dimensions(values, problem);
  std::string label = resolve_batch(values, batch, reader, problem);
  check_attention(values, problem);
  resolve_op(values, problem);
  check_scales(values, problem);
  resolve_inputs(values, problem.inputs);
  resolve_cache(values, problem);
  check_modes(values, problem);
  return label;
}

}  // namespace attnbench
