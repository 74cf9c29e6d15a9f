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
    trace_form(definition);
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

/// Lengths for a definition without workloads: 8 decodes over 1024 keys, or 2 prompts of 256; of
/// one request where the form has no more.
TraceWorkload plain_workload(const TraceDefinition& definition) {
  const TraceForm form = trace_form(definition);
  const TraceTensor* query = definition.input(form.query);
  const bool by_request = query->axes.size() == 4;
  const bool counts_queries = !form.query_offsets.empty() || !form.query_lengths.empty();
  const bool is_prefill = by_request
                              ? form.kind == TraceKind::kRagged || !form.block_offsets.empty()
                          : form.is_single ? query->axes.size() > 2
                                           : counts_queries || form.kind == TraceKind::kRagged;
  const std::int64_t requests = form.is_single ? 1 : is_prefill ? 2 : 8;
  const std::int64_t keys = is_prefill ? 256 : 1024;
  TraceWorkload workload;
  workload.definition = definition.name;
  workload.uuid = "default";
  const auto set = [&](const std::string& input, int axis, std::int64_t size) {
    const TraceTensor* tensor = definition.input(input);
    if (tensor == nullptr || axis < 0 || axis >= static_cast<int>(tensor->axes.size())) return;
    const std::string& name = tensor->axes[static_cast<std::size_t>(axis)];
    if (!definition.constants.contains(name)) workload.axes[name] = size;
  };
  const bool has_pages = form.has_pages();
  std::int64_t page = 1;
  if (const TraceTensor* cache = definition.input(form.key);
      has_pages && form.page_axis < static_cast<int>(cache->axes.size())) {
    const std::string& axis = cache->axes[static_cast<std::size_t>(form.page_axis)];
    page = std::max<std::int64_t>(axis_size(definition, workload, axis).value_or(1), 1);
  }
  const std::int64_t width = (keys + page - 1) / page;
  const std::int64_t pages = (requests * keys + page - 1) / page;
  if (by_request) {
    set(form.query, 1, is_prefill ? keys : 1);
    set(form.query, 0, requests);
  } else if (query->axes.size() == 3) {
    set(form.query, 0, is_prefill ? requests * keys : requests);
  }
  if (!form.query_pe.empty()) set(form.query_pe, 0, is_prefill ? requests * keys : requests);
  set(form.query_offsets, 0, requests + 1);
  set(form.query_lengths, 0, requests);
  set(form.key_offsets, 0, requests + 1);
  set(form.key_lengths, 0, requests);
  const TraceTensor* table = definition.input(form.table);
  const int request_axis =
      table != nullptr && table->axes.size() == 3 ? 1 : 0;  // behind the KV heads
  set(form.table, request_axis, requests);
  set(form.table, request_axis + 1, width);
  set(form.key_pages, 0, pages);
  set(form.lists, 0, requests);
  if (has_pages) {
    set(form.key, 0, std::max(pages, form.table.empty() ? pages : requests * width));
    set(form.key, form.page_axis, page);
  } else if (form.page_axis == 0) {
    set(form.key, 0, requests * keys);
  } else {
    set(form.key, 1, keys);
    set(form.key, 0, requests);
  }
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
    const TraceForm form = trace_form(definition);
    // An operation has one built-in backend on each device, which no scenario has to name.
    std::vector<std::string> backends;
    if (form.kind != TraceKind::kIndexer) backends = natives(form.is_mla());
    TraceNames names;
    const auto found = solutions.find(definition.name);
    if (found != solutions.end() && !form.has_solutions) {
      all.notices.push_back(
          fmt::format("{}: its solutions are not run: attnbench hands over inputs in the forms of "
                      "FlashInfer-Bench's gqa_paged, gqa_ragged, mla_paged, mla_ragged and "
                      "sparse_attention only",
                      definition.name));
    } else if (found != solutions.end()) {
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
