// The rows of semantics §13 for MLA, in their order. The last rows try what the pipeline would do:
// a plan that cannot be made is a reason in the words of its error.
#include "backends/mla/capability.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "backends/mla/plan.h"
#include "backends/refusals.h"
#include "core/error.h"
#include "metadata/mla/prefill.h"

namespace attnbench {
namespace {

using enum KvCacheDtype;

/// No list takes every size.
bool takes(const std::vector<int>& sizes, int size) {
  return sizes.empty() || contains(sizes, size);
}

class MlaRefusals : private Refusals {
 public:
  MlaRefusals(const MlaCapability& capability, const Problem& problem, const DeviceFacts& device)
      : Refusals(problem, device),
        can_(capability),
        problem_(problem),
        a_(problem.attention),
        device_sm_(device.sm) {}

  std::vector<std::string> collect() {
    add_formats();
    add_kinds();
    add_features();
    if (none()) add_plan();
    return take();
  }

 private:
  bool is_mla() const { return a_.type == AttentionType::kMla; }
  int entry_size() const { return problem_.mla.kv_lora_rank + problem_.mla.qk_rope_head_dim; }
  bool has_wrong_entry() const { return is_mla() && !takes(can_.entry_sizes, entry_size()); }
  bool has_wrong_kv_dtype() const { return !contains(can_.kv_dtypes, problem_.kv_cache.dtype); }

  /// Rows 1 to 5 of §13.1.
  void add_formats() {
    head_size(has_wrong_entry(), fmt::format("kv_lora_rank + qk_rope_head_dim of {}, not {}",
                                             fmt::join(can_.entry_sizes, " or "), entry_size()));
    check_dtype(can_.dtypes);
    check_kv_cache_dtype(can_.kv_dtypes);
    check_block_size(can_.block_sizes);
    mm_prefix();
  }

  /// Rows 6 to 14.
  void add_kinds() {
    const bool wants_sparse = is_mla() && problem_.mla.sparse_topk.has_value();
    add_if(!is_mla(), "non-MLA not supported");
    if (!can_.sparse_operands || !wants_sparse) sinks();
    sparse(!can_.sparse);
    add_if(!wants_sparse && can_.sparse, "non-sparse not supported");
    if (wants_sparse && can_.sparse && !can_.sparse_operands) add_sparse_operands();
    per_head_scales();
    compute_capability(can_.min_sm, can_.max_sm);
    attention_type(!is_mla() && a_.type != AttentionType::kDecoder);
    non_causal(is_mla());
    add_if(is_mla() && !takes(can_.nope_head_dims, problem_.mla.qk_nope_head_dim),
           fmt::format("FlashInfer MLA Sparse kernel requires qk_nope_head_dim in [{}], but got {}",
                       fmt::join(can_.nope_head_dims, ", "), problem_.mla.qk_nope_head_dim));
  }

  void add_sparse_operands() {
    const MlaSpec& mla = problem_.mla;
    add_if(!mla.sparse_topk_length.empty(), "topk_length not supported");
    add_if(mla.sparse_extra_topk.has_value(), "a second cache not supported");
  }

  /// Row 15.
  void add_features() {
    const bool dcp = problem_.dcp.world_size > 1;
    add_if(has_wrong_entry(),
           fmt::format("Head dimension {} is not supported by MLA.", entry_size()));
    add_if(stores_packed() && has_wrong_kv_dtype() && is_quantised(problem_.kv_cache.dtype),
           "FlashMLA Sparse Attention backend fp8 only supports fp8_ds_mla kv-cache dtype");
    add_if(has_wrong_packed_sizes(), packed_sizes());
    int8();
    cascade_by(can_.name);
    dcp_without_lse(can_.sparse);
    add_if(dcp && !can_.sparse && is_quantised(problem_.kv_cache.dtype),
           "DCP not support fp8 kvcache now.");
    dcp_transport();
    dcp_interleaved_speculation();
    mla_scores();
    add_if(a_.kv_sharing, "KV sharing is not supported for MLA");
    if (a_.num_heads > can_.max_heads) {
      add(fmt::format(fmt::runtime(can_.too_many_heads), a_.num_heads));
    }
    fp8_query(!takes_e4m3_query());
    e4m3_probability(!takes_e4m3_probability());
    fast_fp8_sums(!takes_e4m3_probability());
  }

