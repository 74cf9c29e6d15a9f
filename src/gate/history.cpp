#include "gate/history.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>

#include "core/error.h"
#include "core/parsing.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchemaVersion = 1;
constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

double rms_of_quantization(const Result& result) {
  return result.quantization_error ? result.quantization_error->rms_rel : kNoValue;
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

std::string line_of(const RunInfo& run, const Result& result) {
  const Environment& environment = run.environment;
  const bool on_gpu = result.device != "cpu" && environment.device;
  Json json;
  json["schema_version"] = kSchemaVersion;
  json["created"] = run.created;
  json["version"] = run.tool_version;
  json["git"] = run.git;
  json["fingerprint"] = environment.fingerprint;
  json["device"] = result.device;
  json["device_name"] = on_gpu ? environment.device->name : environment.cpu.model;
  json["plugin"] = text_or_null(result.plugin ? result.plugin->version : "");
  json["id"] = result.id;
  json["status"] = to_string(result.status);
  for (const HistoryMetric& metric : history_metrics()) {
    json[metric.name] = number(metric.get(result));
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// The member as text; empty where it is missing or null.
std::string text_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

/// What a process that died, or a full disk, left of a line; a later run began a new one.
bool is_cut_off(const std::string& line) {
  constexpr std::string_view kBegin = "{\"schema_version\"";
  return kBegin.starts_with(line.substr(0, kBegin.size()));
}

/// A line of the file; nothing of one that was cut off. `place` is for messages.
std::optional<HistoryRecord> record_of(const std::string& line, const std::string& place) {
  const Json json = parse_json<Json>(line);
  if (json.is_discarded() && is_cut_off(line)) return std::nullopt;
  const bool is_ours = json.is_object() && json.contains("id") && json.contains("schema_version");
  if (!is_ours) {
    fail(ErrorKind::kFormat, "{}: expected a line that 'run --history' wrote, found {:.40}", place,
         line);
  }
  if (json["schema_version"] != kSchemaVersion) {
    fail(ErrorKind::kFormat, "{}: schema_version: expected {}, found {}", place, kSchemaVersion,
         json["schema_version"].dump());
  }
  HistoryRecord record;
  record.created = text_of(json, "created");
  record.git = text_of(json, "git");
  record.fingerprint = text_of(json, "fingerprint");
  record.device_name = text_of(json, "device_name");
  record.plugin = text_of(json, "plugin");
  record.id = text_of(json, "id");
  record.status = text_of(json, "status");
  for (const HistoryMetric& metric : history_metrics()) {
    const auto found = json.find(metric.name);
    if (found != json.end() && found->is_number()) {
      record.numbers[metric.name] = found->get<double>();
    }
  }
  return record;
}

void read_file(const std::string& path, std::vector<HistoryRecord>& records) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    fail(ErrorKind::kIo, "{}: expected a readable file, found a folder", path);
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  if (!file) fail(ErrorKind::kIo, "{}: expected a readable file: {}", path, std::strerror(errno));
  const std::string text = content.str();
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) return;  // a process died while it wrote
    ++number;
    if (end > begin) {
      auto record = record_of(text.substr(begin, end - begin), fmt::format("{}:{}", path, number));
      if (record) records.push_back(*std::move(record));
    }
    begin = end + 1;
  }
}

/// Whether the last line of the file has no end.
bool ends_within_line(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in || in.tellg() <= 0) return false;  // a new or empty file, or a pipe
  in.seekg(-1, std::ios::end);
  return in.get() != '\n' && in.good();
}

