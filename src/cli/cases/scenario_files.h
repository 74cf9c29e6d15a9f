// SCENARIO arguments of the command line -> files -> loaded scenarios.
//
// An argument is a path or the name of a shipped scenario. Everything that a scenario says about
// other files is checked when it is loaded, so that a command either has all of its input or ends
// with an error before it did anything.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "cli/outputs.h"
#include "scenario/scenario.h"

namespace attnbench {

/// A SCENARIO argument with what it says.
struct LoadedScenario {
  std::string argument;  // as given, for the repro line
  Scenario scenario;
  std::vector<std::string> notices;  // about the files that its cases name; may repeat
};

/// The scenarios/ folders of the installation (<prefix>/share/attnbench/scenarios) and of the
/// source tree, those that exist.
std::vector<std::filesystem::path> installed_scenario_dirs();

/// `argument` as a path, or below one of `search_path`, with or without .yaml. Errors: E-IO naming
/// where it was looked for and the nearest name.
std::filesystem::path find_scenario(const std::string& argument,
                                    const std::vector<std::filesystem::path>& search_path);

/// Names relative to `dir`, without .yaml, of the scenarios there: suites first, then models/.
std::vector<std::string> scenario_names(const std::filesystem::path& dir);

/// Finds and loads all, and takes sinks and scales from the files that the cases name; nothing is
/// returned unless all are valid. `overrides` are KEY=VALUE pairs that go over every file. Errors:
/// those of load_scenario, and E-CONFIG when two scenarios have the same name, which would make
/// result ids ambiguous.
std::vector<LoadedScenario> load_scenarios(
    const std::vector<std::string>& arguments,
    const std::vector<std::pair<std::string, std::string>>& overrides);

/// Every file that loading and running the scenarios reads: "SCENARIO" and what its keys name.
std::vector<InputPath> input_paths(const std::vector<LoadedScenario>& scenarios);

}  // namespace attnbench
