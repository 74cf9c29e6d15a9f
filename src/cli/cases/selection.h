// Scenarios, --backend, --filter and --part -> the (case, backend) pairs that a command is about.
//
// A pair and its id are what everything else names: results, journals, baselines, the command that
// repeats a case. The order of pairs is that of the results.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/cases/scenario_files.h"
#include "cli/options/shared_options.h"
#include "core/parsing.h"

namespace attnbench {

class Backend;

/// A regular expression that is searched in result ids; one of an empty text matches all.
class IdFilter {
 public:
  /// `option` is for error messages: "--filter". Errors: kUsage for a bad expression.
  IdFilter(const std::string& text, std::string option);
  /// Errors: kUsage for an expression that takes too long.
  bool matches(const std::string& id) const;

 private:
  std::string option_;
  std::optional<Pattern> pattern_;
};

/// A listed pair.
struct Pair {
  const LoadedScenario* source = nullptr;
  const Problem* problem = nullptr;
  const Backend* backend = nullptr;
  std::string id;  // "<scenario>/<case>/<backend>"
};

/// The backends that the scenario names, each once; `plugins` are known beside the built-in ones.
/// Errors: E-CONFIG for an unknown name, of a backend or, behind '@', of an attention kernel.
std::vector<const Backend*> backends_of(const Scenario& scenario,
                                        const std::vector<const Backend*>& plugins = {});

/// "K/N" for "slurm", by the variables of a Slurm array job; any other text as it is. Errors:
/// kUsage outside of an array job.
std::string numbered_part(const std::string& part);

/// Pairs in file order, all backends of a case together. Backends: --backend, else the scenario's
/// `backends`, else the native ones of the attention type; for a type that no backend of this
/// version serves, the native decoder backends, so that their refusals are seen. Without --backend
/// those of `plugins` that are of libraries come after them: who loads a library wants to see its
/// backends. With --kernel all of them are held to that kernel. Pairs that --filter does not match
/// are left out, and then those that --part does not take; without --part-costs the runs of cases
/// that share their inputs are dealt to the parts in turn. Errors: kUsage for an unknown --backend
/// or --kernel, both naming a kernel, a bad regex or part, E-CONFIG for an unknown name
/// in a scenario.
std::vector<Pair> select_pairs(const std::vector<LoadedScenario>& scenarios,
                               const SelectionOptions& options,
                               const std::vector<const Backend*>& plugins = {});

/// Why select_pairs() gave none: "no result id matches --filter 'zzz'".
std::string why_no_pairs(const SelectionOptions& options);

}  // namespace attnbench
