#include "interop/results/foreign.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/system/csv.h"
#include "inputs/files/scale_text.h"

namespace attnbench {
namespace {

using Document = nlohmann::json;

/// NaN unless the whole text is a number.
double number_of_text(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool whole = !text.empty() && end == text.c_str() + text.size();
  return whole ? value : std::nan("");
}

std::string text_of(const Document& json, const char* key, const std::string& other = "") {
  const auto found = json.is_object() ? json.find(key) : json.end();
  if (found == json.end() || found->is_null()) return other;
  return found->is_string() ? found->get<std::string>() : found->dump();
}

/// A number, or a text that is one, as nvbench writes them; NaN for anything else.
double number_of(const Document& json, const char* key) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  if (found == json.end()) return std::nan("");
  if (found->is_number()) return found->get<double>();
  if (!found->is_string()) return std::nan("");
  return number_of_text(found->get_ref<const std::string&>());
}

const Document& list_of(const Document& json, const char* key) {
  static const Document none = Document::array();
  const auto found = json.is_object() ? json.find(key) : json.end();
  return found != json.end() && found->is_array() ? *found : none;
}

/// Results of one file; keeps ids apart.
class Collector {
 public:
  Collector(const std::string& path, const std::string& tool) {
    file_.path = path;
    file_.run.tool_version = tool;
  }

  Result& add(const std::string& scenario, const std::string& case_name,
              const std::string& backend) {
    Result result;
    result.scenario = scenario;
    result.backend = backend;
    for (int count = 1;; ++count) {
      result.case_name = count == 1 ? case_name : fmt::format("{}#{}", case_name, count);
      result.id = fmt::format("{}/{}/{}", scenario, result.case_name, backend);
      if (ids_.insert(result.id).second) break;
    }
    result.status = Status::kUnverified;
    result.problem_json = "{}";
    file_.results.push_back(std::move(result));
    return file_.results.back();
  }

  /// Errors: E-FORMAT for a time that is none.
  void set_samples(Result& result, const std::vector<double>& seconds, double unit_us = 1e6) {
    Timing timing;
    for (const double sample : seconds) {
      if (!(std::isfinite(sample) && sample > 0)) {
        fail(ErrorKind::kFormat, "{}: '{}': expected a time > 0, found {}", file_.path, result.id,
             sample);
      }
      timing.samples_us.push_back(sample * unit_us);
    }
    timing.l2 = "warm";
    timing.mode = "stream";
    result.timing = std::move(timing);
  }

  void set_error(Result& result, const std::string& reason) {
    result.status = Status::kError;
    result.reasons.push_back(reason.empty() ? "no reason given" : reason);
    result.timing.reset();
  }

  ResultFile& file() { return file_; }

