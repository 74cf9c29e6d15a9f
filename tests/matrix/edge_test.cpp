// The checklist of semantics §18.1 over every attention operation and backend, as one matrix: each
// cell runs, is refused in the expected words, or says why it does not apply.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <string>
#include <type_traits>

#include "bench/cases/op_inputs.h"
#include "edge_entries.h"
#include "far_ops.h"
#include "inputs/make_inputs.h"
#include "inputs/mla_inputs.h"
#include "observing_ops.h"
#include "strided_ops.h"

namespace attnbench::matrix {
namespace {

struct Tally {
  int passed = 0;
  int refused = 0;
  int not_applicable = 0;
};

/// Whether rows behind the last token exist and are NaN.
bool has_poisoned_rows(const Problem& problem) {
  if (problem.attention.type == AttentionType::kOp) {
    const OpInputs inputs = make_op_inputs(problem);
    return std::any_of(inputs.tensors.begin(), inputs.tensors.end(), [&](const auto& operand) {
      const Tensor& tensor = operand.second;
      return tensor.dim(0) > problem.num_tokens() &&
             std::isnan(tensor.at(tensor.num_elements() - 1));
    });
  }
  const bool mla = problem.attention.type == AttentionType::kMla;
  const Tensor query = mla ? make_mla_inputs(problem).query : make_inputs(problem).query;
  if (query.dim(0) <= problem.num_tokens()) return false;
  return std::isnan(query.at(query.num_elements() - 1));
}

/// Empty, or why the case was none of what the variation is about.
std::string missed(Demand demand, const Problem& problem, const ObservingOps& observed,
                   const StridedOps& strided, const FarOps& far) {
  switch (demand) {
    case Demand::kNone:
      return "";
    case Demand::kNegativeSlot:
      return observed.saw_negative_slot() ? "" : "no slot was negative";
    case Demand::kSharedPage:
      return observed.saw_shared_page() ? "" : "no page was shared";
    case Demand::kPaddingRows:
      return has_poisoned_rows(problem) ? "" : "no padding rows of NaN";
    case Demand::kStridedViews:
      return strided.num_views() > 0 ? "" : "no view was spread";
    case Demand::kFarOffsets:
      return far.num_moves() > 0 ? "" : "nothing was moved";
  }
  return "";
}

class Runner {
 public:
  Runner() : ops_(make_cpu_ops(1)) {}

  void run(const Target& target, const Variation& variation, Tally& tally) {
    Problem problem = target_problem(target, variation.settings);
    if (variation.edit) variation.edit(problem);
    std::optional<CraftedInputs> crafted;
    if (variation.scores) crafted.emplace(*variation.scores, problem);
    ObservingOps observed(*ops_);
    StridedOps strided(*ops_);
    FarOps far(*ops_);
    Ops* ops = &observed;
    if (variation.demand == Demand::kStridedViews) ops = &strided;
    if (variation.demand == Demand::kFarOffsets) ops = &far;
    // Nothing is mapped behind a buffer in one half of the cases, and before it in the other.
    is_at_start_ = !is_at_start_;
    ops_->place_buffers(is_at_start_ ? Placement::kAtStart : Placement::kAtEnd);
    const Backend* backend = find_backend(target.backend);
    REQUIRE(backend != nullptr);
    const CaseResult result = run_case(problem, *backend, *ops, {.sm = target.sm});
    if (!variation.refusal.empty()) {
      const auto& reasons = result.reasons;
      CHECK_MESSAGE(result.outcome == Outcome::kRefused, "expected a refusal");
      CHECK_MESSAGE(std::find(reasons.begin(), reasons.end(), variation.refusal) != reasons.end(),
                    "expected the reason '", variation.refusal, "', found ", result.text());
      ++tally.refused;
      return;
    }
    CHECK_MESSAGE(result.outcome == Outcome::kPassed, result.text());
    const std::string lacking = missed(variation.demand, problem, observed, strided, far);
    CHECK_MESSAGE(lacking.empty(), lacking);
    ++tally.passed;
  }

