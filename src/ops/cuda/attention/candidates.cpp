// The list of candidates, and the walk along it: once to decide, with the reasons of all, and once
// to choose, which stops at the first. Both must come to the same candidate.
#include "ops/cuda/attention/candidates.h"

#include "core/error.h"
#include "ops/cuda/attention/hopper_tiles.h"
#include "ops/cuda/attention/hopper_wide_values.h"
#include "ops/tile_deal.h"

namespace attnbench::cuda {
namespace {

std::string misfit_of(const AttendCandidate& candidate, const Target& target,
                      const AttendCall& call) {
  if (call.params->kv.rope != nullptr && !candidate.knows_ropes) {
    return "keys whose rope part lies apart: it reads whole keys";
  }
  if (call.params->kv.value_block_table != nullptr && !candidate.knows_value_pages) {
    return "values in pages of their own: it reads those of the keys";
  }
  return candidate.misfit(target, call);
}

/// Empty for a candidate that never yields.
std::string reason_to_yield(const AttendCandidate& candidate, const Target& target,
                            const AttendCall& call) {
  return candidate.yields == nullptr ? std::string() : candidate.yields(target, call);
}

/// Names come from the command line, where they have been checked.
const AttendCandidate& find_candidate(std::string_view forced) {
  const std::string_view name = parse_forced_kernel(forced).name;
  for (const AttendCandidate* candidate : attend_candidates()) {
    if (candidate->name == name) return *candidate;
  }
  fail(ErrorKind::kInternal, "there is no attention kernel '{}'", name);
}

/// Of attend() with these parameters: the name of the candidate that does it; "" where none does.
std::string name_of_chosen(const Target& target, const attn::AttendParams& params,
                           std::string_view forced) {
  AttendCall call;
  call.params = &params;
  for (const CandidateVerdict& verdict : decide_attend(target, call, forced).candidates) {
    if (verdict.is_chosen) return verdict.name;
  }
  return {};
}

/// `forced` as far as it is heeded in this call: "" where the forced kernel leaves it to others.
std::string_view heeded(const AttendCall& call, std::string_view forced) {
  if (forced.empty()) return forced;
  const AttendCandidate& candidate = find_candidate(forced);
  const bool is_left =
      candidate.leaves != nullptr && candidate.leaves(parse_forced_kernel(forced).options, call);
  return is_left ? std::string_view() : forced;
}

}  // namespace

const std::vector<const AttendCandidate*>& attend_candidates() {
  static const std::vector<const AttendCandidate*> candidates{
      &kF32Candidate,      &kDecodeCandidate,      &kHopperPrefillCandidate,
      &kPrefillCandidate,  &kLatentCandidate,      &kLatentCodesCandidate,
      &kGatheredCandidate, &kHopperTilesCandidate, &kGeneralCandidate,
  };
  return candidates;
}

std::vector<std::string> attend_candidate_names() {
  std::vector<std::string> names;
  for (const AttendCandidate* candidate : attend_candidates()) names.emplace_back(candidate->name);
  return names;
}

ForcedKernel parse_forced_kernel(std::string_view forced) {
  const std::size_t colon = forced.find(':');
  if (colon == std::string_view::npos) return {forced, {}};
  return {forced.substr(0, colon), forced.substr(colon + 1)};
}

std::string_view forced_options(std::string_view forced, std::string_view name) {
  const ForcedKernel kernel = parse_forced_kernel(forced);
  return kernel.name == name ? kernel.options : std::string_view();
}

TileUse tile_use(const Target& target, const attn::AttendParams& params, std::string_view forced) {
  if (!forced.empty()) {
    const bool is_listed = parse_forced_kernel(forced).name == kHopperTilesCandidate.name;
    return is_listed ? TileUse::kAlways : TileUse::kNever;
  }
  attn::TileListParams list{};
  list.parts.num_splits = 1;
  AttendCall call;
  call.operation = AttendOperation::kTiles;
  call.params = &params;
  call.list = &list;
  // Tiles of few rows and of many.
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{1} << 30}) {
    list.tile_rows = tile_rows_for(params.head_size, params.v_head_size, rows);
    if (!kHopperTilesCandidate.misfit(target, call).empty()) return TileUse::kNever;
  }
  return TileUse::kWhereItPays;
}

TileUse beside_use(const attn::AttendParams& params, std::string_view forced) {
  return hopper_beside_use(params, forced_options(forced, kHopperTilesCandidate.name));
}

