#include "interop/trace/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/parsing.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSolutions = "python:attnbench.solutions:";

/// NaN and infinities as pydantic's ser_json_inf_nan="strings" writes them.
Json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json at(const Json& problem, const char* pointer) {
  const Json::json_pointer path(pointer);
  return problem.contains(path) ? problem.at(path) : Json();
}

bool says(const Result& result, std::initializer_list<const char*> words) {
  return std::any_of(result.reasons.begin(), result.reasons.end(), [&](const std::string& reason) {
    return std::any_of(words.begin(), words.end(),
                       [&](const char* word) { return reason.find(word) != std::string::npos; });
  });
}

/// Empty for what has no record.
std::string status_of(const Result& result) {
  switch (result.status) {
    case Status::kPassed:
      return "PASSED";
    case Status::kIncorrect:
    case Status::kImplausible:
      return "INCORRECT_NUMERICAL";
    case Status::kError:
      if (says(result, {"solution does not build"})) return "COMPILE_ERROR";
      if (says(result, {"no sign of life", "time limit", "no progress"})) return "TIMEOUT";
      if (says(result, {"run() returned"})) {
        return says(result, {"run() returned output as", "run() returned lse as"})
                   ? "INCORRECT_DTYPE"
                   : "INCORRECT_SHAPE";
      }
      return "RUNTIME_ERROR";
    default:
      return "";
  }
}

Json correctness_of(const Result& result) {
  const double unknown = std::nan("");
  const double largest = result.error ? result.error->max_abs : unknown;
  const double row = result.error ? result.error->row_error : unknown;
  const double relative = result.error && std::isnan(row) ? result.error->rms_rel : row;
  Json json{{"max_relative_error", number(relative)}, {"max_absolute_error", number(largest)}};
  Json extra = Json::object();
  if (result.error) {
    extra["rms_relative_error"] = number(result.error->rms_rel);
    extra["err_ratio"] = number(result.error->err_ratio);
    extra["cosine"] = number(result.error->cosine);
    extra["limit"] = result.error->limit;
  }
  if (result.lse_error) extra["lse_max_absolute_error"] = number(result.lse_error->max_abs);
  json["extra"] = extra.empty() ? Json() : extra;
  return json;
}

/// The built-in backend that others are compared with: the first of the case that was timed.
const Result* reference_of(const Result& result, const std::vector<Result>& results) {
  const auto found = std::find_if(results.begin(), results.end(), [&](const Result& other) {
    return other.scenario == result.scenario && other.case_name == result.case_name &&
           other.timing && !other.plugin;
  });
  return found == results.end() ? nullptr : &*found;
}

Json performance_of(const Result& result, const Result* reference) {
  const double time = result.timing ? result.timing->median_us * 1e-3 : 0;
  const double other = reference != nullptr ? reference->timing->median_us * 1e-3 : 0;
  return {{"latency_ms", time},
          {"reference_latency_ms", other},
          {"speedup_factor", time > 0 && other > 0 ? other / time : 0}};
}

std::string log_of(const Result& result, const Result* reference) {
  std::string log = fmt::format("attnbench: {}", to_string(result.status));
  for (const std::string& reason : result.reasons) log += "\n" + reason;
  if (result.status == Status::kPassed && !result.timing) log += "\nnot timed: latencies are 0";
  if (result.timing && reference != nullptr) {
    log += fmt::format("\nreference_latency_ms is that of {}", reference->backend);
  }
  if (!result.repro.empty()) log += "\n" + result.repro;
  return log;
}

Json environment_of(const RunInfo& run, const Result& result) {
  const auto& device = run.environment.device;
  const bool on_device = result.device.starts_with("cuda") && device;
  std::string hardware = on_device ? device->name : run.environment.cpu.model;
  std::replace(hardware.begin(), hardware.end(), ' ', '_');
  Json libs{{"attnbench", fmt::format("{} ({})", run.tool_version, run.git)}};
  if (on_device) libs["cuda"] = device->runtime;
  if (result.plugin) libs["solution_sha256"] = result.plugin->sha256;
  return {{"hardware", hardware.empty() ? result.device : hardware}, {"libs", libs}};
}

Json evaluation_of(const RunInfo& run, const Result& result, const std::vector<Result>& results) {
  const std::string status = status_of(result);
  const Result* reference = reference_of(result, results);
  Json json{{"status", status},         {"environment", environment_of(run, result)},
            {"timestamp", run.created}, {"log", log_of(result, reference)},
            {"correctness", Json()},    {"performance", Json()}};
  if (status == "PASSED" || status == "INCORRECT_NUMERICAL") {
    json["correctness"] = correctness_of(result);
  }
  if (status == "PASSED") json["performance"] = performance_of(result, reference);
  return json;
}

/// A workload of the sizes of a batch, for scenarios that were not made of one.
Json plain_workload_of(const Json& problem, const std::string& id) {
  std::int64_t requests = 0, queries = 0, keys = 0;
  const Json batch = at(problem, "/batch");
  for (const Json& row : batch.is_array() ? batch : Json::array()) {
    if (!row.is_object()) continue;
    const auto count = row.value<std::int64_t>("count", 1);
    requests += count;
    queries += count * row.value<std::int64_t>("query_len", 0);
    keys += count * row.value<std::int64_t>("seq_len", 0);
  }
  Json workload{{"uuid", id},
                {"axes", {{"batch_size", requests}, {"total_q", queries}, {"total_kv", keys}}},
                {"inputs", Json::object()}};
  const Json scale = at(problem, "/attention/scale");
  if (scale.is_number()) {
    workload["inputs"]["sm_scale"] = {{"type", "scalar"}, {"value", scale}};
  }
  return workload;
}

Json record_of(const RunInfo& run, const Result& result, const std::vector<Result>& results,
               const TraceNames& names) {
  Json record = Json::object();
  if (const auto known = names.workloads.find(result.scenario); known != names.workloads.end()) {
    record = parse_json<Json>(known->second);
  }
  if (!record.is_object() || !record.contains("workload")) {
    const Json problem = parse_json<Json>(result.problem_json);
    record = {{"definition", result.scenario},
              {"workload", plain_workload_of(problem.is_object() ? problem : Json::object(),
                                             result.scenario + "/" + result.case_name)}};
  }
  std::string solution = result.backend;
  if (solution.starts_with(kSolutions)) {
    const auto known = names.solutions.find(solution.substr(kSolutions.size()));
    solution = known == names.solutions.end() ? solution.substr(kSolutions.size()) : known->second;
  }
  record["solution"] = solution;
  record["evaluation"] = evaluation_of(run, result, results);
  return record;
}

}  // namespace

TraceNames trace_names_beside(const std::vector<std::filesystem::path>& scenario_files) {
  TraceNames names;
  for (const std::filesystem::path& file : scenario_files) {
    std::filesystem::path record = file;
    record.replace_extension(".workload.json");
    std::ifstream in(record);
    std::string line;
    if (std::getline(in, line)) names.workloads[file.stem().string()] = line;
  }
  return names;
}

void write_trace_records(std::ostream& out, const RunInfo& run, const std::vector<Result>& results,
                         const TraceNames& names) {
  for (const Result& result : results) {
    if (status_of(result).empty()) continue;
    const Json record = record_of(run, result, results, names);
    out << record.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  }
}

}  // namespace attnbench
