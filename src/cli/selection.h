// Scenarios, --backend and --filter -> the (case, backend) pairs that a command is about.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/scenario_files.h"

namespace attnbench {

class Backend;

/// A listed pair.
struct Pair {
  const LoadedScenario* source = nullptr;
  const Problem* problem = nullptr;
  const Backend* backend = nullptr;
  std::string id;  // "<scenario>/<case>/<backend>"
};

/// The backends that the scenario names, each once. Errors: E-CONFIG for an unknown name.
std::vector<const Backend*> backends_of(const Scenario& scenario);

/// Pairs in file order, all backends of a case together. Backends: --backend, else the scenario's
/// `backends`, else the native ones of the attention type; for a type that no backend of this
/// version serves, the native decoder backends, so that their refusals are seen. Pairs that
/// --filter does not match are left out. Errors: kUsage for an unknown --backend or a bad regex,
/// E-CONFIG for an unknown name in a scenario.
std::vector<Pair> select_pairs(const std::vector<LoadedScenario>& scenarios,
                               const SelectionOptions& options);

}  // namespace attnbench
