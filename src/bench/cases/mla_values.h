// What the backends of an MLA case share: inputs, stored caches, references; as attention_values.h
// for the other types. A key says what a reference is computed from: which format the latents went
// through, which rows are decodes, whether their query or the prefill is quantised.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bench/cases/case.h"
#include "bench/cases/probe.h"
#include "bench/cases/screening.h"
#include "bench/judge/blind.h"
#include "bench/judge/judge.h"
#include "bench/memo.h"
#include "core/problem/problem.h"
#include "core/tensor.h"
#include "inputs/cache/kv_scales.h"
#include "inputs/cache/saturation.h"
#include "inputs/make_inputs.h"
#include "inputs/mla_inputs.h"
#include "reference/mla/cache_entry.h"
#include "reference/mla/kv_b_proj.h"
#include "reference/mla/latent_query.h"
#include "reference/mla/literal.h"
#include "reference/mla/mla_reference.h"

namespace attnbench {

/// Which values a reference result is computed from.
struct MlaReferenceKey {
  std::optional<KvCacheDtype> stored;  // a quantised cache; nothing = latents as they are
  bool quantised_query = false;
  bool fp8_prefill = false;
  std::int64_t num_decode_tokens = 0;

  bool operator==(const MlaReferenceKey&) const = default;
};

/// Inputs and reference results of an MLA case, made when first needed and shared by its
/// backends.
class MlaValues {
 public:
  MlaValues(const Problem& problem, const ReferenceOptions& options, const JudgeTools& tools = {})
      : problem_(problem), options_(options), screening_(tools) {}

  /// With inputs that are not to be drawn, of which only `rows` are compared. In one form of the
  /// reference: that the forms agree was seen on the inputs of the case, and keys that are expanded
  /// for every request of every sample would take most of the time of a run.
  MlaValues(const Problem& problem, MlaInputs inputs, const std::vector<std::int32_t>& rows,
            const ReferenceOptions& options)
      : problem_(problem),
        options_(options),
        screening_(rows),
        compares_forms_(false),
        inputs_(std::move(inputs)) {}

  /// With the scales of calculate_kv_scales once inputs() were made.
  const Problem& problem() const { return problem_; }
  const MlaInputs& inputs() {
    if (!inputs_) {
      inputs_ = make_mla_inputs(problem_);
      adopt_calculated_scales(*inputs_, problem_);
    }
    return *inputs_;
  }

  /// As AttentionValues::move_on.
  bool move_on(const Problem& problem) {
    if (!same_values(problem_, problem)) return false;
    check_inputs_fit(problem);
    if (!same_ranks(problem_, problem)) of_ranks_.clear();
    problem_ = problem;
    return true;
  }

  const ReferenceOptions& options() const { return options_; }

  const StoredMlaCache& stored(KvCacheDtype dtype) {
    return *stored_.get(dtype, [&] { return store(dtype); });
  }

  /// What it holds of the inputs, where that is known already.
  void adopt_stored(KvCacheDtype dtype, StoredMlaCache cache) {
    stored_.get(dtype, [&] { return std::move(cache); });
  }

  /// The quantised query of the first `num_tokens` rows or more: rows do not depend on each other.
  const MlaLatentQuery& latent_query(std::int64_t num_tokens) {
    if (!latent_query_ || latent_query_->codes.dim(0) < num_tokens) {
      const MlaInputs& in = inputs();
      latent_query_ = quantise_latent_query(in.query, w_uk(), num_tokens,
                                            static_cast<float>(problem_.kv_cache.q_scale),
                                            options_.num_threads);
    }
    return *latent_query_;
  }

  /// What the scales of the case clip of what is computed by `key`.
  Saturation saturation(const MlaReferenceKey& key) {
    Saturation result;
    if (problem_.inputs.shapes_only) return result;
    const MlaInputs& in = inputs();
    if (key.stored && has_tensor_scales(*key.stored)) {
      const std::vector<float> scale{static_cast<float>(problem_.kv_cache.k_scale.at(0))};
      const auto clipped = count_saturated(in.kv_c, scale, Dtype::kE4M3) +
                           count_saturated(in.k_pe, scale, Dtype::kE4M3);
      const std::int64_t elements = in.kv_c.num_elements() + in.k_pe.num_elements();
      if (elements > 0) result.key = static_cast<double>(clipped) / static_cast<double>(elements);
    }
    if (key.quantised_query) {
      const MlaLatentQuery& query = latent_query(key.num_decode_tokens);
      const std::int64_t elements = query.codes.num_elements();
      if (elements > 0) {
        result.query = static_cast<double>(query.saturated) / static_cast<double>(elements);
      }
    }
    return result;
  }

