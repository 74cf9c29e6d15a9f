#include "report/formats/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "report/format.h"

namespace attnbench {
namespace {

using Ordered = nlohmann::ordered_json;

bool has_time(const Result& result) {
  return is_ranked(result) && std::isfinite(result.timing->median_us);
}

std::string dumped(const Ordered& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false, Ordered::error_handler_t::replace) + "\n";
}

std::string quoted_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text) {
    if (letter == '"') quoted += '"';
    quoted += letter;
  }
  return quoted + "\"";
}

// ---- nvbench.

Ordered named_value(const char* name, const char* type, const std::string& value) {
  return {{"name", name}, {"type", type}, {"value", value}};
}

void add_nv_summary(Ordered& summaries, const std::string& tag, const char* name, const char* hint,
                    double value) {
  if (!std::isfinite(value)) return;
  summaries.push_back({{"tag", tag},
                       {"name", name},
                       {"hint", hint},
                       {"data", {named_value("value", "float64", fmt::format("{}", value))}}});
}

Ordered nv_summaries(const Result& result) {
  const bool on_gpu = result.device.starts_with("cuda");
  const std::string base = on_gpu ? "nv/cold/" : "nv/cpu_only/";
  const std::string time = base + (on_gpu ? "time/gpu/" : "time/cpu/");
  const Timing& timing = *result.timing;
  Ordered summaries = Ordered::array();
  summaries.push_back(
      {{"tag", base + "sample_size"},
       {"name", "Samples"},
       {"hint", "sample_size"},
       {"data", {named_value("value", "int64", std::to_string(timing.samples_us.size()))}}});
  const auto longest = std::max_element(timing.samples_us.begin(), timing.samples_us.end());
  const double max_us = longest == timing.samples_us.end() ? timing.median_us : *longest;
  const std::pair<const char*, double> times[] = {{"min", timing.min_us},
                                                  {"max", max_us},
                                                  {"mean", timing.mean_us},
                                                  {"q1", timing.q1_us},
                                                  {"median", timing.median_us},
                                                  {"q3", timing.q3_us},
                                                  {"stdev/absolute", timing.stdev_us}};
  for (const auto& [part, us] : times) {
    add_nv_summary(summaries, time + part, on_gpu ? "GPU Time" : "CPU Time", "duration", us * 1e-6);
  }
  const double spread = timing.mean_us > 0 ? timing.stdev_us / timing.mean_us : 0;
  add_nv_summary(summaries, time + "stdev/relative", "Noise", "percentage", spread);
  if (result.throughput) {
    add_nv_summary(summaries, base + "bw/global/bytes_per_second", "GlobalMem BW", "byte_rate",
                   result.throughput->gbps * 1e9);
    add_nv_summary(summaries, base + "bw/item_rate", "Elem/s", "item_rate",
                   result.throughput->tokens_per_s);
  }
  return summaries;
}

Ordered nv_device_id(const Result& result) {
  if (!result.device.starts_with("cuda:")) return nullptr;
  return std::atoi(result.device.c_str() + 5);
}

Ordered nv_state(const Result& result) {
  return {{"name", "Case=" + result.case_name},
          {"min_samples", result.timing->samples_us.size()},
          {"skip_time", -1.0},
          {"timeout", 15.0},
          {"device", nv_device_id(result)},
          {"type_config_index", 0},
          {"axis_values", {named_value("Case", "string", result.case_name)}},
          {"summaries", nv_summaries(result)},
          {"is_skipped", false}};
}

Ordered nv_benchmark(const std::vector<const Result*>& results, std::size_t index) {
  Ordered devices = Ordered::array(), values = Ordered::array(), states = Ordered::array();
  for (const Result* result : results) {
    const Ordered id = nv_device_id(*result);
    if (std::find(devices.begin(), devices.end(), id) == devices.end() && !id.is_null()) {
      devices.push_back(id);
    }
    values.push_back(
        {{"input_string", result->case_name}, {"description", ""}, {"value", result->case_name}});
    states.push_back(nv_state(*result));
  }
  const Result& first = *results.front();
  return {{"name", first.scenario + "/" + first.backend},
          {"index", index},
          {"devices", devices},
          {"axes", {{{"name", "Case"}, {"type", "string"}, {"flags", ""}, {"values", values}}}},
          {"states", states}};
}

Ordered nv_devices(const RunInfo& run, const std::vector<Result>& results) {
  Ordered devices = Ordered::array();
  const auto& device = run.environment.device;
  if (!device) return devices;
  for (const Result& result : results) {
    const Ordered id = nv_device_id(result);
    if (id.is_null()) continue;
    devices.push_back({{"id", id},
                       {"name", device->name},
                       {"sm_version", device->sm * 10},
                       {"number_of_sms", device->num_sms},
                       {"global_memory_size", device->memory_bytes},
                       {"l2_cache_size", device->l2_bytes}});
    break;
  }
  return devices;
}

