// The rows of semantics §13.1 in their order, in groups. A backend's peculiarities are columns of
// its Capability, so that this list is the same code for all: what one backend refuses and another
// takes can be seen in two tables of values.
#include "backends/attention/capability.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "backends/refusals.h"
#include "core/error.h"
#include "metadata/parts/local_chunks.h"

namespace attnbench {
namespace {

bool all_one(const std::vector<double>& scales) {
  return std::all_of(scales.begin(), scales.end(), [](double scale) { return scale == 1.0; });
}

/// A problem with what several rows of the table need to know about it.
struct Question {
  const Capability& can;
  const Problem& problem;
  const DeviceFacts& device;

  const AttentionSpec& attention() const { return problem.attention; }
  bool paged() const {
    return attention().type == AttentionType::kDecoder ||
           attention().type == AttentionType::kEncoderDecoder;
  }
  bool encoder() const { return is_encoder_type(attention().type); }
  bool sinks() const { return attention().sinks != SinksKind::kNone; }
  bool alibi() const { return attention().alibi != AlibiKind::kNone; }
  bool window() const { return attention().sliding_window.has_value(); }
  bool dcp() const { return problem.dcp.world_size > 1; }
  bool int8() const { return problem.kv_cache.int8_level > 0; }
  bool fp8_kv() const { return has_tensor_scales(problem.kv_cache.dtype); }
  bool fp8_descale() const {
    const KvCacheSpec& cache = problem.kv_cache;
    const bool ones = all_one(cache.k_scale) && all_one(cache.v_scale) && cache.q_scale == 1.0;
    return fp8_kv() && (cache.calculate_kv_scales || !ones);
  }
  bool forced_cascade() const { return forces_cascade(problem); }
  bool mm_prefix() const { return has_mm_prefix(attention()); }
};

/// Rows 1 to 5.
void add_format_reasons(const Question& q, Refusals& reasons) {
  const KvCacheDtype kv = q.problem.kv_cache.dtype;
  reasons.check_head_size(q.can.head_size_multiple, q.can.min_head_size, q.can.max_head_size);
  reasons.check_dtype(q.can.dtypes);
  reasons.check_kv_cache_dtype(q.can.kv_dtypes);
  const bool is_too_old = has_tensor_scales(kv) && q.device.sm < q.can.min_sm_fp8_kv;
  reasons.kv_cache_dtype(is_too_old && contains(q.can.kv_dtypes, kv),
                         fmt::format("compute capability {}.{} or newer for it",
                                     q.can.min_sm_fp8_kv / 10, q.can.min_sm_fp8_kv % 10));
  // int8 attention has pages of its own: any multiple of 16 up to 256.
  if (q.can.is_ixformer && q.int8()) {
    const int block_size = q.problem.kv_cache.block_size;
    reasons.block_size(block_size % 16 != 0 || block_size > 256, "a multiple of 16, at most 256");
  } else {
    reasons.check_block_size(q.can.block_sizes);
  }
  reasons.mm_prefix(!q.can.mm_prefix || q.dcp());
}

/// Rows 6 to 14.
void add_kind_reasons(const Question& q, Refusals& reasons) {
  const AttentionType type = q.attention().type;
  reasons.mla();
  reasons.sparse();
  reasons.per_head_scales(q.can.min_sm_per_head_scales < 0 ||
                          q.device.sm < q.can.min_sm_per_head_scales);
  reasons.compute_capability(q.can.min_sm);
  reasons.attention_type(type == AttentionType::kMmEncoder || type == AttentionType::kOp);
  reasons.non_causal(type == AttentionType::kDecoder && !q.can.non_causal_decoder);
  reasons.batch_invariance(!q.can.batch_invariant);
  reasons.add_if(q.sinks() && q.device.sm < q.can.min_sm_sinks,
                 "sink not supported on compute capability < 9.0");
}

/// Row 15, the lines of int8 levels and of sinks in layout IX.
void add_int8_reasons(const Question& q, Refusals& reasons) {
  const bool ix_sinks_in_cascade = q.can.is_ixformer && q.sinks() && q.forced_cascade();
  if (!q.int8()) {
    return reasons.add_if(ix_sinks_in_cascade, "attention sinks with ixformer cascade attention");
  }
  if (!q.can.is_ixformer) return reasons.int8();
  const AttentionType type = q.attention().type;
  const bool missing_keys =
      type == AttentionType::kEncoderDecoder &&
      std::any_of(q.problem.batch.begin(), q.problem.batch.end(),
                  [](const Request& request) { return request.query_len <= 1; });
  reasons.int8_with_fp8_cache(q.fp8_kv());
  reasons.add_if(q.sinks(), "attention sinks with int8 attention");
  reasons.add_if(q.forced_cascade(), "cascade attention with int8 attention");
  reasons.add_if(ix_sinks_in_cascade, "attention sinks with ixformer cascade attention");
  reasons.int8_with_dcp();
  reasons.int8_of_type(q.encoder() || missing_keys);
}

void add_cascade_reasons(const Question& q, Refusals& reasons) {
  if (!q.forced_cascade()) return;
  if (!q.can.cascade) return reasons.cascade_by(q.can.name);
  reasons.add_if(q.alibi(), "Cascade attention does not support ALiBi.");
  reasons.add_if(q.window(), "Cascade attention does not support sliding window.");
  reasons.add_if(q.fp8_descale(), "cascade attention with fp8 descale");
  // The sink counts in the prefix, and a merge takes an infinite LSE for "no key" (§6.3).
  reasons.add_if(has_infinite_sink(q.attention()), "cascade attention with an infinite sink");
  // Its queries stand behind no shared keys: every request has an encoder output of its own.
  reasons.add_if(q.attention().type == AttentionType::kEncoderDecoder,
                 "cascade attention for attention type encoder_decoder");
}

void add_dcp_reasons(const Question& q, Refusals& reasons) {
  if (!q.dcp()) return;
  if (!q.can.lse_for_dcp) return reasons.dcp_without_lse();
  reasons.add_if(q.sinks(), "DCP with sinks");
  // Made from the keys of the whole step, which is another step on every rank.
  reasons.add_if(q.problem.kv_cache.calculate_kv_scales, "DCP with calculate_kv_scales");
  reasons.add_if(q.forced_cascade(), "DCP with cascade");
  // New keys are a tensor of the step there, which a layer that shares a cache does not have.
  reasons.add_if(q.attention().kv_sharing, "DCP with KV sharing");
  reasons.add_if(q.attention().type != AttentionType::kDecoder,
                 fmt::format("DCP with attention type {}", to_string(q.attention().type)));
  reasons.dcp_transport();
  reasons.dcp_interleaved_speculation();
}

void add_encoder_reasons(const Question& q, Refusals& reasons) {
  if (!q.encoder()) return;
  if (!q.can.encoder_soft_cap_and_alibi) {
    const auto ignores = [&](bool ignored, const char* feature) {
      reasons.ignored_by_encoder(q.can.name, ignored, feature);
    };
    ignores(q.alibi(), "ALiBi");
    ignores(q.attention().logits_soft_cap > 0, "softcap");
    ignores(q.sinks(), "sinks");
    ignores(q.problem.output_quant.type == OutputQuantType::kFp8Static, "output_scale");
  } else {
    // Layout IX is vLLM's FLASH_ATTN too, under the name its users know.
    reasons.ignored_by_encoder("FLASH_ATTN", q.sinks(), "sinks");
  }
  reasons.quantised_kv_of_encoder();
}

void add_output_quant_reasons(const Question& q, Refusals& reasons) {
  const OutputQuantType type = q.problem.output_quant.type;
  if (type == OutputQuantType::kNone) return;
  if (!q.can.static_fp8_output) {
    reasons.add(
        fmt::format("fused output quantization is not yet supported for {}", q.can.implementation));
  } else {
    reasons.add_if(
        type != OutputQuantType::kFp8Static,
        "fused block_scale output quantization is not yet supported for TritonAttentionImpl");
  }
}

/// What chunks, which become requests of their own, cannot have (§3.11).
void add_chunk_reasons(const Question& q, Refusals& reasons) {
  if (!q.attention().chunk_size) return;
  reasons.add_if(q.alibi(), "chunked local attention with ALiBi");
  reasons.add_if(q.forced_cascade(), "cascade attention with chunked local attention");
  reasons.add_if(q.dcp(), "DCP with chunked local attention");
}

/// Row 15 as it is listed in §13.4, then what only attnbench knows.
void add_feature_reasons(const Question& q, Refusals& reasons) {
  const KvCacheSpec& cache = q.problem.kv_cache;
  add_int8_reasons(q, reasons);
  reasons.add_if(q.can.is_ixformer && q.fp8_descale(), "fp8 descale in ixformer layout");
  add_cascade_reasons(q, reasons);
  add_dcp_reasons(q, reasons);
  add_encoder_reasons(q, reasons);
  reasons.add_if(!q.can.fp8_query && q.fp8_kv() && cache.q_scale != 1.0,
                 "A non 1.0 q_scale is not currently supported.");
  add_output_quant_reasons(q, reasons);
  reasons.add_if(q.mm_prefix() && q.can.mm_prefix && q.attention().type != AttentionType::kDecoder,
                 "mm_prefix applies to decoder attention only");
  reasons.stored_head_size(contains(q.can.kv_dtypes, cache.dtype));
  reasons.add_if(is_rotated(cache.dtype) && q.problem.output_quant.type != OutputQuantType::kNone,
                 "fused output quantization of a rotated KV cache");
  reasons.fp8_query(!q.can.fp8_query || !q.fp8_kv());
  const bool e4m3_operands =
      q.can.fp8_query && q.fp8_kv() && !q.int8() && query_is_quantised(q.problem, q.can.rules);
  reasons.e4m3_probability(!e4m3_operands);
  reasons.fast_fp8_sums(!e4m3_operands);
  reasons.add_if(q.attention().alibi == AlibiKind::kSqrt && !q.can.alibi_sqrt,
                 "alibi sqrt not supported");
  reasons.v_head_size(q.paged());
  reasons.num_splits(!q.can.num_splits);
  add_chunk_reasons(q, reasons);
  reasons.add_if(cache.layers && q.int8(), "int8 attention with a cross-layer cache");
  reasons.add_if(q.attention().kv_sharing && q.int8(), "KV sharing with int8 attention");
}

}  // namespace

bool has_infinite_sink(const AttentionSpec& attention) {
  return std::ranges::any_of(attention.sink_values, [](double sink) {
    return sink == std::numeric_limits<double>::infinity();
  });
}

std::vector<std::string> refusals_of(const Capability& capability, const Problem& problem,
                                     const DeviceFacts& device) {
  const Question question{capability, problem, device};
  Refusals reasons(problem, device);
  add_format_reasons(question, reasons);
  add_kind_reasons(question, reasons);
  add_feature_reasons(question, reasons);
  return reasons.take();
}

void add_batch_facts(const BatchSplit& batch, Facts& facts) {
  facts.emplace_back("num_decodes", fmt::format("{}, num_decode_tokens {}", batch.num_decodes,
                                                batch.num_decode_tokens));
  facts.emplace_back("num_prefills", fmt::format("{}, num_prefill_tokens {}", batch.num_prefills,
                                                 batch.num_prefill_tokens));
}

void add_cache_facts(const Problem& problem, CacheLayoutKind kind, const KernelRules& rules,
                     Facts& facts) {
  const KvCacheSpec& cache = problem.kv_cache;
  const KvLayout layout = paged_layout(problem, kind);
  // Planes of IX are head-major whatever the setting (§2.2).
  const CacheLayout order = kind == CacheLayoutKind::kIx ? CacheLayout::kHnd : cache.layout;
  facts.emplace_back("cache layout", fmt::format("{} {}", to_string(kind), to_string(order)));
  facts.emplace_back("cache shape",
                     fmt::format("[{}] in memory", fmt::join(layout.physical_shape, ", ")));
  facts.emplace_back("cache element", dtype_name(resolve_store_rule(problem, rules).element));
  if (cache.layers) {
    facts.emplace_back("layers", fmt::format("{} in one allocation, this is number {}",
                                             *cache.layers, cache.layer));
  }
  if (cache.manager_block_size) {
    facts.emplace_back("blocks of the manager",
                       fmt::format("{} tokens, {} kernel blocks", *cache.manager_block_size,
                                   *cache.manager_block_size / cache.block_size));
  }
  if (problem.attention.chunk_size) {
    facts.emplace_back("local chunks",
                       fmt::format("{} of {} keys", problem_of_chunks(problem).batch.size(),
                                   *problem.attention.chunk_size));
  }
  if (problem.attention.kv_sharing) {
    facts.emplace_back("cache write", "none: another layer has written the keys (kv_sharing)");
  }
}

}  // namespace attnbench