/// Why one call: lines of two runs that end at the same time stay whole.
void append_text(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) fail(ErrorKind::kIo, "cannot write '{}': {}", path, std::strerror(errno));
  const off_t end = lseek(file, 0, SEEK_END);
  const ssize_t written = write(file, text.data(), text.size());
  const int error = errno;
  // What a full disk took of the lines goes again: nothing could read what a later run writes
  // behind it. Unless another run has written there meanwhile.
  const bool is_cut_off = written > 0 && written < static_cast<ssize_t>(text.size());
  if (is_cut_off && lseek(file, 0, SEEK_END) == end + written && ftruncate(file, end) != 0) {
    errno = 0;  // the error below is of the disk
  }
  close(file);
  if (written != static_cast<ssize_t>(text.size())) {
    fail(ErrorKind::kIo, "cannot write '{}': {}", path,
         written < 0 ? std::strerror(error) : "the disk is full");
  }
}

}  // namespace

const std::vector<HistoryMetric>& history_metrics() {
  static const std::vector<HistoryMetric> metrics{
      {"median_us", "us", true,
       [](const Result& r) { return r.timing ? r.timing->median_us : kNoValue; }},
      {"total_us", "us", true,
       [](const Result& r) { return r.timing ? r.timing->total_us : kNoValue; }},
      {"cycles", "", true, [](const Result& r) { return r.timing ? r.timing->cycles : kNoValue; }},
      {"noise", "", true, [](const Result& r) { return r.timing ? r.timing->noise : kNoValue; }},
      {"cpu_wait", "", true,
       [](const Result& r) { return r.timing ? r.timing->cpu_wait : kNoValue; }},
      {"tflops", "TFLOP/s", false,
       [](const Result& r) { return r.throughput ? r.throughput->tflops : kNoValue; }},
      {"gbps", "GB/s", false,
       [](const Result& r) { return r.throughput ? r.throughput->gbps : kNoValue; }},
      {"max_abs", "", true, [](const Result& r) { return r.error ? r.error->max_abs : kNoValue; }},
      {"rms_rel", "", true, [](const Result& r) { return r.error ? r.error->rms_rel : kNoValue; }},
      {"err_ratio", "", true,
       [](const Result& r) { return r.error ? r.error->err_ratio : kNoValue; }},
      {"quantization_rms_rel", "", true, rms_of_quantization},
  };
  return metrics;
}

const HistoryMetric& history_metric(const std::string& name) {
  std::string names;
  for (const HistoryMetric& metric : history_metrics()) {
    if (name == metric.name) return metric;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", metric.name);
  }
  fail(ErrorKind::kUsage, "--metric: expected one of {}, found '{}'", names, name);
}

void append_history(const std::string& path, const RunInfo& run,
                    const std::vector<Result>& results) {
  std::string text;
  for (const Result& result : results) {
    if (result.status != Status::kSkipped) text += line_of(run, result);
  }
  // Why: a line that was cut off would take the first of ours with it.
  if (!text.empty()) append_text(path, ends_within_line(path) ? "\n" + text : text);
}

std::vector<HistoryRecord> read_history(const std::vector<std::string>& paths) {
  std::vector<HistoryRecord> records;
  for (const std::string& path : paths) read_file(path, records);
  // RFC 3339 in UTC sorts as text.
  std::stable_sort(records.begin(), records.end(),
                   [](const auto& a, const auto& b) { return a.created < b.created; });
  return records;
}

std::vector<HistorySeries> history_series(const std::vector<HistoryRecord>& records,
                                          const HistoryMetric& metric) {
  std::map<std::pair<std::string, std::string>, HistorySeries> series;
  for (const HistoryRecord& record : records) {
    HistorySeries& one = series[{record.id, record.fingerprint}];
    one.id = record.id;
    one.fingerprint = record.fingerprint;
    one.device_name = record.device_name;
    one.last_status = record.status;
    const auto found = record.numbers.find(metric.name);
    const bool has_value = record.status == "passed" && found != record.numbers.end();
    if (!has_value) {
      ++one.without_value;
      continue;
    }
    one.records.push_back(&record);
    one.values.push_back(found->second);
  }
  std::vector<HistorySeries> all;
  for (auto& [key, one] : series) all.push_back(std::move(one));
  return all;
}

}  // namespace attnbench
