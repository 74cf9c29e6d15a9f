// What each rank of a context-parallel group computed before the exchange (semantics §7.6 step 2)
// against the float64 attention over that rank's own keys.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "bench/judge/judge.h"
#include "bench/judge/screened_judgement.h"
#include "core/result/result.h"
#include "reference/attention.h"

namespace attnbench {

/// Non-causal attention of every query over the context keys that `rank` holds (§7.1), with a
/// window over those that it sees; with a rule in storage precision. `values` are query, key and
/// value as they are stored, by the lengths of `inputs`. Nothing when should_stop said so.
std::optional<ReferenceOutput> rank_reference(const Problem& problem, const AttentionMath& math,
                                              const AttentionInputs& inputs,
                                              const ReferenceInputs& values, int rank,
                                              const std::vector<std::int32_t>& rows,
                                              const ReferenceOptions& options,
                                              const EmulationRule* rule = nullptr);

/// The keys of one rank of every request, as rows of AttentionInputs::key. Where the math has a
/// window, every token is a request of its own, of the keys that it sees.
struct RankKeys {
  std::vector<std::int32_t> query_start_loc;  // [B+1] tokens
  std::vector<std::int32_t> seq_lens;         // [B]
  std::vector<std::int64_t> starts;           // [B+1] in `rows`
  std::vector<std::int32_t> rows;
  /// In the whole sequence, of the keys [rows] and of the tokens [T].
  std::vector<std::int32_t> key_positions;
  std::vector<std::int32_t> row_positions;
};
RankKeys keys_of_rank(const Problem& problem, const AttentionMath& math,
                      const AttentionInputs& inputs, int rank);

/// The same attention over those keys, of which nothing is masked.
AttentionMath math_of_rank(const AttentionMath& math);

/// How the part of a rank is judged.
struct RankWays {
  /// Null results: should_stop said so.
  std::function<Yardsticks(int rank)> of_rank;
  /// Of any rows, ascending.
  std::function<std::optional<OwnedYardsticks>(int rank, const std::vector<std::int32_t>& rows)>
      of_rows;
  /// Every row of the part on the device; empty, or nothing, where it cannot.
  std::function<std::optional<ScreenTable>(int rank, const ScreenedOutput& output)> screen;
  /// ScreenedTrial::other_codes of a rank; nothing is asked where it is empty.
  std::function<OtherCodes(int rank)> other_codes = {};
};

/// All ranks of an output; errors and reasons go to `judgement`. Parts are rank_output f32
/// [W, T, H, Dv] and rank_lse f32 [W, H, T]; of MLA they hold the rows and latents of the decodes.
/// They are judged by rows (§14.2) for the attention dtype, on all rows where a device screens. A
/// group of which nothing, or not every rank's part, was handed in is a reason, too: a part that
/// nobody saw is not right. False, and `judgement` is not complete, when should_stop said so.
bool judge_ranks(const Problem& problem, const PipelineOutput& output, const RankWays& ways,
                 Judgement& judgement);

}  // namespace attnbench