  /// Borrows from the case.
  MlaReferenceInputs sources(const MlaReferenceKey& key) {
    const MlaInputs& in = inputs();
    MlaReferenceInputs result;
    result.query = &in.query;
    result.kv_c = &in.kv_c;
    result.k_pe = &in.k_pe;
    if (key.stored) {
      const StoredMlaCache& cache = stored(*key.stored);
      result.kv_c = &cache.kv_c_dequantized;
      result.k_pe = &cache.k_pe_dequantized;
      result.kv_c_unquantized = &in.kv_c;
      result.k_pe_unquantized = &in.k_pe;
    }
    result.w_uk = &w_uk();
    result.w_uv = &w_uv();
    if (problem_.mla.sparse_topk) result.topk_indices = &in.topk_indices;
    result.sinks = in.sinks;
    if (key.quantised_query) {
      result.latent_query = &latent_query(key.num_decode_tokens).dequantized;
      result.latent_query_scale = static_cast<float>(problem_.kv_cache.q_scale);
      result.entry_scale = static_cast<float>(problem_.kv_cache.k_scale.at(0));
    }
    result.num_decode_tokens = key.num_decode_tokens;
    result.fp8_prefill = key.fp8_prefill;
    result.query_start_loc = in.query_start_loc;
    result.seq_lens = in.seq_lens;
    result.key_start_loc = in.key_start_loc;
    result.softmax_scale = problem_.attention.scale;
    if (!in.extra.empty()) borrow(*joined_.get(key.stored, [&] { return join(key); }), result);
    return result;
  }

  /// The keys of the second cache as a quantised cache holds them.
  const StoredMlaCache& stored_extra(KvCacheDtype dtype) {
    return *stored_extra_.get(dtype, [&] {
      const MlaExtraKeys& extra = inputs().extra;
      return store_mla_cache(extra.kv_c, extra.k_pe, dtype,
                             static_cast<float>(problem_.kv_cache.k_scale.at(0)));
    });
  }

