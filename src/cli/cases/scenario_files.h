// SCENARIO arguments of the command line -> files -> loaded scenarios.
//
// An argument is a path, the name of a shipped scenario, a folder of scenarios, or "-" for standard
// input. Everything that a scenario says about
// other files is checked when it is loaded, so that a command either has all of its input or ends
// with an error before it did anything.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "cli/outputs.h"
#include "cli/terminal/console.h"
#include "scenario/scenario.h"

namespace attnbench {

/// A SCENARIO argument with what it says.
struct LoadedScenario {
  std::string argument;  // as given, for the repro line
  Scenario scenario;
  std::vector<std::string> notices;  // about it and the files that its cases name; may repeat
};

/// The scenarios/ folder of the installation (<prefix>/share/attnbench/scenarios), or of the source
/// tree for a program that is not installed; empty where neither exists.
std::vector<std::filesystem::path> installed_scenario_dirs();

/// `argument` as a path, or below one of `search_path`, with or without .yaml. Errors: E-IO naming
/// where it was looked for and the nearest name.
std::filesystem::path find_scenario(const std::string& argument,
                                    const std::vector<std::filesystem::path>& search_path);

/// Names relative to `dir`, without .yaml, of the scenarios there: suites first, then models/.
std::vector<std::string> scenario_names(const std::filesystem::path& dir);

/// The arguments with each folder replaced by the .yaml and .yml files that lie in it, in
/// alphabetical order; folders in it are left out. A file wins over a folder with its name before
/// ".yaml". Errors: E-IO for a folder without a scenario, kUsage for "-" that is given twice.
std::vector<std::string> expand_folders(const std::vector<std::string>& arguments,
                                        const std::vector<std::filesystem::path>& search_path);

/// Finds and loads one argument of expand_folders(); "-" reads standard input to its end, and its
/// relative paths are those of the working directory.
Scenario load_argument(const std::string& argument, const ScenarioOptions& options);

/// Finds and loads all, and takes sinks and scales from the files that the cases name; nothing is
/// returned unless all are valid. `overrides` are KEY=VALUE pairs that go over every file. Errors:
/// those of load_scenario, and E-CONFIG when two scenarios have the same name, which would make
/// result ids ambiguous.
std::vector<LoadedScenario> load_scenarios(
    const std::vector<std::string>& arguments,
    const std::vector<std::pair<std::string, std::string>>& overrides);

/// What the files of the scenarios gave to say, each sentence once.
void print_notices(const std::vector<LoadedScenario>& scenarios, const Console& console);

/// Every file that loading and running the scenarios reads: "SCENARIO" and what its keys name.
std::vector<InputPath> input_paths(const std::vector<LoadedScenario>& scenarios);

/// The same, and the files of --plugin.
std::vector<InputPath> input_paths(const std::vector<LoadedScenario>& scenarios,
                                   const std::vector<std::string>& plugins);

}  // namespace attnbench
