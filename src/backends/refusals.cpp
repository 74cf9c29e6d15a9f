// The words are those of vLLM's messages where it has one (semantics §13); scenarios and users'
// scripts match them, so they do not change.
#include "backends/refusals.h"

#include <fmt/format.h>

#include <algorithm>

namespace attnbench {

bool has_mm_prefix(const AttentionSpec& attention) {
  return std::ranges::any_of(attention.mm_prefix_ranges, [](const auto& of_request) {
    return std::ranges::any_of(of_request.second,
                               [](const auto& range) { return range[0] < range[1]; });
  });
}

bool forces_cascade(const Problem& problem) {
  return problem.cascade.mode == CascadeMode::kAlways && problem.cascade.common_prefix_len > 0;
}

void Refusals::add_if(bool refused, std::string_view reason) {
  if (refused) list_.emplace_back(reason);
}

void Refusals::check_head_size(int multiple, int least, int most) {
  const int d = attention().head_size;
  head_size(d % multiple != 0 || d < least || d > most);
}

void Refusals::head_size(bool refused) { add_if(refused, "head_size not supported"); }

void Refusals::check_dtype(const std::vector<Dtype>& taken) {
  dtype(std::ranges::find(taken, attention().dtype) == taken.end());
}

void Refusals::dtype(bool refused) { add_if(refused, "dtype not supported"); }

void Refusals::kv_cache_dtype(bool refused) { add_if(refused, "kv_cache_dtype not supported"); }

void Refusals::block_size(bool refused) { add_if(refused, "block_size not supported"); }

void Refusals::v_head_size(bool applies) {
  add_if(applies && attention().v_head_size != attention().head_size, "v_head_size not supported");
}

void Refusals::per_head_scales(bool applies) {
  const KvCacheSpec& cache = problem_.kv_cache;
  add_if(applies && (cache.k_scale.size() > 1 || cache.v_scale.size() > 1),
         "per-head quant scales not supported");
}

void Refusals::per_token_head_size(bool applies) {
  add_if(applies && is_per_token_head(problem_.kv_cache.dtype) && attention().head_size % 4 != 0,
         "per-token-head KV cache requires head_size % 4 == 0");
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