 private:
  ResultFile file_;
  std::set<std::string> ids_;
};

/// The parts of a name that may be an id of ours: what lies before the first '/', between, and
/// behind the last.
struct NameParts {
  std::string scenario, case_name, backend;
};
NameParts parts_of(const std::string& name, const std::string& tool) {
  const std::size_t first = name.find('/');
  const std::size_t last = name.rfind('/');
  if (first == std::string::npos || first == last) return {tool, name, tool};
  return {name.substr(0, first), name.substr(first + 1, last - first - 1), name.substr(last + 1)};
}

// ---- google-benchmark.

double google_unit_us(const std::string& unit) {
  const std::map<std::string, double> units{{"ns", 1e-3}, {"us", 1}, {"ms", 1e3}, {"s", 1e6}};
  const auto found = units.find(unit);
  return found == units.end() ? std::nan("") : found->second;
}

ResultFile google_results(const Document& json, const std::string& path) {
  const Document& context = json.at("context");
  const std::string version = text_of(context, "library_version");  // 1.7.1 writes none
  Collector all(path, "google-benchmark" + (version.empty() ? "" : " " + version));
  all.file().run.created = text_of(context, "date");
  all.file().run.environment.hostname = text_of(context, "host_name");
  const double cores = number_of(context, "num_cpus");
  if (cores > 0) all.file().run.environment.cpu.cores = static_cast<int>(cores);
  std::vector<std::string> order;
  std::map<std::string, std::vector<const Document*>> runs;
  const Document& benchmarks = list_of(json, "benchmarks");
  // With --benchmark_report_aggregates_only the median of the runs is all there is.
  const bool has_runs = std::any_of(benchmarks.begin(), benchmarks.end(), [](const Document& run) {
    return text_of(run, "run_type", "iteration") == "iteration";
  });
  for (const Document& run : benchmarks) {
    const bool is_run = text_of(run, "run_type", "iteration") == "iteration";
    if (has_runs ? !is_run : text_of(run, "aggregate_name") != "median") continue;
    const std::string name = text_of(run, "run_name", text_of(run, "name"));
    if (runs[name].empty()) order.push_back(name);
    runs[name].push_back(&run);
  }
  for (const std::string& name : order) {
    const NameParts parts = parts_of(name, "google-benchmark");
    Result& result = all.add(parts.scenario, parts.case_name, parts.backend);
    result.device = "cpu";
    std::vector<double> samples;
    for (const Document* run : runs[name]) {
      const auto failed = run->find("error_occurred");
      if (failed != run->end() && *failed == true) {
        all.set_error(result, text_of(*run, "error_message"));
        break;
      }
      samples.push_back(number_of(*run, "real_time") *
                        google_unit_us(text_of(*run, "time_unit", "ns")));
    }
    if (result.status != Status::kError) all.set_samples(result, samples, 1);
  }
  return std::move(all.file());
}

// ---- nvbench.

/// The value of a summary; NaN without one.
double summary_of(const Document& state, const std::string& tag) {
  for (const Document& summary : list_of(state, "summaries")) {
    if (text_of(summary, "tag") != tag) continue;
    for (const Document& value : list_of(summary, "data")) {
      if (text_of(value, "name") == "value") return number_of(value, "value");
    }
  }
  return std::nan("");
}

/// Samples from the little-endian float32 values beside the JSON; empty where they are not.
std::vector<double> nvbench_samples(const Document& state, const std::string& path) {
  for (const Document& summary : list_of(state, "summaries")) {
    const std::string tag = text_of(summary, "tag");
    if (tag != "nv/json/bin:nv/cold/sample_times" &&
        tag != "nv/json/bin:nv/cpu_only/sample_times") {
      continue;
    }
    for (const Document& value : list_of(summary, "data")) {
      if (text_of(value, "name") != "filename") continue;
      const std::filesystem::path folder = std::filesystem::path(path).parent_path();
      std::ifstream file(folder / text_of(value, "value"), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file),
                              std::istreambuf_iterator<char>()};
      std::vector<double> samples;
      for (std::size_t at = 0; at + sizeof(float) <= bytes.size(); at += sizeof(float)) {
        float sample = 0;
        std::memcpy(&sample, bytes.data() + at, sizeof sample);
        samples.push_back(static_cast<double>(sample));
      }
      return samples;
    }
  }
  return {};
}

std::vector<double> nvbench_times(const Document& state, const std::string& path) {
  std::vector<double> samples = nvbench_samples(state, path);
  if (!samples.empty()) return samples;
  for (const char* of : {"nv/cold/time/gpu/", "nv/cpu_only/time/cpu/"}) {
    for (const char* part : {"min", "q1", "median", "q3", "max"}) {
      const double value = summary_of(state, std::string(of) + part);
      if (std::isfinite(value)) samples.push_back(value);
    }
    if (samples.size() == 5) return samples;
    samples.clear();
    const double mean = summary_of(state, std::string(of) + "mean");
    if (std::isfinite(mean)) return {mean};  // files of versions before quartiles
  }
  const double batch = summary_of(state, "nv/batch/time/gpu/mean");
  return std::isfinite(batch) ? std::vector<double>{batch} : samples;
}

/// "Case=a", or the value alone where that is the only axis.
std::string nvbench_case(const Document& state) {
  const Document& axes = list_of(state, "axis_values");
  if (axes.size() == 1 && text_of(axes[0], "name") == "Case") return text_of(axes[0], "value");
  std::string name;
  for (const Document& axis : axes) {
    name += fmt::format("{}{}={}", name.empty() ? "" : ",", text_of(axis, "name"),
                        text_of(axis, "value"));
  }
  return name.empty() ? "default" : name;
}