 private:
  std::unique_ptr<Ops> ops_;
  bool is_at_start_ = false;
};

void run_cell(Runner& runner, const Entry& entry, const Target& target, Tally& tally) {
  INFO(entry.name, " / ", target.name);
  const Cell cell = entry.cell(target);
  if (const auto* none = std::get_if<NotApplicable>(&cell)) {
    CHECK_MESSAGE(!none->reason.empty(), "a cell that does not apply must say why");
    ++tally.not_applicable;
    return;
  }
  const auto& variations = std::get<std::vector<Variation>>(cell);
  CHECK_MESSAGE(!variations.empty(), "the matrix lacks this cell");
  for (const Variation& variation : variations) {
    INFO(variation.label);
    try {
      runner.run(target, variation, tally);
    } catch (const std::exception& error) {
      FAIL_CHECK(std::string(error.what()));
    }
  }
}

template <typename Params>
concept HasKv = requires(Params p) {
  p.kv;
};
template <typename Params>
concept HasSlots = requires(Params p) {
  p.slot_mapping;
};
template <typename Params>
concept HasEntries = requires(Params p) {
  p.entries;
};

/// Whether a paged cache, or ragged keys, are among the parameters of an operation.
template <typename Wrapper, typename... Params>
constexpr bool has_cache(void (Wrapper::*)(const Params&...)) {
  return ((HasKv<Params> || HasSlots<Params> || HasEntries<Params>) || ...);
}

/// Whether a wrapper of Ops has this operation itself: an inherited one is of ForwardingOps.
template <typename Wrapper, typename... Params>
constexpr bool is_overridden(void (Wrapper::*)(const Params&...)) {
  return !std::is_same_v<Wrapper, ForwardingOps>;
}

}  // namespace

TEST_CASE("every entry of the edge-case checklist holds for every attention operation") {
  const auto start = std::chrono::steady_clock::now();
  Runner runner;
  Tally tally;
  for (const Entry& entry : edge_entries()) {
    for (const Target& target : edge_targets()) run_cell(runner, entry, target, tally);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  fmt::print(
      "edge cases: {} entries x {} targets: {} cases passed, {} refused as expected, {} "
      "cells do not apply; {:.1f} s\n",
      edge_entries().size(), edge_targets().size(), tally.passed, tally.refused,
      tally.not_applicable, elapsed.count());
}

TEST_CASE("every backend with an attention operation is a target of the matrix") {
  for (const Backend* backend : all_backends()) {
    const bool attends = backend->is_default_for(AttentionType::kDecoder) ||
                         backend->is_default_for(AttentionType::kMla) ||
                         backend->is_default_for(AttentionType::kMmEncoder);
    if (!attends) continue;
    CHECK_MESSAGE(std::any_of(edge_targets().begin(), edge_targets().end(),
                              [&](const Target& t) { return t.backend == backend->name(); }),
                  std::string(backend->name()));
  }
}

TEST_CASE("every single operation is a target of the matrix") {
  for (const auto& row : enum_rows(OpKind{})) {
    CHECK_MESSAGE(std::any_of(edge_targets().begin(), edge_targets().end(),
                              [&](const Target& t) { return t.op == row.value; }),
                  row.name);
  }
}

TEST_CASE("every operation on a cache is moved by FarOps") {
  // These get the parameters of the attention too, but read partial results and no keys.
  const std::set<std::string> combinations{"combine_splits", "reduce_segments", "combine_plan"};
  std::size_t num_moved = 0;
#define ATTNBENCH_OPERATION(name, parameters, arguments)                          \
  if (has_cache(&Ops::name) && !combinations.contains(#name)) {                   \
    CHECK_MESSAGE(is_overridden(&FarOps::name), "FarOps only passes on ", #name); \
    ++num_moved;                                                                  \
  }
#include "ops/operations.def"
  CHECK(num_moved >= 15);
}

}  // namespace attnbench::matrix
