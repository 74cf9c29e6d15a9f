// One request of a timed sample: what its inputs were, and its rows of what came out.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backends/backend.h"
#include "bench/samples/sample_draw.h"
#include "core/problem/problem.h"
#include "inputs/make_inputs.h"
#include "inputs/mla_inputs.h"
#include "inputs/redraw.h"
#include "reference/attention.h"

namespace attnbench {

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

/// All rows of the query as the redraw made them; keys and values are views, as they were before
/// it.
AttentionInputs redrawn_batch(const AttentionInputs& inputs, std::uint64_t nonce);
/// The first `num_rows` of a query so; the others as they are.
Tensor redrawn_query(const Tensor& query, std::int64_t num_rows, std::uint64_t nonce);
/// Where all keys stand after the redraw: for each row of key and value, in the order of requests,
/// the one that has its bytes. Nothing where there are more than an int32 counts.
std::optional<std::vector<std::int32_t>> places_of_keys(
    const std::vector<std::int64_t>& key_start_loc, std::int64_t num_keys,
    const RedrawBlocks& blocks, const RedrawBlocks::Sources& sources);

/// Tensor [n, H, ...] or, by `dim` 0, [H, ...] with these of its heads; empty = all, a view.
Tensor only_heads(const Tensor& tensor, std::size_t dim, const std::vector<int>& heads);

/// Its rows and heads of output and LSE, as PipelineOutput has them; nothing beside them. Where not
/// all heads are judged, rows that are not judged either are anything.
PipelineOutput output_of_request(const PipelineOutput& output, const JudgedRequest& one);

/// What judge() is told of a problem whose output has these heads alone; empty = all.
Problem problem_of_heads(Problem problem, const std::vector<int>& heads);

}  // namespace attnbench
