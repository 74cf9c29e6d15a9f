// What a request's result depends on beside the request itself.
//
// An engine serves the same prompt in another batch every time: beside other requests, in other
// pages, in chunks, as a prefill today and as a decode tomorrow. A kernel need not give the same
// bytes each time, but whoever debugs a model that answers differently at night wants to know
// which of these changes matter. The study keeps query, keys and values of one request bit by bit
// and changes one thing after the other around it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "core/problem/problem.h"
#include "ops/ops.h"
#include "reference/attention.h"

namespace attnbench {

/// The request after one change.
struct InvarianceRow {
  std::string change;   // "last of 8 requests", the same words for every backend
  std::string refusal;  // why the backend cannot run it so; empty = it did
  bool equal = false;   // the same bytes as the request by itself
  double max_abs = 0;   // largest difference from them
  double row_error = std::numeric_limits<double>::quiet_NaN();  // as below
};

struct InvarianceReport {
  std::int64_t request = 0;  // of the batch
  /// Largest ||a - r|| / ||r|| over checked rows of heads, the request run by itself. NaN where
  /// every reference row is zero.
  double row_error = std::numeric_limits<double>::quiet_NaN();
  std::vector<InvarianceRow> rows;
};

/// Empty, or why the study has nothing to say of such a problem: it needs the queries, keys and
/// values of one request, which latents, images and operations do not have.
std::string why_no_invariance(const Problem& problem);

/// Studies the last request with new tokens. `backend` supports `problem`, and why_no_invariance()
/// is empty. A change that makes no sense for the request (chunks of a single token) is left out.
/// Errors: those of preparing and running a pipeline.
InvarianceReport study_invariance(const Problem& problem, const Backend& backend, Ops& ops,
                                  const DeviceFacts& device, const ReferenceOptions& options);

}  // namespace attnbench