/// Why a forced kernel is left alone: whoever names one wants to see what it does with the batch.
/// Why only beside the Hopper kernel: the others were not measured.
ApartUse apart_use(const Target& target, const attn::AttendParams& params,
                   std::string_view forced) {
  if (!forced.empty()) {
    const AttendCandidate& candidate = find_candidate(forced);
    const bool is_wanted = candidate.attends_apart != nullptr &&
                           candidate.attends_apart(parse_forced_kernel(forced).options);
    return is_wanted ? ApartUse::kAlways : ApartUse::kNever;
  }
  const bool pays = name_of_chosen(target, params, {}) == kHopperPrefillCandidate.name;
  return pays ? ApartUse::kWhereItPays : ApartUse::kNever;
}

bool takes_rope_apart(const Target& target, const attn::AttendParams& params,
                      std::string_view forced) {
  attn::AttendParams whole = params;
  whole.kv.rope = nullptr;
  whole.kv.head_stride_key = params.head_size;
  whole.kv.token_stride_key = attn::i64{params.num_kv_heads} * params.head_size;
  const std::string apart = name_of_chosen(target, params, forced);
  return !apart.empty() && apart == name_of_chosen(target, whole, forced);
}

/// Why a forced kernel has to ask for it: who names one wants to see it at work.
WideUse wide_use(const Target& target, const attn::AttendParams& params, std::string_view forced) {
  if (!forced.empty()) {
    const AttendCandidate& candidate = find_candidate(forced);
    const bool is_wanted = candidate.wants_wide != nullptr &&
                           candidate.wants_wide(parse_forced_kernel(forced).options) &&
                           name_of_chosen(target, params, forced) == candidate.name;
    return is_wanted ? WideUse::kAlways : WideUse::kNever;
  }
  const bool pays = params.kv.value_block_table == nullptr || wide_values_pay(params).pays;
  const bool is_chosen = name_of_chosen(target, params, {}) == kHopperPrefillCandidate.name;
  return pays && is_chosen ? WideUse::kWhereItPays : WideUse::kNever;
}

std::string forced_options_misfit(std::string_view forced) {
  const ForcedKernel kernel = parse_forced_kernel(forced);
  if (kernel.name.size() == forced.size()) return "";
  const AttendCandidate& candidate = find_candidate(forced);
  if (candidate.options_misfit == nullptr) return "it has no options";
  return candidate.options_misfit(kernel.options);
}

std::string_view operation_name(AttendOperation operation) {
  switch (operation) {
    case AttendOperation::kWhole:
      return "attend";
    case AttendOperation::kSplits:
      return "attend_splits";
    case AttendOperation::kSegments:
      return "attend_segments";
    case AttendOperation::kPlan:
      return "attend_plan";
    case AttendOperation::kSparse:
      return "attend_sparse";
    case AttendOperation::kSparsePlan:
      return "attend_sparse_plan";
    case AttendOperation::kTiles:
      return "attend_tiles";
  }
  return "";
}

int AttendCall::num_parts() const {
  if (split != nullptr) return split->num_splits;
  return segments != nullptr ? segments->num_segments : 1;
}

AttendDecision decide_attend(const Target& target, const AttendCall& call,
                             std::string_view forced) {
  AttendDecision decision{std::string(operation_name(call.operation)), {}};
  forced = heeded(call, forced);
  bool is_open = true;
  for (const AttendCandidate* candidate : attend_candidates()) {
    CandidateVerdict& verdict = decision.candidates.emplace_back();
    verdict.name = candidate->name;
    verdict.reason = misfit_of(*candidate, target, call);
    verdict.fits = verdict.reason.empty();
    if (!verdict.fits) continue;
    verdict.reason = reason_to_yield(*candidate, target, call);
    const bool may_be = forced.empty() ? verdict.reason.empty()
                                       : parse_forced_kernel(forced).name == candidate->name;
    verdict.is_chosen = is_open && may_be;
    if (verdict.is_chosen) is_open = false;
  }
  return decision;
}

const AttendCandidate& choose_attend(const Target& target, const AttendCall& call,
                                     std::string_view forced) {
  std::string reason;
  forced = heeded(call, forced);
  if (!forced.empty()) {
    const AttendCandidate& candidate = find_candidate(forced);
    reason = misfit_of(candidate, target, call);
    if (reason.empty()) return candidate;
    fail(ErrorKind::kUnsupported, "kernel {} cannot do {}: {}", forced,
         operation_name(call.operation), reason);
  }
  for (const AttendCandidate* candidate : attend_candidates()) {
    reason = misfit_of(*candidate, target, call);
    if (reason.empty() && reason_to_yield(*candidate, target, call).empty()) return *candidate;
  }
  fail(ErrorKind::kUnsupported, "{}", reason);
}

void check_attend(const Target& target, const attn::AttendParams& params) {
  AttendCall call;
  call.params = &params;
  choose_attend(target, call, {});
}

}  // namespace attnbench::cuda
