// Which backend vLLM would take for a problem by itself, where the user names none (semantics
// §13.6): every backend that it considers, in its order, with its reasons against each.
//
// The order and the limits are upstream's, of the release after U-May (0.22.0), and not those of
// the backends of this program, which take more on some devices and refuse features that upstream
// finds out about later. So a problem may be judged here on one backend and be served upstream by
// another; that is what this is for. Who adds a backend of upstream's adds its row in
// upstream_choice.cpp too, with its place in the lists of priorities.
//
// Nothing here decides what is run: it makes sentences for `explain`, and for the names of upstream
// that have no pipeline here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "core/problem/problem.h"

namespace attnbench {

struct UpstreamCandidate {
  std::string name;                  // upstream's: "TRITON_MLA"
  std::string here;                  // the backend of this program: "MLA"; empty = there is none
  std::vector<std::string> reasons;  // in the words and order of §13.1; empty = upstream takes it
};

/// In the order in which upstream tries them; it takes the first without reasons. Empty for single
/// operations, which nobody chooses a backend for. Only the compute capability of `device` counts.
std::vector<UpstreamCandidate> upstream_candidates(const Problem& problem,
                                                   const DeviceFacts& device);

/// Index of the one that upstream takes; the number of candidates when there is none.
std::size_t upstream_choice(const std::vector<UpstreamCandidate>& candidates);

/// What upstream says to a user who names this backend of its for the problem; empty = it takes it,
/// or the name is none that upstream_choice.cpp has limits of.
std::string upstream_refusal(std::string_view name, const Problem& problem,
                             const DeviceFacts& device);

/// What upstream finds out only after it has chosen among `candidates`, e.g. that an encoder in fp8
/// needs another backend; and which backends only the block size kept from being chosen.
std::vector<std::string> upstream_afterthoughts(const Problem& problem, const DeviceFacts& device,
                                                const std::vector<UpstreamCandidate>& candidates);

}  // namespace attnbench
