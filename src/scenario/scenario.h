// Scenario files (contract section 1): from YAML or JSON text to a list of resolved problems.
//
// A file passes these steps, each in a module of its own, and every message keeps the place of what
// it is about: text -> tree (text/yaml_reader), extends and --set (text/merge), keys, types and
// ranges (text/structure), cases from batches and sweeps (here), defaults and contradictions of
// each case (resolve/). What comes out is complete: nothing behind it fills in a default.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/problem/problem.h"

namespace attnbench {

struct ScenarioOptions {
  /// `--set` of the command line: dotted key and YAML text of the value; applied last, in order.
  std::vector<std::pair<std::string, std::string>> overrides;
  /// Where `extends` and SCENARIO names are looked for after the file's own folder (resp. the
  /// working directory): the installed scenarios/ folders.
  std::vector<std::filesystem::path> search_path;
};

struct Scenario {
  std::string name;
  std::string description;
  std::filesystem::path path;
  std::vector<std::string> backends;        // as given; empty = every native backend for the type
  std::vector<std::string> backend_places;  // "<file>:<line>: " of each
  /// The same of keys that name files to read ("inputs.file"), and of the scales of a cache, which
  /// a file may say too: where they are given or swept.
  std::map<std::string, std::string> places;
  /// Files that were read for it: its own, those that it extends, traces.
  std::set<std::filesystem::path> files;
  /// Keys of the files that are left out because options of the command line leave nothing that
  /// reads them, a sentence each.
  std::vector<std::string> notices;
  /// One problem per case, in file order: batches of a list, times the product of the sweep with
  /// the first key varying slowest. case_name is unique.
  std::vector<Problem> cases;
};

/// Reads and resolves one file. Errors name file, line, key, what was expected and found, and the
/// nearest valid key: E-IO unreadable, E-FORMAT not YAML/JSON or not the schema's structure,
/// E-CONFIG / E-SHAPE / E-DTYPE / E-VALUE for contradictions; all are exit code 2.
Scenario load_scenario(const std::filesystem::path& path, const ScenarioOptions& options = {});

/// The same for text in memory; `path` names it in messages and anchors relative paths.
Scenario parse_scenario(const std::string& text, const std::filesystem::path& path,
                        const ScenarioOptions& options = {});

/// The JSON Schema shipped as scenarios/schema.json, embedded in the program.
const std::string& scenario_schema_text();

}  // namespace attnbench