ResultFile nvbench_results(const Document& json, const std::string& path) {
  const Document version = json.at("meta").value("version", Document::object());
  const Document nvbench = version.value("nvbench", Document::object());
  Collector all(path, "nvbench " + text_of(nvbench, "string"));
  const Document& devices = list_of(json, "devices");
  if (!devices.empty()) {
    all.file().device["name"] = text_of(devices[0], "name");
    const double sm = number_of(devices[0], "sm_version");
    if (sm > 0 && sm < 1e6) {
      all.file().device["sm"] = fmt::format("{}", static_cast<int>(sm) / 10);
    }
    all.file().device["num_sms"] = text_of(devices[0], "number_of_sms");
  }
  for (const Document& bench : list_of(json, "benchmarks")) {
    const std::string name = text_of(bench, "name");
    const std::size_t slash = name.find('/');
    const std::string backend = slash == std::string::npos ? "nvbench" : name.substr(slash + 1);
    for (const Document& state : list_of(bench, "states")) {
      Result& result = all.add(name.substr(0, slash), nvbench_case(state), backend);
      const std::string device = text_of(state, "device");
      result.device = device.empty() ? "cpu" : "cuda:" + device;
      const std::vector<double> times = nvbench_times(state, path);
      if (text_of(state, "is_skipped") == "true" || times.empty()) {
        result.status = Status::kSkipped;
        result.reasons.push_back(text_of(state, "skip_reason", "no time in the file"));
        continue;
      }
      all.set_samples(result, times);
    }
  }
  return std::move(all.file());
}

// ---- vLLM's attention_benchmarks.

Document vllm_problem(const Document& config) {
  Document attention = Document::object();
  const std::pair<const char*, const char*> keys[] = {
      {"head_size", "head_dim"}, {"num_heads", "num_q_heads"}, {"num_kv_heads", "num_kv_heads"}};
  for (const auto& [ours, theirs] : keys) {
    if (config.contains(theirs)) attention[ours] = config.at(theirs);
  }
  return {{"attention", attention},
          {"kv_cache", {{"dtype", text_of(config, "kv_cache_dtype", "auto")}}}};
}

ResultFile vllm_json_results(const Document& json, const std::string& path) {
  Collector all(path, "vLLM attention_benchmarks");
  for (const Document& row : json) {
    const Document config = row.value("config", Document::object());
    Result& result =
        all.add("vllm", text_of(config, "batch_spec"), text_of(config, "backend", "vllm"));
    const std::string device = text_of(config, "device", "cuda:0");
    result.device = device == "cuda" ? "cuda:0" : device;
    result.problem_json = vllm_problem(config).dump();
    const std::string error = text_of(row, "error");
    if (!error.empty()) {
      all.set_error(result, error);
      continue;
    }
    std::vector<double> samples;
    for (const char* part : {"min_time", "median_time", "max_time"}) {
      const double value = number_of(row, part);
      if (value > 0) samples.push_back(value);
    }
    if (samples.size() < 3) samples = {number_of(row, "mean_time")};
    all.set_samples(result, samples);
  }
  return std::move(all.file());
}

ResultFile vllm_csv_results(const CsvTable& table, const std::string& path) {
  Collector all(path, "vLLM attention_benchmarks");
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    Result& result = all.add("vllm", table.text(row, "batch_spec"), table.text(row, "backend"));
    result.device = "cuda:0";
    result.problem_json =
        Document{{"kv_cache", {{"dtype", table.text(row, "kv_cache_dtype")}}}}.dump();
    all.set_samples(result, {table.number(row, "mean_time")});
  }
  return std::move(all.file());
}

// ---- cuDNN's SDPA benchmark.

std::string cudnn_case(const CsvTable& table, std::size_t row, const std::string& pass) {
  std::string name = fmt::format("{},{},{},b{}q{}s{},{}", table.text(row, "model_name"),
                                 table.text(row, "data_type"), table.text(row, "attn_mask"),
                                 table.text(row, "batch_size"), table.text(row, "q_seqlen"),
                                 table.text(row, "kv_seqlen"), pass);
  if (table.text(row, "deterministic_bwd") == "True") name += ",deterministic";
  return name;
}

