#include "cli/cases/scenario_files.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include "cli/terminal/text.h"
#include "core/error.h"
#include "core/problem/fields.h"
#include "inputs/files/input_file.h"
#include "inputs/files/kv_scale_file.h"
#include "scenario/text/files.h"

namespace attnbench {
namespace fs = std::filesystem;
namespace {

/// The file that `path` means, with or without its suffix; empty when there is none.
fs::path with_known_suffix(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_directory(path, error)) return path;
  for (const char* suffix : {".yaml", ".yml", ".json"}) {
    fs::path candidate = path;
    candidate += suffix;
    if (fs::is_regular_file(candidate, error)) return candidate;
  }
  return {};
}

/// Appends the scenarios of one folder in alphabetical order.
void add_names(const fs::path& dir, const std::string& prefix, std::vector<std::string>& names) {
  std::error_code error;
  const std::size_t first = names.size();
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, error)) {
    if (entry.path().extension() != ".yaml") continue;
    names.push_back(prefix + entry.path().stem().string());
  }
  std::sort(names.begin() + static_cast<std::ptrdiff_t>(first), names.end());
}

constexpr const char* kStdin = "-";
constexpr const char* kStdinName = "<stdin>";

/// The scenarios of a folder.
std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const fs::path suffix = entry.path().extension();
    if (suffix == ".yaml" || suffix == ".yml") files.push_back(entry.path().string());
  }
  if (files.empty()) {
    fail(ErrorKind::kIo, "{}: expected a folder with scenarios, found no .yaml file in it",
         folder.string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Standard input to its end, which must not be longer than a file may be.
std::string read_stdin() {
  std::string text(kMaxDocumentBytes + 1, '\0');
  std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::cin.gcount()));
  if (std::cin.bad()) fail(ErrorKind::kIo, "{}: cannot read standard input", kStdinName);
  return text;  // check_text() refuses one that is too long
}

/// E-IO with the line of the scenario when a file that the case reads does not exist.
void check_paths(const Scenario& scenario, const Problem& problem) {
  const auto check = [&](const char* key, const std::optional<std::string>& path) {
    std::error_code error;
    if (!path || fs::exists(*path, error)) return;
    const auto place = scenario.places.find(key);
    fail(ErrorKind::kIo, "{}{}: expected a file, found none at {}",
         place == scenario.places.end() ? "" : place->second, key, *path);
  };
  check("inputs.file", problem.inputs.file);
  const KvCacheSpec& cache = problem.kv_cache;
  check("kv_cache.scale_file", cache.scale_file);
  if (cache.int8_level == 1) check("kv_cache.value_scale_file", cache.value_scale_file);
}

}  // namespace

std::vector<fs::path> installed_scenario_dirs() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  // Why not both: an installed program must not depend on where it was built.
  for (const fs::path& dir :
       {program.parent_path().parent_path() / "share" / "attnbench" / "scenarios",
        fs::path(ATTNBENCH_SCENARIO_DIR)}) {
    if (fs::is_directory(dir, error)) return {dir};
  }
  return {};
}

std::vector<std::string> scenario_names(const fs::path& dir) {
  std::vector<std::string> names;
  add_names(dir, "", names);
  add_names(dir / "models", "models/", names);
  return names;
}

fs::path find_scenario(const std::string& argument, const std::vector<fs::path>& search_path) {
  if (argument.empty()) fail(ErrorKind::kUsage, "SCENARIO: expected a path or name, found ''");
  fs::path found = with_known_suffix(argument);
  for (std::size_t i = 0; found.empty() && i < search_path.size(); ++i) {
    found = with_known_suffix(search_path[i] / argument);
  }
  if (!found.empty()) return found;

  std::vector<std::string> names;
  std::vector<std::string> places = {"the working directory"};
  for (const fs::path& dir : search_path) {
    const std::vector<std::string> more = scenario_names(dir);
    names.insert(names.end(), more.begin(), more.end());
    places.push_back(dir.string());
  }
  const std::string stem = fs::path(argument).stem().string();
  fail(ErrorKind::kIo, "{}: no such scenario in {}{}", argument, join(places, " or "),
       did_you_mean(stem, names));
}

