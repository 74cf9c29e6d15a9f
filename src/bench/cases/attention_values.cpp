// Each value is made from those before it: inputs, then what a cache stores of them, then
// references and emulations on what is read back.
#include "bench/cases/attention_values.h"

#include <algorithm>

#include "backends/reference_sources.h"
#include "bench/cases/case.h"
#include "bench/cases/probe.h"
#include "bench/judge/ranks.h"
#include "inputs/cache/kv_scales.h"
#include "inputs/cache/paged_cache.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"

namespace attnbench {

AttentionValues::AttentionValues(const Problem& problem, RedrawnRows redrawn,
                                 const JudgedRequest& one, const Backend& backend,
                                 ReferenceOptions options, const StoredKv* of_batch)
    : problem_(problem),
      options_(std::move(options)),
      screening_(one.rows),
      inputs_(std::move(redrawn.inputs)),
      moved_(std::move(redrawn.moved)),
      heads_(one.heads),
      is_sample_(true),
      of_batch_(of_batch) {
  if (!query_is_rounded(problem_, backend.kernel_rules())) return;
  dequantized_query_ = store_query(problem_, *inputs_, backend.kernel_rules()).dequantized;
}

const AttentionInputs& AttentionValues::inputs() {
  if (!inputs_) {
    inputs_ = make_inputs(problem_);
    adopt_calculated_scales(*inputs_, problem_);
  }
  return *inputs_;
}

bool AttentionValues::move_on(const Problem& problem) {
  const bool has_results = same_values(problem_, problem);
  if (!has_results && !(inputs_ && same_drawn_inputs(problem_, problem))) return false;
  check_inputs_fit(problem);
  if (!has_results) forget_results();
  if (!same_ranks(problem_, problem)) of_ranks_.clear();
  problem_ = problem;
  return true;
}

void AttentionValues::forget_results() {
  screening_ = Screening(tools_);  // first: it knows tensors on the device by where they are here
  dequantized_query_.reset();
  stored_.clear();
  clipped_.clear();
  computed_.clear();
  in_float32_.clear();
  of_ranks_.clear();
  unseen_.clear();
}

const StoredKv& AttentionValues::stored_kv(const StoreRule& rule) {
  if (of_batch_ != nullptr) return *of_batch_;
  return *stored_.get(rule, [&] { return store_kv(inputs(), rule, PlainKv::kViewed); });
}

Saturation AttentionValues::saturation(const ReferenceKey& key) {
  Saturation result;
  if (key.quantised_query && problem_.kv_cache.int8_level == 0) {
    result.query = query_saturation(inputs(), problem_.kv_cache.q_scale);
  }
  if (!key.store_rule) return result;
  const KvSaturation& clipped =
      *clipped_.get(*key.store_rule, [&] { return kv_saturation(inputs(), *key.store_rule); });
  result.key = clipped.key;
  result.value = clipped.value;
  return result;
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
  key.quantised_query = query_is_rounded(problem_, backend.kernel_rules());
  // Why: a cache that only copies bits reads back the inputs, so such backends share a reference.
  if (has_cache() && cache_is_quantised(problem_)) {
    key.store_rule = resolve_store_rule(problem_, backend.kernel_rules());
  }
  return key;
}

ReferenceInputs AttentionValues::reference_inputs(const ReferenceKey& key) {
  ReferenceInputs result = reference_sources(inputs());
  result.moved_keys = moved_;
  result.query_is_of_rows = is_sample_;
  result.heads = heads_;
  if (key.quantised_query) {
    result.query = &dequantized_query_.value();
    result.query_scale = static_cast<float>(problem_.kv_cache.q_scale);
  }
  if (key.store_rule) {
    const StoredKv& stored = stored_kv(*key.store_rule);
    result.key = &stored.key_dequantized;
    result.value = &stored.value_dequantized;
    result.key_scales = key.store_rule->k_scale;
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

std::optional<OwnedYardsticks> AttentionValues::yardsticks(const ReferenceKey& key,
                                                           const EmulationRule& rule,
                                                           bool with_unquantised,
                                                           const std::vector<std::int32_t>& rows) {
  const ReferenceInputs source = reference_inputs(key);
  auto reference = reference_attention(key.math, source, rows, options_);
  if (!reference) return std::nullopt;
  auto emulation = emulate_attention(key.math, source, rule, rows, options_);
  if (!emulation) return std::nullopt;
  OwnedYardsticks result{*std::move(reference), *std::move(emulation), std::nullopt};
  if (!with_unquantised) return result;
  result.unquantised =
      reference_attention(key.math, reference_inputs(unquantised(key)), rows, options_);
  if (!result.unquantised) return std::nullopt;
  return result;
}

std::optional<ScreenTable> AttentionValues::screen(const ReferenceKey& key,
                                                   const ScreenedOutput& output) {
  const ReferenceInputs source = reference_inputs(key);
  Screening::Ways ways;
  ways.on_device = [&](RowScreen& screen) { return screen.compare(key.math, source, output); };
  ways.on_cpu = [&](const std::vector<std::int32_t>& rows) {
    return in_float32_.get(
        key, [&] { return emulate_attention(key.math, source, kInFloat32, rows, options_); });
  };
  return screening_.compare(problem_, output, ways);
}

std::optional<ScreenTable> AttentionValues::screen_sample(const ReferenceKey& key,
                                                          const Backend& backend,
                                                          const AttentionInputs& redrawn,
                                                          std::span<const std::int32_t> places,
                                                          std::span<const std::int32_t> rows,
                                                          const ScreenedOutput& output) {
  ReferenceInputs source = reference_inputs(key);
  source.query = &redrawn.query;
  std::optional<Tensor> dequantised;
  if (key.quantised_query) {
    dequantised = store_query(problem_, redrawn, backend.kernel_rules()).dequantized;
    source.query = &dequantised.value();
  }
  const ScreenedPart part{places, rows, {source.query}};
  return screening_.compare_sample(
      [&](RowScreen& screen) { return screen.compare_part(key.math, source, part, output); });
}

std::optional<ReferenceOutput> AttentionValues::compute_rank(const ReferenceKey& key, int rank,
                                                             const std::vector<std::int32_t>& rows,
                                                             const EmulationRule* rule) {
  return attnbench::rank_reference(problem_, key.math, inputs(), reference_inputs(key), rank, rows,
                                   options_, rule);
}

const ReferenceOutput* AttentionValues::rank_reference(const ReferenceKey& key, int rank) {
  return of_ranks_.get({{key, std::nullopt}, rank},
                       [&] { return compute_rank(key, rank, rows(), nullptr); });
}

const ReferenceOutput* AttentionValues::rank_emulation(const ReferenceKey& key, int rank,
                                                       const EmulationRule& rule) {
  return of_ranks_.get({{key, rule}, rank}, [&] { return compute_rank(key, rank, rows(), &rule); });
}

std::optional<OwnedYardsticks> AttentionValues::rank_yardsticks(
    const ReferenceKey& key, int rank, const EmulationRule& rule,
    const std::vector<std::int32_t>& rows) {
  auto exact = compute_rank(key, rank, rows, nullptr);
  if (!exact) return std::nullopt;
  auto emulated = compute_rank(key, rank, rows, &rule);
  if (!emulated) return std::nullopt;
  return OwnedYardsticks{*std::move(exact), *std::move(emulated), std::nullopt};
}

std::optional<ScreenTable> AttentionValues::screen_rank(const ReferenceKey& key, int rank,
                                                        const ScreenedOutput& output) {
  // The device has the positions of keys by their places, which ALiBi does not go by here.
  if (key.math.alibi != AlibiForm::kNone) return std::nullopt;
  return screening_.compare_on_device(problem_, [&](RowScreen& screen) {
    const RankKeys keys = keys_of_rank(problem_, key.math, inputs(), rank);
    ReferenceInputs source = reference_inputs(key);
    source.query_start_loc = keys.query_start_loc;
    source.seq_lens = keys.seq_lens;
    source.key_start_loc = keys.starts;
    return screen.compare_listed(math_of_rank(key.math), source, keys.rows, output);
  });
}

std::optional<std::vector<Mutant>> AttentionValues::unseen_mistakes(
    const ReferenceKey& key, const Numerics& numerics, bool gives_lse,
    const std::optional<std::vector<Mutant>>& candidates) {
  const std::vector<std::int32_t> rows = mutant_rows(problem_);
  auto known = std::find_if(unseen_.begin(), unseen_.end(),
                            [&](const auto& entry) { return entry.first == key; });
  if (known == unseen_.end()) known = unseen_.insert(unseen_.end(), {key, {}});
  return known->second.get(
      {&problem_, numerics, gives_lse, rows}, candidates, [&](const MutantChange& change) {
        return mutated_attention(key.math, reference_inputs(key), change, rows, options_);
      });
}

const ReferenceOutput* AttentionValues::emulation(const ReferenceKey& key,
                                                  const EmulationRule& rule) {
  return find_or_compute(key, rule);
}

}  // namespace attnbench