void add_cudnn(Collector& all, const CsvTable& table, std::size_t row, const std::string& pass,
               const std::string& prefix) {
  const bool succeeded = table.text(row, "success") != "False";
  const double ms = table.number(row, prefix + "time_ms");
  if (succeeded && !(ms > 0)) return;  // a pass that was not run
  Result& result = all.add(table.text(row, "config_name"), cudnn_case(table, row, pass),
                           table.text(row, "backend"));
  result.device = "cuda:0";
  const auto size = [&](const char* column) {
    const double number = table.number(row, column);
    return std::fabs(number) < 1e15 ? static_cast<std::int64_t>(number) : 0;
  };
  const std::string window = table.text(row, "sliding_window_size");
  result.problem_json = Document{{"attention",
                                  {{"num_heads", size("num_q_heads")},
                                   {"num_kv_heads", size("num_kv_heads")},
                                   {"head_size", size("head_dim_qk")},
                                   {"v_head_size", size("head_dim_vo")},
                                   {"dtype", table.text(row, "data_type")},
                                   {"causal", table.text(row, "attn_mask") != "no_mask"},
                                   {"sliding_window", window}}}}
                            .dump();
  if (!succeeded) {
    all.set_error(result, table.text(row, "error_message"));
    return;
  }
  all.set_samples(result, {ms}, 1e3);
  const double tflops = table.number(row, prefix + "tflops");
  if (!(tflops > 0)) return;
  Throughput rate;
  rate.tflops = tflops;
  rate.flops = tflops * ms * 1e9;
  rate.bound = "compute";
  rate.roofline_pct = std::nan("");
  result.throughput = rate;
}

ResultFile cudnn_results(const CsvTable& table, const std::string& path) {
  Collector all(path, "cuDNN sdpa_benchmark_training");
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    all.file().device["name"] = table.text(row, "gpu_name");
    if (table.has("fwd_time_ms")) {
      add_cudnn(all, table, row, "fwd", "fwd_");
      add_cudnn(all, table, row, "bwd", "bwd_");
    } else {
      add_cudnn(all, table, row, table.text(row, "profile_pass"), "");
    }
  }
  return std::move(all.file());
}

/// Errors: E-FORMAT for a file without a single case: whoever compares with it would find nothing
/// wrong.
std::optional<ResultFile> with_cases(std::optional<ResultFile> file, const std::string& path) {
  if (file && file->results.empty()) {
    fail(ErrorKind::kFormat, "{}: expected the result of a benchmark, found none", path);
  }
  return file;
}

std::optional<ResultFile> json_results(const Document& json, const std::string& path) {
  if (json.is_array()) {
    const bool is_vllm = !json.empty() && json[0].is_object() && json[0].contains("config") &&
                         json[0].contains("mean_time");
    return is_vllm ? std::optional(vllm_json_results(json, path)) : std::nullopt;
  }
  if (!json.is_object() || !json.contains("benchmarks")) return std::nullopt;
  if (json.contains("context") && json.at("context").is_object()) return google_results(json, path);
  if (json.contains("meta") && json.at("meta").is_object()) return nvbench_results(json, path);
  return std::nullopt;
}

}  // namespace

std::optional<ResultFile> parse_foreign_results(const std::string& text, const std::string& path) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return std::nullopt;
  // Why looked for first: result files of this program are long, and are parsed elsewhere.
  const bool may_be_list_of_benchmarks =
      text[first] == '[' || text.find("\"benchmarks\"") != std::string::npos;
  if (text[first] == '{' && !may_be_list_of_benchmarks) return std::nullopt;
  if (text[first] == '{' || text[first] == '[') {
    const Document json = Document::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) return std::nullopt;
    try {
      return with_cases(json_results(json, path), path);
    } catch (const Document::exception& error) {
      fail(ErrorKind::kFormat, "{}: not as the program writes it that it seems to be of: {}", path,
           json_complaint(error.what()));
    }
  }
  const bool is_vllm = text.compare(first, 19, "backend,batch_spec,") == 0;
  const bool is_cudnn = text.compare(first, 23, "config_name,model_name,") == 0;
  if (!is_vllm && !is_cudnn) return std::nullopt;
  const CsvTable table = parse_csv(text, path);
  return with_cases(is_vllm ? vllm_csv_results(table, path) : cudnn_results(table, path), path);
}

}  // namespace attnbench