std::vector<std::string> expand_folders(const std::vector<std::string>& arguments,
                                        const std::vector<fs::path>& search_path) {
  std::vector<std::string> expanded;
  for (const std::string& argument : arguments) {
    if (argument == kStdin && std::count(arguments.begin(), arguments.end(), argument) > 1) {
      fail(ErrorKind::kUsage, "SCENARIO: expected '-' (standard input) once, found it twice");
    }
    std::error_code error;
    const bool is_name = argument == kStdin || !with_known_suffix(argument).empty() ||
                         std::any_of(search_path.begin(), search_path.end(), [&](auto& dir) {
                           return !with_known_suffix(dir / argument).empty();
                         });
    if (is_name || argument.empty() || !fs::is_directory(argument, error)) {
      expanded.push_back(argument);
      continue;
    }
    for (std::string& file : files_in(argument)) expanded.push_back(std::move(file));
  }
  return expanded;
}

Scenario load_argument(const std::string& argument, const ScenarioOptions& options) {
  if (argument == kStdin) return parse_scenario(read_stdin(), kStdinName, options);
  return load_scenario(find_scenario(argument, options.search_path), options);
}

std::vector<LoadedScenario> load_scenarios(
    const std::vector<std::string>& arguments,
    const std::vector<std::pair<std::string, std::string>>& overrides) {
  ScenarioOptions options;
  options.overrides = overrides;
  options.search_path = installed_scenario_dirs();

  std::vector<LoadedScenario> loaded;
  std::map<std::string, std::string> argument_of;
  for (const std::string& argument : expand_folders(arguments, options.search_path)) {
    loaded.push_back({argument, load_argument(argument, options), {}});
    loaded.back().notices = std::move(loaded.back().scenario.notices);
    for (Problem& problem : loaded.back().scenario.cases) {
      check_paths(loaded.back().scenario, problem);
      adopt_file_sinks(problem);
      for (std::string& notice : adopt_kv_scale_file(problem, loaded.back().scenario.places)) {
        loaded.back().notices.push_back(std::move(notice));
      }
    }
    const std::string& name = loaded.back().scenario.name;
    const auto [first, is_new] = argument_of.emplace(name, argument);
    if (!is_new) {
      fail(ErrorKind::kConfig,
           "name: '{}' stands in both {} and {}, so their result ids would be the same", name,
           first->second, argument);
    }
  }
  return loaded;
}

void print_notices(const std::vector<LoadedScenario>& scenarios, const Console& console) {
  std::set<std::string> said;
  for (const LoadedScenario& loaded : scenarios) {
    for (const std::string& notice : loaded.notices) {
      if (said.insert(notice).second) print_notice(console.err, notice);
    }
  }
}

std::vector<InputPath> input_paths(const std::vector<LoadedScenario>& scenarios) {
  std::set<std::pair<std::string, std::string>> paths;  // option and path
  for (const LoadedScenario& loaded : scenarios) {
    for (const fs::path& file : loaded.scenario.files) {
      if (file != kStdinName) paths.emplace("SCENARIO", file.string());
    }
    for (const Field& field : problem_fields()) {
      if (!field.is_input_path) continue;
      for (const Problem& problem : loaded.scenario.cases) {
        const Value path = field.get(problem);
        if (path.is_string()) paths.emplace(field.key, path.text);
      }
    }
  }
  std::vector<InputPath> inputs;
  for (const auto& [option, path] : paths) inputs.push_back({option, path});
  return inputs;
}

std::vector<InputPath> input_paths(const std::vector<LoadedScenario>& scenarios,
                                   const std::vector<std::string>& plugins) {
  std::vector<InputPath> inputs = input_paths(scenarios);
  for (const InputPath& plugin : input_paths("--plugin", plugins)) inputs.push_back(plugin);
  return inputs;
}

}  // namespace attnbench