  const ReferenceOutput* reference(MlaReferenceKey key) {
    // Why: decodes and prefills differ in what they read and what a kernel rounds, so the exact
    // result of latents as they are is one for all backends.
    const bool as_they_are = !key.stored && !key.quantised_query && !key.fp8_prefill;
    if (as_they_are) key.num_decode_tokens = 0;
    return find(key, std::nullopt);
  }
  const ReferenceOutput* emulation(const MlaReferenceKey& key, const EmulationRule& rule) {
    return find(key, rule);
  }
  /// As those of AttentionValues.
  std::optional<OwnedYardsticks> yardsticks(const MlaReferenceKey& key, const EmulationRule& rule,
                                            const std::optional<MlaReferenceKey>& unquantised,
                                            const std::vector<std::int32_t>& of) {
    auto exact = compute(key, std::nullopt, of);
    if (!exact) return std::nullopt;
    auto emulated = compute(key, rule, of);
    if (!emulated) return std::nullopt;
    OwnedYardsticks result{*std::move(exact), *std::move(emulated), std::nullopt};
    if (!unquantised) return result;
    result.unquantised = compute(*unquantised, std::nullopt, of);
    if (!result.unquantised) return std::nullopt;
    return result;
  }
  /// As EmulateAsRun: prefill rows, whose keys and values kernels expand.
  std::optional<ReferenceOutput> emulate_as_run(const MlaReferenceKey& key,
                                                const EmulationRule& rule,
                                                const std::vector<std::int32_t>& of,
                                                const std::vector<int>& heads) {
    return emulate_mla_prefills(sources(key), rule, of, heads, options_);
  }
  /// As OtherCodes: of the decodes among `of`, whose query is quantised after its projection.
  std::optional<std::vector<OwnedYardsticks>> other_codes(const MlaReferenceKey& key,
                                                          const EmulationRule& rule,
                                                          const std::vector<std::int32_t>& of,
                                                          const std::vector<int>& heads) {
    return by_other_codes(key, of, heads,
                          [&](const MlaReferenceInputs& source,
                              const std::vector<std::int32_t>& rows, OwnedYardsticks& result) {
                            MlaReferenceOptions options;
                            options.reference = options_;
                            auto exact = mla_reference(source, rows, options);
                            auto emulated = emulate_mla(source, rule, rows, options_);
                            if (!exact || !emulated) return false;
                            result = {*std::move(exact), *std::move(emulated), std::nullopt};
                            return true;
                          });
  }
  /// The same of what a rank computes.
  std::optional<std::vector<OwnedYardsticks>> rank_other_codes(const MlaReferenceKey& key, int rank,
                                                               const EmulationRule& rule,
                                                               const std::vector<std::int32_t>& of,
                                                               const std::vector<int>& heads) {
    const DcpGroup group = DcpGroup::of(problem_);
    return by_other_codes(key, of, heads,
                          [&](const MlaReferenceInputs& source,
                              const std::vector<std::int32_t>& rows, OwnedYardsticks& result) {
                            auto exact = mla_rank_partial(source, rows, group, rank, options_);
                            auto emulated =
                                emulate_mla_rank(source, rule, rows, group, rank, options_);
                            if (!exact || !emulated) return false;
                            result = {*std::move(exact), *std::move(emulated), std::nullopt};
                            return true;
                          });
  }
  std::optional<ScreenTable> screen(const MlaReferenceKey& key, const ScreenedOutput& output) {
    Screening::Ways ways;
    const MlaReferenceInputs source = sources(key);
    if (RowScreen::has_latents(source) && source.sinks.empty()) {
      ways.on_device = [&](RowScreen& screen) { return screen.compare_latent(source, output); };
    }
    ways.on_cpu = [&](const std::vector<std::int32_t>& of) {
      return in_float32_.get(key, [&] { return compute(key, kInFloat32, of); });
    };
    return screening_.compare(problem_, output, ways);
  }
  /// As AttentionValues::screen_sample(). `moved`: latents as the redraw has them; null where keys
  /// stand in `places`.
  std::optional<ScreenTable> screen_sample(const MlaReferenceKey& key, const Tensor& query,
                                           const LatentRows* moved,
                                           std::span<const std::int32_t> places,
                                           std::span<const std::int32_t> rows,
                                           const ScreenedOutput& output) {
    MlaReferenceInputs source = sources(key);
    if (!RowScreen::has_latents(source) || !source.sinks.empty()) return std::nullopt;
    ScreenedPart part{places, rows, {&query}};
    source.query = &query;
    std::optional<MlaLatentQuery> latent_query;
    if (key.quantised_query) {
      latent_query = quantise_latent_query(query, w_uk(), key.num_decode_tokens,
                                           static_cast<float>(problem_.kv_cache.q_scale),
                                           options_.num_threads);
      source.latent_query = &latent_query->dequantized;
      part.passing.push_back(source.latent_query);
    }
    if (moved != nullptr) {
      source.kv_c = &moved->kv_c;
      source.k_pe = &moved->k_pe;
      part.keys = {};
      part.passing.insert(part.passing.end(), {source.kv_c, source.k_pe});
    }
    return screening_.compare_sample(
        [&](RowScreen& screen) { return screen.compare_latent_part(source, part, output); });
  }
  Screening& screening() { return screening_; }
  /// As AttentionValues::unseen_mistakes().
  std::optional<std::vector<Mutant>> unseen_mistakes(
      const MlaReferenceKey& key, const BlindCase& blind_case,
      const std::optional<std::vector<Mutant>>& candidates) {
    for (auto& [known, answers] : unseen_) {
      if (known == key) return answers.get(blind_case, candidates, mutants_by(key, blind_case));
    }
    unseen_.emplace_back(key, BlindAnswers{});
    return unseen_.back().second.get(blind_case, candidates, mutants_by(key, blind_case));
  }

  /// What a rank of the group computes for the checked decode rows, in the latent space.
  const ReferenceOutput* rank_reference(const MlaReferenceKey& key, int rank) {
    return find_of_rank(key, rank, std::nullopt);
  }
  /// The same in storage precision.
  const ReferenceOutput* rank_emulation(const MlaReferenceKey& key, int rank,
                                        const EmulationRule& rule) {
    return find_of_rank(key, rank, rule);
  }

  /// As those of AttentionValues.
  std::optional<OwnedYardsticks> rank_yardsticks(const MlaReferenceKey& key, int rank,
                                                 const EmulationRule& rule,
                                                 const std::vector<std::int32_t>& of) {
    const DcpGroup group = DcpGroup::of(problem_);
    const MlaReferenceInputs source = sources(key);
    auto exact = mla_rank_partial(source, of, group, rank, options_);
    if (!exact) return std::nullopt;
    auto emulated = emulate_mla_rank(source, rule, of, group, rank, options_);
    if (!emulated) return std::nullopt;
    return OwnedYardsticks{*std::move(exact), *std::move(emulated), std::nullopt};
  }
  std::optional<ScreenTable> screen_rank(const MlaReferenceKey& key, int rank,
                                         const ScreenedOutput& output) {
    const MlaReferenceInputs source = sources(key);
    return screening_.compare_on_device(problem_, [&](RowScreen& screen) {
      return screen.compare_latent_rank(source, DcpGroup::of(problem_), rank, output);
    });
  }

