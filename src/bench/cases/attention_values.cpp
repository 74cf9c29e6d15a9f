// Each value is made from those before it: inputs, then what a cache stores of them, then
// references and emulations on what is read back.
#include "bench/cases/attention_values.h"

#include "backends/reference_sources.h"
#include "bench/cases/case.h"
#include "bench/judge/ranks.h"
#include "inputs/cache/kv_scales.h"
#include "inputs/cache/paged_cache.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"

namespace attnbench {

const AttentionInputs& AttentionValues::inputs() {
  if (!inputs_) {
    inputs_ = make_inputs(problem_);
    adopt_calculated_scales(*inputs_, problem_);
  }
  return *inputs_;
}

bool AttentionValues::move_on(const Problem& problem) {
  if (!same_values(problem_, problem)) return false;
  check_inputs_fit(problem);
  if (!same_ranks(problem_, problem)) of_ranks_.clear();
  problem_ = problem;
  return true;
}

const std::vector<std::int32_t>& AttentionValues::rows() {
  if (!rows_) rows_ = select_rows(problem_, problem_.inputs.seed);
  return *rows_;
}

const StoredKv& AttentionValues::stored_kv(const StoreRule& rule) {
  return *stored_.get(rule, [&] { return store_kv(inputs(), rule); });
}

bool AttentionValues::has_cache() const { return !is_encoder_type(problem_.attention.type); }

BackendInputs AttentionValues::backend_inputs(const Backend& backend) {
  BackendInputs result;
  result.inputs = &inputs();
  result.query = store_query(problem_, inputs(), backend.kernel_rules());
  if (result.query.dequantized && !dequantized_query_) {
    dequantized_query_ = result.query.dequantized;
  }
  if (!has_cache()) return result;
  result.stored = &stored_kv(resolve_store_rule(problem_, backend.kernel_rules()));
  if (const auto layout = backend.cache_layout_for(problem_)) {
    result.cache = make_paged_cache(problem_, inputs(), *result.stored, *layout);
  }
  return result;
}

ReferenceKey AttentionValues::key_of(const Backend& backend) const {
  ReferenceKey key;
  key.math = resolve_attention_math(problem_, backend.kernel_rules());
  key.quantised_query = query_is_quantised(problem_, backend.kernel_rules());
  // Why: a cache that only copies bits reads back the inputs, so such backends share a reference.
  if (has_cache() && cache_is_quantised(problem_)) {
    key.store_rule = resolve_store_rule(problem_, backend.kernel_rules());
  }
  return key;
}

ReferenceInputs AttentionValues::reference_inputs(const ReferenceKey& key) {
  ReferenceInputs result = reference_sources(inputs());
  if (key.quantised_query) result.query = &dequantized_query_.value();
  if (key.store_rule) {
    const StoredKv& stored = stored_kv(*key.store_rule);
    result.key = &stored.key_dequantized;
    result.value = &stored.value_dequantized;
  }
  return result;
}

const ReferenceOutput* AttentionValues::find_or_compute(const ReferenceKey& key,
                                                        const std::optional<EmulationRule>& rule) {
  return computed_.get({key, rule}, [&] {
    const ReferenceInputs source = reference_inputs(key);
    return rule ? emulate_attention(key.math, source, *rule, rows(), options_)
                : reference_attention(key.math, source, rows(), options_);
  });
}

const ReferenceOutput* AttentionValues::reference(const ReferenceKey& key) {
  return find_or_compute(key, std::nullopt);
}

const ReferenceOutput* AttentionValues::rank_reference(const AttentionMath& math, int rank) {
  return of_ranks_.get({math, rank}, [&] {
    return attnbench::rank_reference(problem_, math, inputs(), rank, rows(), options_);
  });
}

const ReferenceOutput* AttentionValues::emulation(const ReferenceKey& key,
                                                  const EmulationRule& rule) {
  return find_or_compute(key, rule);
}

}  // namespace attnbench
