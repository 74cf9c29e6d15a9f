// Limits of the MLA backends and the reasons against a problem (semantics §13).
#include <fmt/format.h>

#include <algorithm>

#include "backends/mla/backend.h"
#include "core/error.h"
#include "metadata/mla/prefill.h"

namespace attnbench {
namespace {

using enum KvCacheDtype;

template <typename T>
bool contains(const std::vector<T>& values, T value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

bool has_mm_prefix(const AttentionSpec& attention) {
  for (const auto& [request, ranges] : attention.mm_prefix_ranges) {
    if (std::ranges::any_of(ranges, [](const auto& range) { return range[0] < range[1]; })) {
      return true;
    }
  }
  return false;
}

class Reasons {
 public:
  Reasons(const MlaCapability& capability, const Problem& problem, const DeviceFacts& device)
      : can_(capability), problem_(problem), a_(problem.attention), device_(device) {}

  std::vector<std::string> collect() {
    add_formats();
    add_kinds();
    add_features();
    if (list_.empty()) add_plan();
    return std::move(list_);
  }

 private:
  void add_if(bool condition, std::string reason) {
    if (condition) list_.push_back(std::move(reason));
  }
  bool is_mla() const { return a_.type == AttentionType::kMla; }
  int entry_size() const { return problem_.mla.kv_lora_rank + problem_.mla.qk_rope_head_dim; }
  bool has_wrong_entry() const {
    return is_mla() && !can_.entry_sizes.empty() && !contains(can_.entry_sizes, entry_size());
  }
  bool has_wrong_kv_dtype() const { return !contains(can_.kv_dtypes, problem_.kv_cache.dtype); }

  /// Rows 1 to 5 of §13.1.
  void add_formats() {
    add_if(has_wrong_entry(), "head_size not supported");
    add_if(!contains(can_.dtypes, a_.dtype), "dtype not supported");
    add_if(has_wrong_kv_dtype(), "kv_cache_dtype not supported");
    add_if(!supports_block_size(problem_.kv_cache.block_size, can_.block_sizes),
           "block_size not supported");
    add_if(has_mm_prefix(a_), "partial multimodal token full attention not supported");
  }

  /// Rows 6 to 14.
  void add_kinds() {
    const bool wants_sparse = is_mla() && problem_.mla.sparse_topk.has_value();
    add_if(!is_mla(), "non-MLA not supported");
    add_if(a_.sinks != SinksKind::kNone, "attention sinks not supported");
    add_if(wants_sparse && !can_.sparse, "sparse not supported");
    add_if(!wants_sparse && can_.sparse, "non-sparse not supported");
    add_if(problem_.kv_cache.k_scale.size() > 1 || problem_.kv_cache.v_scale.size() > 1,
           "per-head quant scales not supported");
    add_if(device_.sm < can_.min_sm || device_.sm > can_.max_sm,
           "compute capability not supported");
    add_if(!is_mla() && a_.type != AttentionType::kDecoder,
           fmt::format("attention type {} not supported", to_string(a_.type)));
    add_if(is_mla() && !a_.causal, "non-causal attention not supported");
  }

  /// Row 15.
  void add_features() {
    const bool dcp = problem_.dcp.world_size > 1;
    add_if(has_wrong_entry(),
           fmt::format("Head dimension {} is not supported by MLA.", entry_size()));
    add_if(can_.sparse && has_wrong_kv_dtype() && is_quantised(problem_.kv_cache.dtype),
           "FlashMLA Sparse Attention backend fp8 only supports fp8_ds_mla kv-cache dtype");
    add_if(has_wrong_packed_sizes(), packed_sizes());
    add_if(problem_.kv_cache.int8_level > 0, "int8 attention not supported");
    add_if(problem_.cascade.mode == CascadeMode::kAlways && problem_.cascade.common_prefix_len > 0,
           fmt::format("cascade attention not supported by {}", can_.name));
    add_if(dcp && can_.sparse, "DCP requires LSE from decode");
    add_if(dcp && !can_.sparse && is_quantised(problem_.kv_cache.dtype),
           "DCP not support fp8 kvcache now.");
    add_if(dcp && problem_.dcp.transport == DcpTransport::kNccl, "DCP over nccl: NCCL not found");
    add_if(dcp && problem_.dcp.interleave_size > 1 && a_.num_speculative_tokens > 0,
           "MTP with cp_kv_cache_interleave_size > 1 is not supported");
    add_if(a_.alibi != AlibiKind::kNone || a_.sliding_window || a_.logits_soft_cap > 0,
           "FlashMLAImpl does not support one of the following: alibi_slopes, sliding_window, "
           "logits_soft_cap");
    add_if(can_.sparse && !can_.latent_only && a_.num_heads > 128,
           fmt::format("sparse MLA with {} heads, more than 128", a_.num_heads));
    add_if(a_.query_dtype == QueryDtype::kFp8E4M3 && !takes_e4m3_query(), "fp8 query");
    add_if(a_.probability_dtype == ProbabilityDtype::kFp8E4M3 && !takes_e4m3_probability(),
           kProbabilityRefusal);
  }

  /// Users' kernels that do not declare it are refused by the name of the feature.
  bool takes_e4m3_query() const {
    return (can_.fp8_query || can_.latent_only) && allows_quantised_query(can_, problem_);
  }

  /// Users' kernels may, where query and cache are e4m3.
  bool takes_e4m3_probability() const {
    return can_.latent_only && can_.fp8_query && allows_quantised_query(can_, problem_);
  }

  const std::optional<PackedEntry>& packed() const {
    return kv_format(mla_cache_dtype(can_, problem_)).packed;
  }
  /// A packed entry has room for one size, and for rope parts of one type (§8.4.3).
  bool has_wrong_packed_sizes() const {
    return is_mla() && !has_wrong_entry() && contains(can_.dtypes, a_.dtype) && packed() &&
           (problem_.mla.kv_lora_rank != packed()->kv_lora_rank ||
            problem_.mla.qk_rope_head_dim != packed()->qk_rope_head_dim ||
            a_.dtype != packed()->source);
  }
  std::string packed_sizes() const {
    if (!packed()) return "";
    return fmt::format("{} needs kv_lora_rank {}, qk_rope_head_dim {} and {}",
                       to_string(mla_cache_dtype(can_, problem_)), packed()->kv_lora_rank,
                       packed()->qk_rope_head_dim, dtype_name(packed()->source));
  }

  /// A batch that this backend's split makes impossible: prefills in the wrong order (§1.4), more
  /// of them than the workspace has blocks for (§8.5), or heads that no prefill takes.
  void add_plan() {
    try {
      const MlaPlan plan = plan_mla(can_, problem_);
      if (plan.batch.num_prefills == 0) return;
      const std::vector<std::string> reasons =
          mla_prefill_reasons(problem_.mla.prefill_backend, problem_.mla, a_.dtype);
      if (reasons.empty()) return;
      list_.push_back(mla_prefill_message(problem_.mla.prefill_backend, reasons));
    } catch (const Error& error) {
      list_.emplace_back(error.what());
    }
  }

  const MlaCapability& can_;
  const Problem& problem_;
  const AttentionSpec& a_;
  const DeviceFacts& device_;
  std::vector<std::string> list_;
};

}  // namespace

std::vector<std::string> mla_refusals(const MlaCapability& capability, const Problem& problem,
                                      const DeviceFacts& device) {
  return Reasons(capability, problem, device).collect();
}

}  // namespace attnbench
