// One request of a batch on its own: is its result the same bytes as in the batch?
//
// A kernel is batch invariant when what it computes for a request does not depend on the requests
// beside it. Kernels that split the keys of a request by how full the device is are not, and that
// is no error by itself: it is reported for every backend, and fails a case only where the scenario
// demands it (attention.batch_invariant). The request keeps its tokens, keys and values bit by bit;
// only its place changes, so every difference is the kernel's.
#pragma once

#include <cstdint>
#include <optional>

#include "core/problem/problem.h"
#include "core/result/result.h"
#include "inputs/make_inputs.h"

namespace attnbench {

/// The last request with new tokens and keys; nothing where the batch has no other of either.
std::optional<std::int64_t> request_to_repeat(const Problem& problem);

/// The problem with no other request than `request`, without the shared prefix of a cascade and
/// with just the pages that it needs.
Problem problem_of_request(const Problem& problem, std::int64_t request);
/// The request's own rows, keys and values; what belongs to the heads stays.
AttentionInputs inputs_of_request(const AttentionInputs& inputs, std::int64_t request);
/// The same without a query.
AttentionInputs keys_of_request(const AttentionInputs& inputs, std::int64_t request);

/// Compares `alone`, the output of the request by itself, with its rows of the batch's output,
/// which start at `first_row`. Shapes that do not fit are a difference without bound.
BatchInvariance compare_alone(std::int64_t request, const Tensor& in_batch, std::int64_t first_row,
                              const Tensor& alone);

}  // namespace attnbench
