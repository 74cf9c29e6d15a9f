#include "backends/encoder/capability.h"

#include <fmt/format.h>

#include <algorithm>

namespace attnbench {
namespace {

/// First compute capability with e4m3 in its matrix units (§10.5).
constexpr int kMinSmFp8 = 89;

class Reasons {
 public:
  void add_if(bool condition, std::string reason) {
    if (condition) list_.push_back(std::move(reason));
  }
  std::vector<std::string> take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

bool wants_fp8(const Problem& problem) {
  return problem.attention.type == AttentionType::kMmEncoder &&
         problem.mm_encoder.attn_dtype == MmAttnDtype::kFp8;
}

/// Rows 1, 2, 7, 10 and 11 of §13.1.
void add_layer_reasons(const MmCapability& can, const Problem& problem, const DeviceFacts& device,
                       Reasons& reasons) {
  const AttentionSpec& a = problem.attention;
  const int d = a.head_size;
  reasons.add_if(d % can.head_size_multiple != 0 || d < can.min_head_size || d > can.max_head_size,
                 "head_size not supported");
  reasons.add_if(std::ranges::find(can.dtypes, a.dtype) == can.dtypes.end(), "dtype not supported");
  reasons.add_if(a.type == AttentionType::kMla, "MLA not supported");
  reasons.add_if(a.sinks != SinksKind::kNone, "attention sinks not supported");
  const bool fp8_here = can.fp8 && wants_fp8(problem);
  reasons.add_if(device.sm < (fp8_here ? std::max(can.min_sm, kMinSmFp8) : can.min_sm),
                 "compute capability not supported");
  reasons.add_if(a.type != AttentionType::kMmEncoder && a.type != AttentionType::kMla,
                 fmt::format("attention type {} not supported", to_string(a.type)));
}

/// Row 15: what the layer has no argument for (§10.1, §13.5).
void add_feature_reasons(const MmCapability& can, const Problem& problem, Reasons& reasons) {
  const AttentionSpec& a = problem.attention;
  reasons.add_if(problem.kv_cache.int8_level > 0,
                 fmt::format("int8 attention for attention type {}", to_string(a.type)));
  reasons.add_if(
      problem.cascade.mode == CascadeMode::kAlways && problem.cascade.common_prefix_len > 0,
      fmt::format("cascade attention not supported by {}", can.upstream_name));
  reasons.add_if(problem.dcp.world_size > 1, "DCP requires LSE from decode");
  const auto ignores = [&](const char* feature) {
    return fmt::format("{} encoder attention ignores {}", can.upstream_name, feature);
  };
  reasons.add_if(a.alibi != AlibiKind::kNone, ignores("ALiBi"));
  reasons.add_if(a.logits_soft_cap > 0, ignores("softcap"));
  reasons.add_if(a.sliding_window.has_value(), ignores("window"));
  reasons.add_if(problem.output_quant.type != OutputQuantType::kNone, ignores("output_scale"));
  reasons.add_if(is_quantised(problem.kv_cache.dtype),
                 "quantized KV cache is not supported for encoder attention");
  reasons.add_if(a.query_dtype == QueryDtype::kFp8E4M3, "fp8 query");
}

/// §10.2 and the columns "lengths" and "fp8" of §13.3.
void add_form_reasons(const MmCapability& can, const Problem& problem, Reasons& reasons) {
  const bool without_cu = problem.mm_encoder.batch_size.has_value();
  reasons.add_if(
      without_cu && !can.batch_form,
      fmt::format("{} requires cu_seqlens, max_seqlen and sequence_lengths", can.upstream_name));
  const bool other_key_len =
      std::ranges::any_of(problem.batch, [](const Request& r) { return r.query_len != r.seq_len; });
  reasons.add_if(without_cu && can.batch_form && !can.other_key_len && other_key_len,
                 fmt::format("{} requires key length equal to query length", can.upstream_name));
  reasons.add_if(wants_fp8(problem) && !can.fp8,
                 fmt::format("mm_encoder_attn_dtype='fp8' requires the FLASHINFER backend, got {}",
                             can.upstream_name));
  reasons.add_if(problem.attention.probability_dtype == ProbabilityDtype::kFp8E4M3 &&
                     !(can.fp8 && wants_fp8(problem)),
                 kProbabilityRefusal);
}

}  // namespace

std::vector<std::string> mm_refusals(const MmCapability& capability, const Problem& problem,
                                     const DeviceFacts& device) {
  Reasons reasons;
  add_layer_reasons(capability, problem, device, reasons);
  add_feature_reasons(capability, problem, reasons);
  if (problem.attention.type == AttentionType::kMmEncoder) {
    add_form_reasons(capability, problem, reasons);
  }
  return reasons.take();
}

}  // namespace attnbench
