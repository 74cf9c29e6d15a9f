#include "scenario/resolve/resolve.h"

#include <cmath>
#include <cstdlib>

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

}  // namespace

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

std::string resolve_case(const CaseValues& values, const Value* batch, BatchReader& reader,
                         Problem& problem) {
  resolve_dimensions(values, problem);
  std::string label = resolve_batch(values, batch, reader, problem);
  check_attention(values, problem);
  resolve_op(values, problem);
  resolve_cache(values, problem);
  check_modes(values, problem);
  return label;
}

}  // namespace attnbench
