// A workload of FlashInfer-Trace -> a scenario of one case, with its tensors where it has any; the
// indexer of sparse MLA -> a scenario of two cases, the operations that it consists of.
//
// What changes on the way, since this program says it in another way:
// - Lengths: lengths.h.
// - Pages of fewer than 16 tokens become blocks of 16: one page is a part of a block.
// - Queries of MLA are absorbed already. Where values are given, W_UK and W_UV are unit matrices,
//   so that the attention computes the very same.
// - bmm1_scale is all that multiplies the scores, and bmm2_scale the output. Both of an fp8 cache
//   stay where they are: as the scale of the softmax, over codes with k_scale 1, and as v_scale.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "interop/trace/definition.h"
#include "interop/trace/form.h"

namespace attnbench {

struct TraceScenario {
  std::string name;                                     // of the scenario, and of its files
  std::string text;                                     // YAML
  std::string workload;                                 // the workload's record, one line of JSON
  std::vector<std::pair<std::string, Tensor>> tensors;  // for inputs.file; empty where drawn
  std::vector<std::string> notices;
};

/// `root`: what paths of safetensors files are relative to. `backends`: for the scenario's key of
/// that name; empty = the key is left out. `taken`: names that others have; a scenario that would
/// have one of these gets 8 digits of a hash behind its own. Errors: E-VALUE for what attnbench has
/// no case for, with the workload's uuid; E-IO, E-FORMAT and E-SHAPE for tensors.
TraceScenario trace_scenario(const TraceDefinition& definition, const TraceWorkload& workload,
                             const std::filesystem::path& root,
                             const std::vector<std::string>& backends,
                             const std::set<std::string>& taken = {});

/// Writes NAME.yaml, NAME.workload.json and, with tensors, NAME.safetensors into the folder, which
/// is made. Returns the path of the first. Errors: E-IO.
std::filesystem::path write_trace_scenario(const TraceScenario& scenario,
                                           const std::filesystem::path& folder);

}  // namespace attnbench
