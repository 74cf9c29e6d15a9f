#include "interop/trace/set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/error.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;

/// Files below a folder, sorted; none where there is no folder.
std::vector<fs::path> files_below(const fs::path& folder, const std::string& suffix) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder, error)) {
    if (entry.is_regular_file() && entry.path().extension() == suffix) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool is_attention(const TraceDefinition& definition) {
  try {
    trace_kind(definition);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kValue) throw;
    return false;
  }
}

/// Whether an error is about a workload or its tensors, so that the others are fit for use.
bool is_of_workload(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kValue:
    case ErrorKind::kShape:
    case ErrorKind::kDtype:
    case ErrorKind::kFormat:
    case ErrorKind::kIo:
      return true;
    default:
      return false;
  }
}

std::map<std::string, std::vector<TraceSolution>> solutions_of(const fs::path& root) {
  std::map<std::string, std::vector<TraceSolution>> solutions;
  std::map<std::string, std::string> path_of;  // by class
  for (const fs::path& path : files_below(root / "solutions", ".json")) {
    TraceSolution solution = read_trace_solution(path);
    const auto [other, is_new] = path_of.emplace(solution_class(solution.name), solution.path);
    if (!is_new) {
      fail(ErrorKind::kValue, "{} and {}: the class of both solutions would be {}", other->second,
           solution.path, other->first);
    }
    solutions[solution.definition].push_back(std::move(solution));
  }
  return solutions;
}

void append(ImportedTraces& all, ImportedTraces&& more) {
  all.scenarios.insert(all.scenarios.end(), more.scenarios.begin(), more.scenarios.end());
  all.notices.insert(all.notices.end(), more.notices.begin(), more.notices.end());
  all.names.workloads.merge(more.names.workloads);
  all.names.solutions.merge(more.names.solutions);
}

/// Lengths for a definition without workloads: 8 decodes over 1024 keys, or 2 prompts of 256.
TraceWorkload plain_workload(const TraceDefinition& definition) {
  const bool is_prefill = definition.input("qo_indptr") != nullptr;
  const std::int64_t requests = is_prefill ? 2 : 8;
  const std::int64_t keys = is_prefill ? 256 : 1024;
  TraceWorkload workload;
  workload.definition = definition.name;
  workload.uuid = "default";
  const auto set = [&](const char* input, std::size_t axis, std::int64_t size) {
    const TraceTensor* tensor = definition.input(input);
    if (tensor == nullptr || axis >= tensor->axes.size()) return;
    if (!definition.constants.contains(tensor->axes[axis])) {
      workload.axes[tensor->axes[axis]] = size;
    }
  };
  const TraceTensor* cache = definition.input("ckv_cache");
  if (cache == nullptr) cache = definition.input("k_cache");
  std::int64_t page = 1;
  if (cache != nullptr && cache->axes.size() > 1) {
    page = std::max<std::int64_t>(axis_size(definition, workload, cache->axes[1]).value_or(1), 1);
  }
  const std::int64_t pages = (requests * keys + page - 1) / page;
  for (const char* query : {"q", "q_nope"}) set(query, 0, is_prefill ? requests * keys : requests);
  for (const char* offsets : {"qo_indptr", "kv_indptr"}) set(offsets, 0, requests + 1);
  for (const char* paged : {"k_cache", "ckv_cache", "kv_indices"}) set(paged, 0, pages);
  set("k", 0, requests * keys);
  set("sparse_indices", 0, requests);
  std::string axes;
  for (const auto& [axis, size] : workload.axes) {
    const nlohmann::json name = axis;
    axes += fmt::format("{}{}:{}", axes.empty() ? "" : ",",
                        name.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), size);
  }
  workload.json = fmt::format(R"({{"uuid":"default","axes":{{{}}},"inputs":{{}}}})", axes);
  return workload;
}

}  // namespace

std::string solution_class(const std::string& name) {
  std::string identifier;
  for (const char letter : name) {
    const auto code = static_cast<unsigned char>(letter);
    identifier += code < 128 && (std::isalnum(code) != 0 || letter == '_') ? letter : '_';
  }
  const bool is_number = std::isdigit(static_cast<unsigned char>(identifier.front())) != 0;
  return is_number ? "_" + identifier : identifier;
}

std::string solution_backend(const std::string& name) {
  return "python:attnbench.solutions:" + solution_class(name);
}

