// A workload of FlashInfer-Trace -> a scenario of one case, with its tensors where it has any.
//
// What changes on the way, since this program says it in another way:
// - Lengths are indptrs over pages there. A request's keys fill its pages unless kv_last_page_len
//   or kv_len_arr says otherwise. Which pages are its own does not matter for the scenario; where
//   values are given, they are gathered in the order of kv_indices, which is that of positions.
// - Pages of fewer than 16 tokens become blocks of 16: one page is a part of a block.
// - Queries of MLA are absorbed already. Where values are given, W_UK and W_UV are unit matrices,
//   so that the attention computes the very same.
// - The rows of sparse attention belong to no request. Each becomes a request of its own, whose
//   keys are those that sparse_indices lists, in that order.
// - Indptrs that no file gives ("random", or inputs of plan()) are lengths as equal as they can be.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "interop/trace/definition.h"

namespace attnbench {

/// The attentions that can be taken over.
enum class TraceKind { kGqaPaged, kRagged, kMlaPaged, kSparseMla };

/// By the names of the inputs. Errors: E-VALUE naming those that were found and the sets that are
/// known.
TraceKind trace_kind(const TraceDefinition& definition);

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
