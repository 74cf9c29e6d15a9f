// The words are those of vLLM's messages where it has one (semantics §13); scenarios and users'
// scripts match them, so they do not change. What this program knows more stands behind them in
// parentheses.
#include "backends/refusals.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/system/printable.h"

namespace attnbench {

bool has_mm_prefix(const AttentionSpec& attention) {
  return std::ranges::any_of(attention.mm_prefix_ranges, [](const auto& of_request) {
    return std::ranges::any_of(of_request.second,
                               [](const auto& range) { return range[0] < range[1]; });
  });
}

bool forces_cascade(const Problem& problem) {
  return problem.cascade.mode == CascadeMode::kAlways &&
         (problem.cascade.common_prefix_len > 0 || !problem.cascade.groups.empty());
}

void Refusals::add_if(bool refused, std::string_view reason) {
  if (refused) list_.emplace_back(reason);
}

void Refusals::add_format(bool refused, std::string_view what, std::string_view found,
                          std::string_view taken) {
  if (!refused) return;
  add(fmt::format("{} not supported (found {}{}{})", what, found,
                  taken.empty() ? "" : "; expected ", taken));
}

void Refusals::check_head_size(int multiple, int least, int most) {
  constexpr int kNoLimit = 1 << 30;
  const int d = attention().head_size;
  std::vector<std::string> taken;
  if (multiple > 1) taken.push_back(fmt::format("a multiple of {}", multiple));
  if (least > 1) taken.push_back(fmt::format("at least {}", least));
  if (most < kNoLimit) taken.push_back(fmt::format("at most {}", most));
  head_size(d % multiple != 0 || d < least || d > most, fmt::format("{}", fmt::join(taken, ", ")));
}

void Refusals::head_size(bool refused, std::string_view taken) {
  add_format(refused, "head_size", std::to_string(attention().head_size), taken);
}

void Refusals::check_dtype(const std::vector<Dtype>& taken) {
  std::vector<std::string> names;
  for (const Dtype type : taken) names.emplace_back(dtype_name(type));
  dtype(std::ranges::find(taken, attention().dtype) == taken.end(), either_of(names));
}

void Refusals::dtype(bool refused, std::string_view taken) {
  add_format(refused, "dtype", dtype_name(attention().dtype), taken);
}

void Refusals::kv_cache_dtype(bool refused, std::string_view taken) {
  add_format(refused, "kv_cache_dtype", to_string(problem_.kv_cache.dtype), taken);
}

void Refusals::check_kv_cache_dtype(const std::vector<KvCacheDtype>& taken) {
  std::vector<std::string> names;
  for (const KvCacheDtype type : taken) names.emplace_back(to_string(type));
  kv_cache_dtype(std::ranges::find(taken, problem_.kv_cache.dtype) == taken.end(),
                 either_of(names));
}

void Refusals::block_size(bool refused, std::string_view taken) {
  add_format(refused, "block_size", std::to_string(problem_.kv_cache.block_size), taken);
}

void Refusals::check_block_size(const std::vector<BlockSizeRule>& taken) {
  std::vector<std::string> sizes;
  for (const BlockSizeRule& rule : taken) sizes.push_back(std::to_string(rule.size));
  block_size(!supports_block_size(problem_.kv_cache.block_size, taken),
             fmt::format("a multiple of {}", either_of(sizes)));
}

void Refusals::v_head_size(bool applies) {
  add_format(applies && attention().v_head_size != attention().head_size, "v_head_size",
             std::to_string(attention().v_head_size),
             fmt::format("head_size = {}", attention().head_size));
}

void Refusals::per_head_scales(bool applies) {
  const KvCacheSpec& cache = problem_.kv_cache;
  add_if(applies && (cache.k_scale.size() > 1 || cache.v_scale.size() > 1),
         "per-head quant scales not supported");
}

void Refusals::stored_head_size(bool applies) {
  const std::string misfit = stored_size_misfit(problem_.kv_cache.dtype, attention().head_size);
  add_if(applies && !misfit.empty(), misfit);
  const KvCacheSpec& cache = problem_.kv_cache;
  const bool of_one_layer =
      kv_format(cache.dtype).scales == KvScales::kBlocks || shares_slots(cache.dtype);
  add_if(applies && cache.layers && of_one_layer,
         fmt::format("{} KV cache of several layers", to_string(cache.dtype)));
}

void Refusals::quantised_kv_of_encoder(bool applies) {
  add_if(applies && is_quantised(problem_.kv_cache.dtype),
         "quantized KV cache is not supported for encoder attention");
}

void Refusals::output_quant(bool refused) {
  add_if(refused, fmt::format("output quantization {} not supported",
                              to_string(problem_.output_quant.type)));
}

void Refusals::fp8_query(bool applies) {
  add_if(applies && attention().query_dtype == QueryDtype::kFp8E4M3, "fp8 query");
}

void Refusals::e4m3_probability(bool applies) {
  add_if(applies && attention().probability_dtype == ProbabilityDtype::kFp8E4M3,
         kProbabilityRefusal);
}

void Refusals::fast_fp8_sums(bool applies) {
  const AttentionSpec& a = attention();
  const bool has_e4m3 = !applies && a.probability_dtype == ProbabilityDtype::kFp8E4M3;
  add_if(a.fp8_accumulation == Fp8Accumulation::kFast && !has_e4m3, kFastSumsRefusal);
}

void Refusals::compute_capability(int least, int most) {
  add_if(device_.sm < least || device_.sm > most, "compute capability not supported");
}

void Refusals::attention_type(bool refused) {
  add_if(refused, fmt::format("attention type {} not supported", to_string(attention().type)));
}

void Refusals::mla() { add_if(attention().type == AttentionType::kMla, "MLA not supported"); }

void Refusals::sparse(bool applies) {
  add_if(applies && attention().type == AttentionType::kMla && problem_.mla.sparse_topk,
         "sparse not supported");
}

void Refusals::mm_prefix(bool applies) {
  add_if(applies && has_mm_prefix(attention()),
         "partial multimodal token full attention not supported");
}

void Refusals::sinks() {
  add_if(attention().sinks != SinksKind::kNone, "attention sinks not supported");
}

void Refusals::non_causal(bool applies) {
  add_if(applies && !attention().causal, "non-causal attention not supported");
}

void Refusals::batch_invariance(bool applies) {
  add_if(applies && attention().batch_invariant, "batch invariance not supported");
}

void Refusals::chunks() {
  add_if(attention().chunk_size.has_value(), "chunked local attention not supported");
}

void Refusals::cross_layer_cache() {
  add_if(problem_.kv_cache.layers.has_value(), "cross-layer cache not supported");
}

void Refusals::int8(bool applies) { add_if(applies && has_int8(), "int8 attention not supported"); }

void Refusals::int8_with_fp8_cache(bool has_fp8_cache) {
  add_if(has_int8() && has_fp8_cache,
         fmt::format("int8 attention level {} with fp8 kv cache", problem_.kv_cache.int8_level));
}

void Refusals::int8_with_dcp() { add_if(has_int8() && has_dcp(), "DCP with int8 attention"); }

void Refusals::int8_of_type(bool applies) {
  add_if(applies && has_int8(),
         fmt::format("int8 attention for attention type {}", to_string(attention().type)));
}

void Refusals::cascade_by(std::string_view name) {
  add_if(forces_cascade(problem_), fmt::format("cascade attention not supported by {}", name));
}

void Refusals::ignored_by_encoder(std::string_view name, bool ignored, std::string_view feature) {
  add_if(ignored, fmt::format("{} encoder attention ignores {}", name, feature));
}

void Refusals::mla_scores() {
  const AttentionSpec& a = attention();
  add_if(a.alibi != AlibiKind::kNone || a.sliding_window || a.logits_soft_cap > 0,
         "FlashMLAImpl does not support one of the following: alibi_slopes, sliding_window, "
         "logits_soft_cap");
}

void Refusals::num_splits(bool has_none, bool unused, std::string_view why) {
  add_if(has_none && attention().split_form != SplitForm::kAuto, "split_form not supported");
  if (!attention().num_splits) return;
  add_if(has_none, "num_splits not supported");
  add_if(unused, fmt::format("num_splits {} {}", *attention().num_splits, why));
}

void Refusals::dcp() { add_if(has_dcp(), "DCP not supported"); }

void Refusals::dcp_without_lse(bool applies) {
  add_if(applies && has_dcp(), "DCP requires LSE from decode");
}

void Refusals::dcp_transport() {
  const DcpSpec& dcp = problem_.dcp;
  if (!has_dcp() || dcp.transport == DcpTransport::kSimulated) return;
  const std::string over = fmt::format("DCP over {}", to_string(dcp.transport));
  const RealRanks& ranks = dcp.transport == DcpTransport::kNccl ? device_.nccl : device_.mpi;
  if (!ranks.missing.empty()) {
    add(over + ": " + ranks.missing);
  } else if (ranks.count < dcp.world_size) {
    add(fmt::format("{}: dcp.world_size is {}, there are {} ranks", over, dcp.world_size,
                    ranks.count));
  }
  add_if(problem_.attention.type == AttentionType::kOp,
         over + " with an operation by itself, whose ranks are simulated");
  add_if(problem_.output_quant.type != OutputQuantType::kNone, over + " with output quantisation");
}

void Refusals::dcp_interleaved_speculation() {
  add_if(has_dcp() && problem_.dcp.interleave_size > 1 && attention().num_speculative_tokens > 0,
         "MTP with cp_kv_cache_interleave_size > 1 is not supported");
}

}  // namespace attnbench