// ---- cuDNN's CSV.

Ordered member(const Ordered& json, const char* pointer) {
  const Ordered::json_pointer path(pointer);
  return json.contains(path) ? json.at(path) : Ordered();
}

std::string plain(const Ordered& json) {
  if (json.is_null()) return "";
  return json.is_string() ? json.get<std::string>() : json.dump();
}

struct EqualBatch {
  std::int64_t requests = 0, query_len = 0, seq_len = 0;
};
/// Nothing when requests differ in their lengths.
std::optional<EqualBatch> equal_batch(const Ordered& problem) {
  const Ordered batch = member(problem, "/batch");
  if (!batch.is_array() || batch.empty()) return std::nullopt;
  EqualBatch equal;
  for (const Ordered& row : batch) {
    if (!row.is_object()) return std::nullopt;
    const auto query = row.value<std::int64_t>("query_len", 0);
    const auto keys = row.value<std::int64_t>("seq_len", 0);
    const bool same = equal.requests == 0 || (query == equal.query_len && keys == equal.seq_len);
    if (!same) return std::nullopt;
    equal = {equal.requests + row.value<std::int64_t>("count", 1), query, keys};
  }
  return equal;
}

/// Their words: the diagonal of a square mask is at the top left, ours ends at the last key.
const char* cudnn_mask(const Ordered& attention, const EqualBatch& batch) {
  if (member(attention, "/causal") == false) return "no_mask";
  return batch.query_len == batch.seq_len ? "top_left" : "bottom_right";
}

// ---- Prometheus.

std::string label_text(const std::string& text) {
  std::string escaped;
  for (const char letter : sanitize_utf8(text)) {
    if (letter == '\\' || letter == '"') escaped += '\\';
    if (letter == '\n') {
      escaped += "\\n";
    } else {
      escaped += letter;
    }
  }
  return escaped;
}

struct Gauge {
  const char* name;
  const char* help;
  double (*value)(const Result&);  // NaN = no line
};

double timed(const Result& result, double value) { return has_time(result) ? value : std::nan(""); }

const std::vector<Gauge>& gauges() {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  static const std::vector<Gauge> rows{
      {"attnbench_passed", "1 for a result that passed, 0 for one that failed",
       [](const Result& result) {
         if (result.status == Status::kPassed) return 1.0;
         return badness(result.status) <= badness(Status::kError) ? 0.0 : kNone;
       }},
      {"attnbench_time_seconds", "Median time of attention",
       [](const Result& result) {
         return timed(result, result.timing ? result.timing->median_us * 1e-6 : kNone);
       }},
      {"attnbench_time_noise_ratio", "Relative half-width of the median's interval",
       [](const Result& result) {
         return timed(result, result.timing ? result.timing->noise : kNone);
       }},
      {"attnbench_flops_per_second", "Floating point operations of visible pairs",
       [](const Result& result) {
         return timed(result, result.throughput ? result.throughput->tflops * 1e12 : kNone);
       }},
      {"attnbench_bytes_per_second", "Bytes that have to be moved",
       [](const Result& result) {
         return timed(result, result.throughput ? result.throughput->gbps * 1e9 : kNone);
       }},
      {"attnbench_tokens_per_second", "New tokens",
       [](const Result& result) {
         return timed(result, result.throughput ? result.throughput->tokens_per_s : kNone);
       }},
      {"attnbench_max_abs_error", "Largest error against float64",
       [](const Result& result) { return result.error ? result.error->max_abs : kNone; }},
      {"attnbench_quantization_error_ratio",
       "Cost of quantising, relative RMS against attention without it",
       [](const Result& result) {
         return result.quantization_error ? result.quantization_error->rms_rel : kNone;
       }},
  };
  return rows;
}

}  // namespace

void write_bencher(std::ostream& out, const RunInfo&, const std::vector<Result>& results) {
  Ordered json = Ordered::object();
  for (const Result& result : results) {
    if (!has_time(result)) continue;
    const Timing& timing = *result.timing;
    Ordered& measures = json[result.id];
    measures["latency"] = {{"value", timing.median_us * 1e3},
                           {"lower_value", timing.q1_us * 1e3},
                           {"upper_value", timing.q3_us * 1e3}};
    if (result.throughput && std::isfinite(result.throughput->tokens_per_s)) {
      measures["throughput"] = {{"value", result.throughput->tokens_per_s}};
    }
    if (result.error && std::isfinite(result.error->max_abs)) {
      measures["max-abs-error"] = {{"value", result.error->max_abs}};
    }
  }
  out << dumped(json);
}

OtavaRow otava_row(const RunInfo& run, const std::vector<Result>& results) {
  OtavaRow row{run.created, run.git, {}};
  for (const Result& result : results) {
    if (has_time(result)) row.values[result.id] = result.timing->median_us;
  }
  return row;
}