ImportedTraces import_definition(const TraceDefinition& definition,
                                 const std::vector<TraceWorkload>& workloads, const fs::path& root,
                                 const fs::path& folder, const std::vector<std::string>& backends,
                                 std::set<std::string> taken) {
  ImportedTraces imported;
  std::vector<TraceWorkload> own;
  std::copy_if(workloads.begin(), workloads.end(), std::back_inserter(own),
               [&](const TraceWorkload& workload) {
                 return workload.definition.empty() || workload.definition == definition.name;
               });
  if (workloads.empty()) own.push_back(plain_workload(definition));
  std::optional<Error> first_error;
  for (const TraceWorkload& workload : own) {
    std::optional<TraceScenario> scenario;
    try {
      scenario = trace_scenario(definition, workload, root, backends, taken);
    } catch (const Error& error) {
      if (!is_of_workload(error.kind())) throw;
      if (!first_error) first_error = error;
      const std::string& uuid = workload.uuid;
      const std::string what = error.what();
      const bool is_named = what.find("workload " + uuid) != std::string::npos;
      imported.notices.push_back(is_named ? fmt::format("left out: {}", what)
                                          : fmt::format("left out: workload {}: {}", uuid, what));
      continue;
    }
    taken.insert(scenario->name);
    imported.scenarios.push_back(write_trace_scenario(*scenario, folder));
    imported.names.workloads[scenario->name] = scenario->workload;
    for (std::string& notice : scenario->notices) imported.notices.push_back(std::move(notice));
  }
  if (imported.scenarios.empty() && first_error) throw *first_error;
  return imported;
}

ImportedTraces import_trace_set(const fs::path& root, const fs::path& folder,
                                const NativeBackends& natives) {
  const std::vector<fs::path> definitions = files_below(root / "definitions", ".json");
  if (definitions.empty()) {
    fail(ErrorKind::kIo, "{}: expected a trace set, found no definitions/**/*.json", root.string());
  }
  std::vector<TraceWorkload> workloads;
  for (const fs::path& path : files_below(root / "workloads", ".jsonl")) {
    for (TraceWorkload& workload : read_trace_workloads(path)) {
      if (workload.definition.empty()) workload.definition = path.stem().string();
      workloads.push_back(std::move(workload));
    }
  }
  const auto solutions = solutions_of(root);
  ImportedTraces all;
  for (const fs::path& path : definitions) {
    const TraceDefinition definition = read_trace_definition(path);
    if (!is_attention(definition)) continue;
    std::vector<TraceWorkload> own;
    for (const TraceWorkload& workload : workloads) {
      if (workload.definition == definition.name) own.push_back(workload);
    }
    const TraceKind kind = trace_kind(definition);
    std::vector<std::string> backends =
        natives(kind == TraceKind::kMlaPaged || kind == TraceKind::kSparseMla);
    TraceNames names;
    if (const auto found = solutions.find(definition.name); found != solutions.end()) {
      for (const TraceSolution& solution : found->second) {
        backends.push_back(solution_backend(solution.name));
        names.solutions[solution_class(solution.name)] = solution.name;
      }
    }
    std::set<std::string> taken;
    for (const auto& [name, workload] : all.names.workloads) taken.insert(name);
    append(all, import_definition(definition, own, root, folder, backends, std::move(taken)));
    all.names.solutions.merge(names.solutions);
  }
  return all;
}

std::map<std::string, std::string> trace_solution_names(const fs::path& root) {
  std::map<std::string, std::string> names;
  for (const auto& [definition, solutions] : solutions_of(root)) {
    for (const TraceSolution& solution : solutions) {
      names[solution_class(solution.name)] = solution.name;
    }
  }
  return names;
}

fs::path trace_root(const fs::path& path, const std::vector<TraceWorkload>& workloads) {
  std::error_code error;
  const fs::path start = fs::absolute(path, error).parent_path();
  for (const TraceWorkload& workload : workloads) {
    for (const auto& [name, input] : workload.inputs) {
      if (input.kind != TraceInput::Kind::kSafetensors) continue;
      for (fs::path folder = start;; folder = folder.parent_path()) {
        if (fs::exists(folder / input.path, error)) return folder;
        if (!folder.has_relative_path()) break;  // another blob may be there
      }
    }
  }
  return start;
}

}  // namespace attnbench
