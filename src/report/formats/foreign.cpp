#include "report/formats/foreign.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/parsing.h"
#include "report/format.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

bool failed(const Result& result) { return badness(result.status) <= badness(Status::kError); }
std::string reasons_of(const Result& result) {
  return fmt::format("{}: {}", to_string(result.status), fmt::join(result.reasons, "; "));
}

// ---- google-benchmark: "Output Formats" in the user guide of github.com/google/benchmark.

Json google_context(const RunInfo& run) {
  return {{"date", run.created},
          {"host_name", run.environment.hostname},
          {"executable", "attnbench"},
          {"num_cpus", run.environment.cpu.cores},
          {"mhz_per_cpu", 0},
          {"cpu_scaling_enabled", false},
          {"caches", Json::array()},
          {"load_avg", Json::array()},
          {"library_version", run.tool_version},
          {"library_build_type", "release"},
          {"json_schema_version", 1}};
}

Json google_run(const Result& result, std::size_t family) {
  return {{"name", result.id},
          {"family_index", family},
          {"per_family_instance_index", 0},
          {"run_name", result.id},
          {"run_type", "iteration"},
          {"repetitions", 0},
          {"repetition_index", 0},
          {"threads", 1}};
}

Json google_benchmark(const Result& result, std::size_t family) {
  Json json = google_run(result, family);
  if (!is_ranked(result)) {
    json["error_occurred"] = true;
    json["error_message"] = reasons_of(result);
  }
  const double median_us = is_ranked(result) ? result.timing->median_us : 0;
  json["iterations"] = is_ranked(result) ? result.timing->samples_us.size() : 0;
  json["real_time"] = number(median_us);
  json["cpu_time"] = number(median_us);
  json["time_unit"] = "us";
  if (result.throughput) {
    json["bytes_per_second"] = number(result.throughput->gbps * 1e9);
    json["items_per_second"] = number(result.throughput->tokens_per_s);
  }
  return json;
}

// ---- vLLM: benchmarks/attention_benchmarks/common.py, BenchmarkConfig and BenchmarkResult.

/// A member of the resolved problem; null when there is none.
Json problem_member(const Json& problem, const char* pointer) {
  const Json::json_pointer path(pointer);
  return problem.contains(path) ? problem.at(path) : Json(nullptr);
}

Json problem_of(const Result& result) {
  Json problem = parse_json<Json>(result.problem_json);
  return problem.is_object() ? problem : Json::object();
}

/// The case without its swept keys is vLLM's batch spec; the rest tells rows apart.
Json vllm_config(const Result& result) {
  const Json problem = problem_of(result);
  Json config = Json::object();
  config["backend"] = result.backend;
  config["batch_spec"] = result.case_name;
  config["num_layers"] = 1;
  config["head_dim"] = problem_member(problem, "/attention/head_size");
  config["num_q_heads"] = problem_member(problem, "/attention/num_heads");
  config["num_kv_heads"] = problem_member(problem, "/attention/num_kv_heads");
  config["block_size"] = problem_member(problem, "/kv_cache/block_size");
  config["device"] = result.device;
  config["dtype"] = problem_member(problem, "/attention/dtype");
  config["use_cuda_graphs"] = result.timing && result.timing->mode == "graph";
  config["kv_cache_dtype"] = problem_member(problem, "/kv_cache/dtype");
  const Json type = problem_member(problem, "/attention/type");
  for (const char* key : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    config[key] =
        type == "mla" ? problem_member(problem, (std::string("/mla/") + key).c_str()) : Json();
  }
  return config;
}

double longest_s(const Timing& timing) {
  const auto& samples = timing.samples_us;
  if (samples.empty()) return std::numeric_limits<double>::quiet_NaN();
  return *std::max_element(samples.begin(), samples.end()) * 1e-6;
}

Json vllm_result(const Result& result) {
  const bool timed = is_ranked(result);
  const Timing timing = timed ? *result.timing : Timing{};
  Json json = Json::object();
  json["config"] = vllm_config(result);
  json["mean_time"] = number(timing.mean_us * 1e-6);
  json["median_time"] = number(timing.median_us * 1e-6);
  json["std_time"] = number(timing.stdev_us * 1e-6);
  json["min_time"] = number(timing.min_us * 1e-6);
  json["max_time"] = timed ? number(longest_s(timing)) : Json(0.0);
  json["throughput_tokens_per_sec"] =
      result.throughput ? number(result.throughput->tokens_per_s) : Json(nullptr);
  json["memory_allocated_mb"] = nullptr;
  json["memory_reserved_mb"] = nullptr;
  json["error"] = timed ? Json(nullptr) : Json(reasons_of(result));
  return json;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char character : text) {
    if (character == '"') quoted += '"';
    quoted += character;
  }
  return quoted + "\"";
}

std::string csv_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "0";
}

}  // namespace

void write_google_benchmark(std::ostream& out, const RunInfo& run,
                            const std::vector<Result>& results) {
  Json json = {{"context", google_context(run)}, {"benchmarks", Json::array()}};
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!is_ranked(results[i]) && !failed(results[i])) continue;
    json["benchmarks"].push_back(google_benchmark(results[i], i));
  }
  out << dump(json);
}

void write_github_benchmark(std::ostream& out, const RunInfo&, const std::vector<Result>& results) {
  Json json = Json::array();
  for (const Result& result : results) {
    if (!is_ranked(result) || !std::isfinite(result.timing->median_us)) continue;
    const Timing& timing = *result.timing;
    std::string extra =
        fmt::format("{} sample{}\nquartiles {:.4g}..{:.4g} us", timing.samples_us.size(),
                    timing.samples_us.size() == 1 ? "" : "s", timing.q1_us, timing.q3_us);
    if (!result.repro.empty()) extra += "\n" + result.repro;
    json.push_back({{"name", result.id},
                    {"unit", "us"},
                    {"value", timing.median_us},
                    {"range", fmt::format("\xC2\xB1 {:.4g}", (timing.q3_us - timing.q1_us) / 2)},
                    {"extra", extra}});
  }
  out << dump(json);
}

void write_vllm_csv(std::ostream& out, const RunInfo&, const std::vector<Result>& results) {
  out << "backend,batch_spec,num_layers,kv_cache_dtype,mean_time,std_time,throughput,memory_mb\r\n";
  for (const Result& result : results) {
    if (!is_ranked(result)) continue;
    const Json cache_dtype = problem_member(problem_of(result), "/kv_cache/dtype");
    out << fmt::format(
        "{},{},1,{},{},{},{},0\r\n", csv_field(result.backend), csv_field(result.case_name),
        cache_dtype.is_string() ? csv_field(cache_dtype.get<std::string>()) : "auto",
        csv_number(result.timing->mean_us * 1e-6), csv_number(result.timing->stdev_us * 1e-6),
        csv_number(result.throughput ? result.throughput->tokens_per_s : 0));
  }
}

void write_vllm_json(std::ostream& out, const RunInfo&, const std::vector<Result>& results) {
  Json json = Json::array();
  for (const Result& result : results) {
    if (is_ranked(result) || failed(result)) json.push_back(vllm_result(result));
  }
  out << dump(json);
}

}  // namespace attnbench
