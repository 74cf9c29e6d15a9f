// Inputs and reference results of one case, made when first needed and shared by its backends.
//
// A float64 reference costs more than any kernel that is judged by it, so it is computed once for
// all backends that compute the same thing on the same values. What is the same is decided by keys
// made of rules (mask, windows, what a cache stores), never by the names of backends: a new backend
// with known rules shares, one with new rules gets a reference of its own without a line here.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "bench/cases/screening.h"
#include "bench/judge/blind.h"
#include "bench/judge/judge.h"
#include "bench/memo.h"
#include "bench/samples/redrawn_request.h"
#include "inputs/cache/saturation.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "reference/attention.h"

namespace attnbench {

/// Which values a reference result is computed from.
struct ReferenceKey {
  AttentionMath math;
  bool quantised_query = false;
  /// The rule of a quantised cache; nothing = key and value as they are.
  std::optional<StoreRule> store_rule;

  bool operator==(const ReferenceKey&) const = default;
};

/// Results are owned by this object and stay where they are until it is destroyed. A null result
/// means that options.should_stop ended the computation.
class AttentionValues {
 public:
  AttentionValues(const Problem& problem, ReferenceOptions options, const JudgeTools& tools = {})
      : problem_(problem), options_(std::move(options)), tools_(tools), screening_(tools) {}
  /// With inputs that are not to be drawn.
  AttentionValues(const Problem& problem, AttentionInputs inputs)
      : problem_(problem), screening_(JudgeTools{}), inputs_(std::move(inputs)) {}
  /// Rows and heads of a timed sample of what `backend` gives, which alone are compared.
  /// `of_batch`, which outlives this: what the cache of the whole batch stores, before blocks have
  /// moved; null without a cache.
  AttentionValues(const Problem& problem, RedrawnRows redrawn, const JudgedRequest& one,
                  const Backend& backend, ReferenceOptions options, const StoredKv* of_batch);

  /// With the scales of calculate_kv_scales once inputs() were made.
  const Problem& problem() const { return problem_; }
  /// The same with the heads that references have: all, but of a timed sample.
  Problem judged_problem() const { return problem_of_heads(problem_, heads_); }
  const ReferenceOptions& options() const { return options_; }
  const AttentionInputs& inputs();
  /// Goes on with another case and what is known of it already: all, or the inputs alone, of which
  /// rows are drawn anew. False, and nothing happens, when that is nothing. Errors: E-CAPACITY, as
  /// for inputs().
  bool move_on(const Problem& problem);
  /// Token rows that the reference checks; drawn when they are first needed.
  const std::vector<std::int32_t>& rows() { return screening_.sample(problem_).rows; }
  Screening& screening() { return screening_; }
  const StoredKv& stored_kv(const StoreRule& rule);
  /// What the scales of the case clip of what is computed by `key`.
  Saturation saturation(const ReferenceKey& key);
  /// What `backend` starts from.
  BackendInputs backend_inputs(const Backend& backend);

  /// The key of what `backend` computes, and of the same maths on nothing quantised.
  ReferenceKey key_of(const Backend& backend) const;
  static ReferenceKey unquantised(const ReferenceKey& key) { return {key.math, false, {}}; }

  const ReferenceOutput* reference(const ReferenceKey& key);
  const ReferenceOutput* emulation(const ReferenceKey& key, const EmulationRule& rule);
  /// The same of any rows, with the reference on nothing quantised where `with_unquantised`. Not
  /// kept.
  std::optional<OwnedYardsticks> yardsticks(const ReferenceKey& key, const EmulationRule& rule,
                                            bool with_unquantised,
                                            const std::vector<std::int32_t>& rows);
  /// Every row of an output, where that is affordable.
  std::optional<ScreenTable> screen(const ReferenceKey& key, const ScreenedOutput& output);
  /// `rows` of a run of `backend` on these queries, whose keys stand in `places`, on the device;
  /// nothing where it cannot.
  std::optional<ScreenTable> screen_sample(const ReferenceKey& key, const Backend& backend,
                                           const AttentionInputs& redrawn,
                                           std::span<const std::int32_t> places,
                                           std::span<const std::int32_t> rows,
                                           const ScreenedOutput& output);
  /// CaseRun::unseen_mistakes() of what is computed by `key` and judged by `numerics`.
  std::optional<std::vector<Mutant>> unseen_mistakes(
      const ReferenceKey& key, const Numerics& numerics, bool gives_lse,
      const std::optional<std::vector<Mutant>>& candidates);
  /// Attention over the context keys of one rank of a DCP group (judge_ranks.h).
  const ReferenceOutput* rank_reference(const ReferenceKey& key, int rank);
  const ReferenceOutput* rank_emulation(const ReferenceKey& key, int rank,
                                        const EmulationRule& rule);
  /// Both, of any rows; not kept.
  std::optional<OwnedYardsticks> rank_yardsticks(const ReferenceKey& key, int rank,
                                                 const EmulationRule& rule,
                                                 const std::vector<std::int32_t>& rows);
  /// Every row of a rank's part, on the device; nothing where it cannot.
  std::optional<ScreenTable> screen_rank(const ReferenceKey& key, int rank,
                                         const ScreenedOutput& output);

 private:
  bool has_cache() const;
  /// Everything but the inputs.
  void forget_results();
  std::optional<ReferenceOutput> compute_rank(const ReferenceKey& key, int rank,
                                              const std::vector<std::int32_t>& rows,
                                              const EmulationRule* rule);
  ReferenceInputs reference_inputs(const ReferenceKey& key);
  const ReferenceOutput* find_or_compute(const ReferenceKey& key,
                                         const std::optional<EmulationRule>& rule);

  Problem problem_;
  ReferenceOptions options_;
  JudgeTools tools_;
  Screening screening_;
  std::optional<AttentionInputs> inputs_;
  // Of a timed sample, else nothing.
  std::vector<MovedKeys> moved_;
  std::vector<int> heads_;  // empty = all
  bool is_sample_ = false;
  const StoredKv* of_batch_ = nullptr;
  std::optional<Tensor> dequantized_query_;  // f32 [T_pad, H, D]
  Memo<StoreRule, StoredKv> stored_;
  Memo<StoreRule, KvSaturation> clipped_;
  /// By rule, too; no rule = the reference itself.
  Memo<std::pair<ReferenceKey, std::optional<EmulationRule>>, ReferenceOutput> computed_;
  Memo<ReferenceKey, ReferenceOutput> in_float32_;
  Memo<std::pair<std::pair<ReferenceKey, std::optional<EmulationRule>>, int>, ReferenceOutput>
      of_ranks_;  // by rule and rank
  std::deque<std::pair<ReferenceKey, BlindAnswers>> unseen_;
};

}  // namespace attnbench
