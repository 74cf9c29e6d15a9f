// One request of a timed sample: what its inputs were, and its rows of what came out. Some rows of
// a few requests say enough of a sample, and cost little where the whole batch would cost much.
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
/// its rows.
struct JudgedRequest {
  std::int64_t request = 0;
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::vector<std::int32_t> rows;  // of the request, ascending
};

/// The request's own tensors after the redraw `nonce`, its query in one.rows alone. `blocks`: those
/// that may change.
AttentionInputs redrawn_request(const AttentionInputs& inputs, const JudgedRequest& one,
                                std::uint64_t nonce, const RedrawBlocks& blocks);

/// The same, where the keys and values of the batch stand: to copy those of a sample takes as long
/// as to compute its rows.
struct RedrawnRows {
  /// The query [one.rows, H, D] of those rows; keys and values are views of the batch's.
  AttentionInputs inputs;
  std::vector<MovedKeys> moved;
};
RedrawnRows redrawn_rows(const AttentionInputs& inputs, const JudgedRequest& one,
                         std::uint64_t nonce, const RedrawBlocks& blocks);
MlaInputs redrawn_request(const MlaInputs& inputs, const JudgedRequest& one, std::uint64_t nonce,
                          const RedrawBlocks& blocks);
/// The same with all of its query, where scales follow it, and with the keys as they were.
AttentionInputs redrawn_whole_request(const AttentionInputs& inputs, std::int64_t request,
                                      std::uint64_t nonce);

/// Rows [first, first + count) of output and LSE, as PipelineOutput has them; nothing beside them.
/// The output is a view.
PipelineOutput rows_of_request(const PipelineOutput& output, std::int64_t first,
                               std::int64_t count);

/// Draws requests and rows of the batch. Few, and fewer of long requests.
std::vector<JudgedRequest> draw_judged(const Problem& problem);

/// Judges one of them with the threads of `options`. Called by several threads at once.
using JudgeRequest = std::function<std::optional<Judgement>(const JudgedRequest& one,
                                                            const ReferenceOptions& options)>;

/// Judges those that are drawn, several at a time; the first one that is wrong decides, or the one
/// that is closest to its limit. Nothing when `judge` says nothing.
std::optional<SampleVerdict> judge_drawn(const Problem& problem, const ReferenceOptions& options,
                                         const JudgeRequest& judge);

}  // namespace attnbench
