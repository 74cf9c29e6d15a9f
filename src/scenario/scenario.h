// Scenario files (contract.md section 1): from YAML or JSON text to a list of resolved problems.
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

/// Strict batch-spec grammar of contract §1.1, e.g. "60q1s4k_4q1ks3k"; `cross` allows seq_len <
/// query_len (encoder_decoder). Errors: E-CONFIG naming the offending segment.
std::vector<Request> parse_batch_spec(const std::string& spec, bool cross);

/// Canonical text of a batch: run-length segments in request order, with 'k' where exact, e.g.
/// {(1,4096) x 60, (1024,3072) x 4} -> "60q1s4k_4q1ks3k"; "q8k" when seq_len = query_len.
std::string canonical_batch_spec(const std::vector<Request>& batch);

/// The JSON Schema shipped as scenarios/schema.json, embedded in the program.
const std::string& scenario_schema_text();

}  // namespace attnbench
