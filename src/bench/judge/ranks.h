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
/// from the inputs. Nothing when should_stop said so.
std::optional<ReferenceOutput> rank_reference(const Problem& problem, const AttentionMath& math,
                                              const AttentionInputs& inputs, int rank,
                                              const std::vector<std::int32_t>& rows,
                                              const ReferenceOptions& options);

struct RankJudgement {
  RankErrors errors;
  std::vector<std::string> reasons;  // "rank 1: LSE is in base 2, expected natural", ...
};
/// `output` f32 [W, T, H, Dv] and `lse` f32 [W, H, T] are PipelineOutput's rank_output and
/// rank_lse; of MLA they hold the rows and latents of the decodes. Judged by §14.2 for the
/// attention dtype; err_ratio is not, as the parts are float32.
RankJudgement judge_rank(const Problem& problem, const Tensor& output, const Tensor& lse, int rank,
                         const ReferenceOutput& reference);

/// All ranks of an output, where its pipeline has some; errors and reasons go to `judgement`.
/// False, and `judgement` is not complete, when reference_of() gave null: should_stop said so.
bool judge_ranks(const Problem& problem, const PipelineOutput& output,
                 const std::function<const ReferenceOutput*(int rank)>& reference_of,
                 Judgement& judgement);

}  // namespace attnbench