  /// Users' kernels that do not declare it are refused by the name of the feature.
  bool takes_e4m3_query() const {
    return (can_.fp8_query || can_.latent_only) && allows_quantised_query(can_, problem_);
  }

  /// Where query and cache are e4m3, but for built-in kernels of lists. A batch with prefills,
  /// whose operands have 16 bits, is refused by add_plan().
  bool takes_e4m3_probability() const {
    return (!can_.sparse || can_.latent_only) && can_.fp8_query &&
           allows_quantised_query(can_, problem_);
  }

  /// Whether its fp8 cache is one of packed entries.
  bool stores_packed() const {
    return can_.sparse && std::ranges::any_of(can_.kv_dtypes, is_packed);
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
      if (problem_.timing.mode == TimingMode::kGraph && !can_.latent_only) {
        check_mla_graph_capture(problem_, graph_builder());
      }
      const MlaPlan plan = plan_mla(can_, problem_);
      if (!can_.latent_only) add_num_splits(plan);
      e4m3_probability(takes_e4m3_probability() && plan.batch.num_prefills > 0);
      // Upstream looks at the one that is named when it starts, whatever will be run.
      const std::string& prefill = problem_.mla.prefill_backend;
      const bool is_named = prefill != kFlashAttnPrefill && !can_.sparse && !can_.latent_only;
      if (plan.batch.num_prefills == 0 && !is_named) return;
      const std::vector<std::string> reasons =
          mla_prefill_reasons(prefill, problem_.mla, a_.dtype, device_sm_);
      if (!reasons.empty()) add(mla_prefill_message(prefill, reasons));
    } catch (const Error& error) {
      add(error.what());
    }
  }

  /// Sparse backends split their batch where the cache is packed (§8.9).
  MetadataBuilder graph_builder() const {
    const bool packed_entries = can_.sparse && is_packed(mla_cache_dtype(can_, problem_));
    return packed_entries ? MetadataBuilder::kFlashMlaSparseFp8 : can_.builder;
  }

  /// Decodes whose keys follow a plan have no number of splits to ask for.
  void add_num_splits(const MlaPlan& plan) {
    if (!a_.num_splits) return;
    const bool is_planned = can_.sparse || can_.split == MlaDecodeSplit::kPlan;
    num_splits(is_planned, !is_planned && plan.num_parts != *a_.num_splits, "without decodes");
  }

  const MlaCapability& can_;
  const Problem& problem_;
  const AttentionSpec& a_;
  int device_sm_;
};

}  // namespace

const MlaCapability& plain_mla_capability() {
  static const MlaCapability capability = [] {
    using enum KvCacheDtype;
    MlaCapability plain;
    plain.name = "MLA";
    plain.dtypes = {Dtype::kF16, Dtype::kBF16};
    plain.kv_dtypes = {kAuto, kFloat16, kBFloat16, kFp8, kFp8E4M3};
    return plain;
  }();
  return capability;
}

KvCacheDtype mla_cache_dtype(const MlaCapability& capability, const Problem& problem) {
  const KvCacheDtype dtype = problem.kv_cache.dtype;
  const std::optional<KvCacheDtype> usual = kv_format(dtype).usual;
  const std::vector<KvCacheDtype>& stored = capability.kv_dtypes;
  if (!usual || std::ranges::count(stored, *usual) > 0) return dtype;
  const auto packed = std::ranges::find_if(stored, is_packed);
  return packed != stored.end() ? *packed : dtype;
}

std::vector<std::string> mla_refusals(const MlaCapability& capability, const Problem& problem,
                                      const DeviceFacts& device) {
  return MlaRefusals(capability, problem, device).collect();
}

}  // namespace attnbench