void write_otava_rows(std::ostream& out, const std::vector<OtavaRow>& rows) {
  std::vector<std::string> metrics;
  if (!rows.empty()) {
    for (const auto& [metric, value] : rows.front().values) {
      const bool everywhere = std::all_of(rows.begin(), rows.end(), [&](const OtavaRow& row) {
        return row.values.contains(metric);
      });
      if (everywhere) metrics.push_back(metric);
    }
  }
  out << "time,commit";
  for (const std::string& metric : metrics) out << ',' << quoted_field(metric);
  out << "\r\n";
  for (const OtavaRow& row : rows) {
    out << quoted_field(row.time) << ',' << quoted_field(row.commit);
    for (const std::string& metric : metrics) out << fmt::format(",{}", row.values.at(metric));
    out << "\r\n";
  }
}

void write_otava_csv(std::ostream& out, const RunInfo& run, const std::vector<Result>& results) {
  write_otava_rows(out, {otava_row(run, results)});
}

void write_nvbench(std::ostream& out, const RunInfo& run, const std::vector<Result>& results) {
  std::vector<std::vector<const Result*>> groups;  // of a benchmark, in the order of the results
  std::map<std::string, std::size_t> group_of;
  for (const Result& result : results) {
    if (!has_time(result)) continue;
    const auto [found, is_new] =
        group_of.emplace(result.scenario + "/" + result.backend, groups.size());
    if (is_new) groups.emplace_back();
    groups[found->second].push_back(&result);
  }
  Ordered json;
  json["meta"] = {
      {"argv", run.command},
      {"version",
       {{"json", {{"major", 1}, {"minor", 0}, {"patch", 0}, {"string", "1.0.0"}}},
        {"nvbench", {{"string", "attnbench " + run.tool_version}, {"git_sha", run.git}}}}}};
  json["devices"] = nv_devices(run, results);
  json["benchmarks"] = Ordered::array();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    json["benchmarks"].push_back(nv_benchmark(groups[i], i));
  }
  out << dumped(json);
}

void write_cudnn_csv(std::ostream& out, const RunInfo& run, const std::vector<Result>& results) {
  out << "config_name,model_name,backend,data_type,attn_mask,batch_size,q_seqlen,kv_seqlen,"
         "num_q_heads,num_kv_heads,head_dim_qk,head_dim_vo,profile_pass,deterministic_bwd,time_ms,"
         "tflops,max_diff,num_iterations,sliding_window_size,success,error_message,gpu_name,"
         "cudnn_version,cudnn_backend_version\n";
  const std::string gpu =
      run.environment.device ? run.environment.device->name : run.environment.cpu.model;
  for (const Result& result : results) {
    if (!has_time(result)) continue;
    const Ordered problem = Ordered::parse(result.problem_json, nullptr, false);
    if (!problem.is_object()) continue;
    const std::optional<EqualBatch> batch = equal_batch(problem);
    const Ordered attention = member(problem, "/attention");
    if (!batch || member(attention, "/num_heads").is_null()) continue;
    const bool fp8 = member(attention, "/query_dtype") == "fp8_e4m3";
    const Ordered value_size = member(attention, "/v_head_size");
    const double max_abs = result.error ? result.error->max_abs : 0;
    out << fmt::format(
        "{},{},{},{},{},{},{},{},{},{},{},{},fwd,False,{:.3f},{:.3f},{:.3f},{},{},True,,{},,\n",
        quoted_field(result.scenario), quoted_field(result.case_name), quoted_field(result.backend),
        fp8 ? "fp8" : plain(member(attention, "/dtype")), cudnn_mask(attention, *batch),
        batch->requests, batch->query_len, batch->seq_len, plain(member(attention, "/num_heads")),
        plain(member(attention, "/num_kv_heads")), plain(member(attention, "/head_size")),
        plain(value_size.is_null() ? member(attention, "/head_size") : value_size),
        result.timing->median_us * 1e-3, result.throughput ? result.throughput->tflops : 0.0,
        std::isfinite(max_abs) ? max_abs : 0, result.timing->samples_us.size(),
        plain(member(attention, "/sliding_window")), quoted_field(gpu));
  }
}

void write_prometheus(std::ostream& out, const RunInfo&, const std::vector<Result>& results) {
  for (const Gauge& gauge : gauges()) {
    out << fmt::format("# HELP {0} {1}\n# TYPE {0} gauge\n", gauge.name, gauge.help);
    for (const Result& result : results) {
      const double value = gauge.value(result);
      if (!std::isfinite(value)) continue;
      out << fmt::format("{}{{scenario=\"{}\",case=\"{}\",backend=\"{}\",device=\"{}\"}} {}\n",
                         gauge.name, label_text(result.scenario), label_text(result.case_name),
                         label_text(result.backend), label_text(result.device), value);
    }
  }
}

}  // namespace attnbench
