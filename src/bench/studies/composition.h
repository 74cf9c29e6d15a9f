// Attention by one library, its partial results merged by another, the ranks combined by a third:
// does what comes out belong to the whole?
//
// Engines put such chains together from kernels of several origins. Each is right by itself, and
// the chain is wrong when two of them mean different things by an LSE: its base, the order of its
// axes. The study cuts the keys of each request into four parts, two for each of two ranks, runs
// every chain on them, holds the result against float64 attention over all keys, and tells from the
// numbers themselves how each LSE is written.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "core/problem/problem.h"
#include "core/tensor.h"
#include "ops/ops.h"
#include "reference/attention.h"

namespace attnbench {

/// How the numbers of an LSE are written, as far as they tell.
struct FoundLse {
  bool base_two = false;
  bool by_token = false;  // a token's heads side by side
};

/// How `lse` f32 [H, T] is written, whose natural values are `expected` [H, T]. Nothing when no
/// convention fits within `tolerance`, absolute. Infinities and NaN of `expected` are passed over.
std::optional<FoundLse> find_lse_convention(const Tensor& lse, std::span<const double> expected,
                                            double tolerance);

/// One chain.
struct CompositionRow {
  std::string attention;
  std::string merge;
  std::string combine;
  std::string refusal;                  // why it could not be run; empty = it was
  std::vector<std::string> mismatches;  // sentences that name who means what by an LSE
  /// Largest ||a - r|| / ||r|| of a row of a head against attention over all keys.
  double row_error = std::numeric_limits<double>::quiet_NaN();
  bool fits = false;  // the row error is one of rounding the parts to their type
};

/// Who takes part. Each of `combines` is run with both exchanges of semantics §7.
struct CompositionMembers {
  std::vector<const Backend*> attentions;
  std::vector<const Backend*> merges;
  std::vector<const Backend*> combines;
};

/// Empty, or why such a problem cannot be cut by its keys.
std::string why_no_composition(const Problem& problem);

/// The candidates by what they do not refuse: the problem as decodes, a merge of two of its parts,
/// the correction of its ranks.
CompositionMembers members_of(const Problem& problem, const std::vector<const Backend*>& candidates,
                              const DeviceFacts& device);

/// Runs every chain on the requests of `problem` as decodes of one token. why_no_composition() is
/// empty. Errors: those of preparing and running a pipeline; what a member refuses is a row.
std::vector<CompositionRow> study_composition(const Problem& problem,
                                              const CompositionMembers& members, Ops& ops,
                                              const DeviceFacts& device,
                                              const ReferenceOptions& options);

}  // namespace attnbench
