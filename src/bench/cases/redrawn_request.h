// One request of a timed sample: what its inputs were, and its rows of what came out. Every request
// is looked at, in few rows and heads: the whole batch would cost as much as its validation, while
// a few whole requests would leave the others to whoever skips them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "backends/backend.h"
#include "bench/cases/case.h"
#include "core/problem/problem.h"
#include "inputs/make_inputs.h"
#include "inputs/mla_inputs.h"
#include "inputs/redraw.h"
#include "reference/attention.h"

namespace attnbench {

/// A request of a sample that is to be judged: its number, its first row in the batch, and which of
/// its rows and heads.
struct JudgedRequest {
  std::int64_t request = 0;
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::vector<std::int32_t> rows;  // of the request, ascending
  std::vector<int> heads;          // of the query, ascending; empty = all
};

/// Its rows of the query as the redraw `nonce` made them, where the keys and values of the batch
/// stand, of which `moved` have others' (RedrawBlocks::moved_rows): to copy all keys of a sample
/// takes as long as to compute its rows.
struct RedrawnRows {
  /// The query [one.rows, H, D] of those rows; keys and values are views of the batch's.
  AttentionInputs inputs;
  std::vector<MovedKeys> moved;
};
RedrawnRows redrawn_rows(const AttentionInputs& inputs, const JudgedRequest& one,
                         std::uint64_t nonce, const std::vector<MovedRows>& moved);
/// The request's own tensors, its query in one.rows alone, of all heads.
MlaInputs redrawn_request(const MlaInputs& inputs, const JudgedRequest& one, std::uint64_t nonce,
                          const std::vector<MovedRows>& moved);

/// Tensor [n, H, ...] or, by `dim` 0, [H, ...] with these of its heads; empty = all, a view.
Tensor only_heads(const Tensor& tensor, std::size_t dim, const std::vector<int>& heads);

/// Its rows and heads of output and LSE, as PipelineOutput has them; nothing beside them. Where not
/// all heads are judged, rows that are not judged either are anything.
PipelineOutput output_of_request(const PipelineOutput& output, const JudgedRequest& one);

/// What judge() is told of a problem whose output has these heads alone; empty = all.
Problem problem_of_heads(Problem problem, const std::vector<int>& heads);

/// Draws what is looked at in a sample: of every request with a query something (of at least 16
/// where there are more than can be afforded), of a few everything that many rows and all heads
/// show. Those come first.
std::vector<JudgedRequest> draw_judged(const Problem& problem, std::mt19937_64& random);

/// Judges one of them with the threads of `options`. Called by several threads at once.
using JudgeRequest = std::function<std::optional<Judgement>(const JudgedRequest& one,
                                                            const ReferenceOptions& options)>;

/// Judges those that are drawn, several at a time; the first one that is wrong decides, or the one
/// that is closest to its limit. Where some heads alone look wrong, the same rows of all heads have
/// the word, since limits go by their median. Nothing when `judge` says nothing.
std::optional<SampleVerdict> judge_drawn(const Problem& problem, const ReferenceOptions& options,
                                         const JudgeRequest& judge);

}  // namespace attnbench