 private:
  /// compute(inputs, rows, result) for every choice among the elements of the query whose code
  /// depends on the order of sums, at most three of a row and head; false stops.
  template <typename Compute>
  std::optional<std::vector<OwnedYardsticks>> by_other_codes(const MlaReferenceKey& key,
                                                             const std::vector<std::int32_t>& of,
                                                             const std::vector<int>& heads,
                                                             const Compute& compute) {
    constexpr std::size_t kMostElements = 3;
    std::vector<OwnedYardsticks> results;
    std::vector<std::int32_t> rows;
    for (const std::int32_t row : of) {
      if (row < key.num_decode_tokens) rows.push_back(row);
    }
    if (!key.quantised_query || rows.empty()) return results;
    const MlaLatentQuery& given = latent_query(key.num_decode_tokens);
    const std::vector<MlaOtherCode> elements =
        other_mla_codes(inputs().query, w_uk(), given,
                        static_cast<float>(problem_.kv_cache.q_scale), rows, heads, kMostElements);
    MlaReferenceInputs source = sources(key);
    // Bit i of a choice is the i-th element of every row and head.
    for (unsigned choice = 1; choice < 1u << kMostElements; ++choice) {
      Tensor query = given.dequantized;
      bool is_another = false;
      std::size_t i = 0;
      for (std::size_t at = 0; at < elements.size(); ++at) {
        const MlaOtherCode& element = elements[at];
        const bool is_first = at == 0 || elements[at - 1].token != element.token ||
                              elements[at - 1].head != element.head;
        i = is_first ? 0 : i + 1;
        if ((choice >> i & 1u) == 0) continue;
        is_another = true;
        query.set((element.token * query.dim(1) + element.head) * query.dim(2) + element.column,
                  element.dequantized);
      }
      if (!is_another) continue;
      source.latent_query = &query;
      OwnedYardsticks result;
      if (!compute(source, rows, result)) return std::nullopt;
      results.push_back(std::move(result));
    }
    return results;
  }

  /// The reference dequantises and splits a quantised kv_b_proj by itself; null without one.
  const MlaWeights* own_weights() {
    const MlaInputs& in = inputs();
    if (in.kv_b_proj.empty() || problem_.inputs.shapes_only) return nullptr;
    if (weights_) return &*weights_;
    const MlaSpec& mla = problem_.mla;
    const Tensor joined = dequantise_kv_b_proj(in.kv_b_proj, in.kv_b_proj_scale,
                                               mla.kv_b_proj_block, problem_.attention.dtype);
    weights_ = split_kv_b_proj(joined, problem_.attention.num_heads, mla.kv_lora_rank,
                               mla.qk_nope_head_dim, mla.v_head_dim);
    return &*weights_;
  }
  const Tensor& w_uk() {
    const MlaWeights* own = own_weights();
    return own != nullptr ? own->w_uk_t : inputs().w_uk;
  }
  const Tensor& w_uv() {
    const MlaWeights* own = own_weights();
    return own != nullptr ? own->w_uv : inputs().w_uv;
  }

  const ReferenceOutput* find_of_rank(const MlaReferenceKey& key, int rank,
                                      const std::optional<EmulationRule>& rule) {
    return of_ranks_.get({{key, rule}, rank}, [&] {
      std::vector<std::int32_t> decode_rows;
      for (const std::int32_t row : rows()) {
        if (row < key.num_decode_tokens) decode_rows.push_back(row);
      }
      if (decode_rows.empty()) decode_rows.push_back(0);  // every rank is checked in some row
      const DcpGroup group = DcpGroup::of(problem_);
      const MlaReferenceInputs source = sources(key);
      return rule ? emulate_mla_rank(source, *rule, decode_rows, group, rank, options_)
                  : mla_rank_partial(source, decode_rows, group, rank, options_);
    });
  }

  StoredMlaCache store(KvCacheDtype dtype) {
    const MlaInputs& in = inputs();
    const auto k_scale = static_cast<float>(problem_.kv_cache.k_scale.at(0));
    if (!problem_.inputs.shapes_only) return store_mla_cache(in.kv_c, in.k_pe, dtype, k_scale);
    StoredMlaCache cache =
        store_mla_cache(zeros_of_rows(in.kv_c, 1), zeros_of_rows(in.k_pe, 1), dtype, k_scale);
    for (Tensor* tensor : {&cache.codes, &cache.kv_c_dequantized, &cache.k_pe_dequantized}) {
      *tensor = zeros_of_rows(*tensor, in.kv_c.dim(0));
    }
    return cache;
  }

