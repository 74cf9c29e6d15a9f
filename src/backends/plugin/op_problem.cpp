// A single operation as plugins see it, and which of them no plugin is given.
#include <fmt/format.h>

#include <array>
#include <utility>

#include "backends/op/op_pipeline.h"
#include "backends/plugin/problem.h"
#include "backends/refusals.h"

namespace attnbench {
namespace {

constexpr std::array<std::pair<OpKind, std::uint32_t>, 2> kOperations = {
    {{OpKind::kReshapeAndCache, ATTNBENCH_OP_RESHAPE_AND_CACHE},
     {OpKind::kMerge, ATTNBENCH_OP_MERGE}}};

std::uint32_t bit_of(OpKind op) {
  for (const auto& [known, bit] : kOperations) {
    if (known == op) return bit;
  }
  return 0;
}

/// Type of the cache that the operation writes; that of attention where it writes none.
Dtype cache_element(const Problem& problem) {
  if (problem.op.name != OpKind::kReshapeAndCache) return problem.attention.dtype;
  return resolve_store_rule(problem, op_kernel_rules(problem)).element;
}

std::uint64_t features_of(const Problem& problem, std::uint32_t kv_cache_dtype) {
  const AttentionSpec& a = problem.attention;
  std::uint64_t features = 0;
  if (a.v_head_size != a.head_size) features |= ATTNBENCH_V_HEAD_SIZE;
  if (kv_cache_dtype == ATTNBENCH_FP8_E4M3) features |= ATTNBENCH_FP8_KV;
  if (kv_cache_dtype == ATTNBENCH_FP8_E5M2) features |= ATTNBENCH_FP8_E5M2_KV;
  if (problem.output_quant.type != OutputQuantType::kNone) features |= ATTNBENCH_FP8_OUTPUT;
  return features;
}

}  // namespace

std::string plugin_operation_name(std::uint32_t operation) {
  for (const auto& [op, bit] : kOperations) {
    if (bit == operation) return to_string(op);
  }
  return "";
}

void PluginProblem::set_operation(const Problem& problem) {
  view_.operation = bit_of(*problem.op.name);
  set_cache(problem, cache_element(problem));
  view_.scale = problem.attention.scale;
  view_.num_merged_tokens = problem.op.tokens_with_context.value_or(problem.num_tokens());
  view_.features = features_of(problem, view_.kv_cache_dtype);
}

std::vector<std::string> operation_refusals(const Problem& problem) {
  const OpKind op = *problem.op.name;
  if (bit_of(op) == 0) return {fmt::format("operation {} not supported", to_string(op))};
  if (op == OpKind::kMerge) return {};
  if (problem.op.mla) return {fmt::format("operation {} of latents not supported", to_string(op))};
  Refusals reasons(problem);
  reasons.kv_cache_dtype(has_inner_scales(problem.kv_cache.dtype));
  reasons.int8();
  reasons.dcp();
  reasons.v_head_size();
  return reasons.take();
}

}  // namespace attnbench
