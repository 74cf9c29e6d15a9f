// Reasons against a problem, in the order and words of semantics §13.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "backends/attention/capability.h"
#include "core/error.h"

namespace attnbench {
namespace {

constexpr const char* kMmPrefixReason = "partial multimodal token full attention not supported";

template <typename T>
bool contains(const std::vector<T>& values, T value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

bool all_one(const std::vector<double>& scales) {
  return std::all_of(scales.begin(), scales.end(), [](double scale) { return scale == 1.0; });
}

/// A problem with the questions that several rows of the table ask.
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
  bool forced_cascade() const {
    return problem.cascade.mode == CascadeMode::kAlways && problem.cascade.common_prefix_len > 0;
  }
  bool mm_prefix() const {
    for (const auto& [request, ranges] : attention().mm_prefix_ranges) {
      for (const auto& range : ranges) {
        if (range[0] < range[1]) return true;
      }
    }
    return false;
  }
};

class Reasons {
 public:
  void add_if(bool condition, std::string reason) {
    if (condition) list_.push_back(std::move(reason));
  }
  bool none() const { return list_.empty(); }
  std::vector<std::string> take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

/// Rows 1 to 5.
void add_format_reasons(const Question& q, Reasons& reasons) {
  const int d = q.attention().head_size;
  const KvCacheDtype kv = q.problem.kv_cache.dtype;
  reasons.add_if(
      d % q.can.head_size_multiple != 0 || d < q.can.min_head_size || d > q.can.max_head_size,
      "head_size not supported");
  reasons.add_if(!contains(q.can.dtypes, q.attention().dtype), "dtype not supported");
  reasons.add_if(!contains(q.can.kv_dtypes, kv) ||
                     (has_tensor_scales(kv) && q.device.sm < q.can.min_sm_fp8_kv),
                 "kv_cache_dtype not supported");
  // int8 attention has pages of its own: any multiple of 16 up to 256.
  const int block_size = q.problem.kv_cache.block_size;
  const bool block_size_fits = q.can.is_ixformer && q.int8()
                                   ? block_size % 16 == 0 && block_size <= 256
                                   : supports_block_size(block_size, q.can.block_sizes);
  reasons.add_if(!block_size_fits, "block_size not supported");
  reasons.add_if(q.mm_prefix() && (!q.can.mm_prefix || q.dcp()), kMmPrefixReason);
}

/// Rows 6 to 14.
void add_kind_reasons(const Question& q, Reasons& reasons) {
  const AttentionType type = q.attention().type;
  const bool per_head =
      q.problem.kv_cache.k_scale.size() > 1 || q.problem.kv_cache.v_scale.size() > 1;
  reasons.add_if(type == AttentionType::kMla, "MLA not supported");
  reasons.add_if(type == AttentionType::kMla && q.problem.mla.sparse_topk, "sparse not supported");
  reasons.add_if(
      per_head && (q.can.min_sm_per_head_scales < 0 || q.device.sm < q.can.min_sm_per_head_scales),
      "per-head quant scales not supported");
  reasons.add_if(q.device.sm < q.can.min_sm, "compute capability not supported");
  reasons.add_if(type == AttentionType::kMmEncoder || type == AttentionType::kOp,
                 fmt::format("attention type {} not supported", to_string(type)));
  reasons.add_if(
      type == AttentionType::kDecoder && !q.attention().causal && !q.can.non_causal_decoder,
      "non-causal attention not supported");
  reasons.add_if(q.attention().batch_invariant && !q.can.batch_invariant,
                 "batch invariance not supported");
  reasons.add_if(q.sinks() && q.device.sm < q.can.min_sm_sinks,
                 "sink not supported on compute capability < 9.0");
}

/// Row 15, the lines of int8 levels and of sinks in layout IX.
void add_int8_reasons(const Question& q, Reasons& reasons) {
  const bool ix_sinks_in_cascade = q.can.is_ixformer && q.sinks() && q.forced_cascade();
  if (!q.int8()) {
    return reasons.add_if(ix_sinks_in_cascade, "attention sinks with ixformer cascade attention");
  }
  if (!q.can.is_ixformer) return reasons.add_if(true, "int8 attention not supported");
  const AttentionType type = q.attention().type;
  const bool missing_keys =
      type == AttentionType::kEncoderDecoder &&
      std::any_of(q.problem.batch.begin(), q.problem.batch.end(),
                  [](const Request& request) { return request.query_len <= 1; });
  reasons.add_if(q.fp8_kv(), fmt::format("int8 attention level {} with fp8 kv cache",
                                         q.problem.kv_cache.int8_level));
  reasons.add_if(q.sinks(), "attention sinks with int8 attention");
  reasons.add_if(q.forced_cascade(), "cascade attention with int8 attention");
  reasons.add_if(ix_sinks_in_cascade, "attention sinks with ixformer cascade attention");
  reasons.add_if(q.dcp(), "DCP with int8 attention");
  reasons.add_if(q.encoder() || missing_keys,
                 fmt::format("int8 attention for attention type {}", to_string(type)));
}

void add_cascade_reasons(const Question& q, Reasons& reasons) {
  if (!q.forced_cascade()) return;
  if (!q.can.cascade) {
    reasons.add_if(true, fmt::format("cascade attention not supported by {}", q.can.name));
    return;
  }
  reasons.add_if(q.alibi(), "Cascade attention does not support ALiBi.");
  reasons.add_if(q.window(), "Cascade attention does not support sliding window.");
  reasons.add_if(q.fp8_descale(), "cascade attention with fp8 descale");
  // The sink counts in the prefix, and a merge takes an infinite LSE for "no key" (§6.3).
  reasons.add_if(has_infinite_sink(q.attention()), "cascade attention with an infinite sink");
  // Its queries stand behind no shared keys: every request has an encoder output of its own.
  reasons.add_if(q.attention().type == AttentionType::kEncoderDecoder,
                 "cascade attention for attention type encoder_decoder");
}

void add_dcp_reasons(const Question& q, Reasons& reasons) {
  if (!q.dcp()) return;
  if (!q.can.lse_for_dcp) return reasons.add_if(true, "DCP requires LSE from decode");
  reasons.add_if(q.window(), "DCP with window");
  reasons.add_if(q.alibi(), "DCP with ALiBi");
  reasons.add_if(q.sinks(), "DCP with sinks");
  reasons.add_if(q.fp8_kv(), "DCP with fp8");
  reasons.add_if(q.forced_cascade(), "DCP with cascade");
  reasons.add_if(q.attention().type != AttentionType::kDecoder,
                 fmt::format("DCP with attention type {}", to_string(q.attention().type)));
  reasons.add_if(q.problem.dcp.transport == DcpTransport::kNccl, "DCP over nccl: NCCL not found");
  reasons.add_if(q.problem.dcp.interleave_size > 1 && q.attention().num_speculative_tokens > 0,
                 "MTP with cp_kv_cache_interleave_size > 1 is not supported");
}

void add_encoder_reasons(const Question& q, Reasons& reasons) {
  if (!q.encoder()) return;
  if (!q.can.encoder_soft_cap_and_alibi) {
    const auto ignores = [&](const char* feature) {
      return fmt::format("{} encoder attention ignores {}", q.can.name, feature);
    };
    reasons.add_if(q.alibi(), ignores("ALiBi"));
    reasons.add_if(q.attention().logits_soft_cap > 0, ignores("softcap"));
    reasons.add_if(q.sinks(), ignores("sinks"));
    reasons.add_if(q.problem.output_quant.type == OutputQuantType::kFp8Static,
                   ignores("output_scale"));
  } else {
    // Layout IX is vLLM's FLASH_ATTN too, under the name its users know.
    reasons.add_if(q.sinks(), "FLASH_ATTN encoder attention ignores sinks");
  }
  reasons.add_if(is_quantised(q.problem.kv_cache.dtype),
                 "quantized KV cache is not supported for encoder attention");
}

void add_output_quant_reasons(const Question& q, Reasons& reasons) {
  const OutputQuantType type = q.problem.output_quant.type;
  if (type == OutputQuantType::kNone) return;
  if (!q.can.static_fp8_output) {
    reasons.add_if(true, "fused output quantization is not yet supported for FlashAttentionImpl");
  } else {
    reasons.add_if(
        type != OutputQuantType::kFp8Static,
        "fused block_scale output quantization is not yet supported for TritonAttentionImpl");
  }
}

/// Row 15 as it is listed in §13.4, then what only attnbench knows.
void add_feature_reasons(const Question& q, Reasons& reasons) {
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
  reasons.add_if(is_per_token_head(cache.dtype) && contains(q.can.kv_dtypes, cache.dtype) &&
                     q.attention().head_size % 4 != 0,
                 "per-token-head KV cache requires head_size % 4 == 0");
  reasons.add_if(
      q.attention().query_dtype == QueryDtype::kFp8E4M3 && (!q.can.fp8_query || !q.fp8_kv()),
      "fp8 query");
  const bool e4m3_operands =
      q.can.fp8_query && q.fp8_kv() && !q.int8() && query_is_quantised(q.problem, q.can.rules);
  reasons.add_if(q.attention().probability_dtype == ProbabilityDtype::kFp8E4M3 && !e4m3_operands,
                 kProbabilityRefusal);
  reasons.add_if(q.attention().alibi == AlibiKind::kSqrt && !q.can.alibi_sqrt,
                 "alibi sqrt not supported");
  reasons.add_if(q.paged() && q.attention().v_head_size != q.attention().head_size,
                 "v_head_size not supported");
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
  Reasons reasons;
  add_format_reasons(question, reasons);
  add_kind_reasons(question, reasons);
  add_feature_reasons(question, reasons);
  return reasons.take();
}

}  // namespace attnbench