  /// In the place of the requests' own keys; the rows of a sparse case are all decodes, which read
  /// nothing but these.
  static void borrow(const JoinedKeys& joined, MlaReferenceInputs& result) {
    result.kv_c = &joined.kv_c;
    result.k_pe = &joined.k_pe;
    result.kv_c_unquantized = nullptr;
    result.k_pe_unquantized = nullptr;
    result.topk_indices = &joined.topk_indices;
    result.seq_lens = joined.seq_lens;
    result.key_start_loc = joined.key_start_loc;
  }

  JoinedKeys join(const MlaReferenceKey& key) {
    const MlaInputs& in = inputs();
    if (!key.stored) return join_extra_keys(in, {in.kv_c, in.k_pe}, {in.extra.kv_c, in.extra.k_pe});
    const StoredMlaCache& own = stored(*key.stored);
    const StoredMlaCache& extra = stored_extra(*key.stored);
    return join_extra_keys(in, {own.kv_c_dequantized, own.k_pe_dequantized},
                           {extra.kv_c_dequantized, extra.k_pe_dequantized});
  }

  const std::vector<std::int32_t>& rows() { return screening_.sample(problem_).rows; }

  MutantReference mutants_by(const MlaReferenceKey& key, const BlindCase& blind_case) {
    return [this, key, rows = blind_case.rows](const MutantChange& change) {
      MlaReferenceInputs source = sources(key);
      source.softmax_scale *= change.uniform ? 0.0 : change.scale_factor;
      const ShorterRequests shorter =
          shorter_requests(source.seq_lens, source.key_start_loc, change);
      Tensor listed;
      if (source.topk_indices != nullptr) {
        listed = without_last_listed(*source.topk_indices, rows, change.last_dropped > 0);
        source.topk_indices = &listed;
      } else {
        source.seq_lens = shorter.seq_lens;
        source.key_start_loc = shorter.key_start_loc;
      }
      MlaReferenceOptions options;
      options.reference = options_;
      options.form = problem_.mla.ref_form;
      options.second_form_flops = 0;  // the reference itself is compared
      return change.rule ? emulate_mla(source, *change.rule, rows, options_)
                         : mla_reference(source, rows, options);
    };
  }

  /// The lists of `rows` without the greatest position in each.
  static Tensor without_last_listed(const Tensor& indices, std::span<const std::int32_t> rows,
                                    bool drops) {
    Tensor result = indices;
    if (!drops) return result;
    const std::int64_t topk = indices.dim(1);
    for (const std::int32_t row : rows) {
      std::int32_t* const first = result.data<std::int32_t>() + row * topk;
      const std::int32_t last = *std::max_element(first, first + topk);
      std::replace(first, first + topk, last, -1);
    }
    return result;
  }

  const ReferenceOutput* find(const MlaReferenceKey& key,
                              const std::optional<EmulationRule>& rule) {
    return computed_.get({key, rule}, [&] { return compute(key, rule, rows()); });
  }
  std::optional<ReferenceOutput> compute(const MlaReferenceKey& key,
                                         const std::optional<EmulationRule>& rule,
                                         const std::vector<std::int32_t>& of) {
    const MlaReferenceInputs source = sources(key);
    MlaReferenceOptions options;
    options.reference = options_;
    options.form = problem_.mla.ref_form;
    if (!compares_forms_) options.second_form_flops = 0;
    return rule ? emulate_mla(source, *rule, of, options_) : mla_reference(source, of, options);
  }

  Problem problem_;
  ReferenceOptions options_;
  Screening screening_;
  bool compares_forms_ = true;
  std::optional<MlaInputs> inputs_;
  std::optional<MlaWeights> weights_;
  std::optional<MlaLatentQuery> latent_query_;
  Memo<KvCacheDtype, StoredMlaCache> stored_;
  Memo<KvCacheDtype, StoredMlaCache> stored_extra_;
  Memo<std::optional<KvCacheDtype>, JoinedKeys> joined_;  // with those of the second cache
  /// By rule, too; no rule = the reference itself.
  Memo<std::pair<MlaReferenceKey, std::optional<EmulationRule>>, ReferenceOutput> computed_;
  Memo<MlaReferenceKey, ReferenceOutput> in_float32_;
  Memo<std::pair<std::pair<MlaReferenceKey, std::optional<EmulationRule>>, int>, ReferenceOutput>
      of_ranks_;  // by rule and rank
  std::deque<std::pair<MlaReferenceKey, BlindAnswers>> unseen_;
};

}  // namespace attnbench
