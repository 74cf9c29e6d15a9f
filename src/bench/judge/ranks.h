// What each rank of a context-parallel group computed before the exchange (semantics §7.6 step 2)
// against the float64 attention over that rank's own keys.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "bench/judge/judge.h"
#include "core/result/result.h"
#include "reference/attention.h"

namespace attnbench {

/// Non-causal attention of every query over the context keys that `rank` holds (§7.1), straight
/// from the inputs; with a rule in storage precision. Nothing when should_stop said so.
std::optional<ReferenceOutput> rank_reference(const Problem& problem, const AttentionMath& math,
                                              const AttentionInputs& inputs, int rank,
                                              const std::vector<std::int32_t>& rows,
                                              const ReferenceOptions& options,
                                              const EmulationRule* rule = nullptr);

struct RankJudgement {
  RankErrors errors;
  std::vector<std::string> reasons;  // "rank 1: LSE is in base 2, expected natural", ...
};
/// `output` f32 [W, T, H, Dv] and `lse` f32 [W, H, T] are PipelineOutput's rank_output and
/// rank_lse; of MLA they hold the rows and latents of the decodes. Judged by rows (§14.2) for the
/// attention dtype; the emulation may be null.
RankJudgement judge_rank(const Problem& problem, const Tensor& output, const Tensor& lse, int rank,
                         const Yardsticks& yardsticks);

/// All ranks of an output, where its pipeline has some; errors and reasons go to `judgement`.
/// False, and `judgement` is not complete, when of_rank() gave null: should_stop said so.
bool judge_ranks(const Problem& problem, const PipelineOutput& output,
                 const std::function<Yardsticks(int rank)>& of_rank, Judgement& judgement);

}  // namespace attnbench
