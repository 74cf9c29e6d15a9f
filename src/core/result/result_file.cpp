// Result files and journals. A journal is what a run appends to while it goes: its head line is
// written first, then one line a result, so the file of a run that was killed is whole up to its
// last line and can be resumed or reported like a finished one.
#include "core/result/result_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>

#include "core/error.h"
#include "core/result/read_json.h"

namespace attnbench {
namespace {

using Document = nlohmann::ordered_json;  // the type of result_from_document()

constexpr int kSchemaVersion = 1;

Document parse(std::string_view text) {
  return Document::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

/// A text member; empty when it is missing, null or no text.
std::string text_member(const Document& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

double number_member(const Document& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

const Document& object_member(const Document& object, const char* key) {
  static const Document none = Document::object();
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_object() ? *found : none;
}

Environment read_environment(const Document& json) {
  Environment environment;
  environment.hostname = text_member(json, "hostname");
  const Document& cpu = object_member(json, "cpu");
  environment.cpu.model = text_member(cpu, "model");
  environment.cpu.cores = static_cast<int>(number_member(cpu, "cores"));
  environment.cpu.features = text_member(cpu, "features");
  const Document& compiler = object_member(json, "compiler");
  environment.compiler = text_member(compiler, "name");
  const std::string version = text_member(compiler, "version");
  if (!version.empty()) environment.compiler += " " + version;
  environment.fingerprint = text_member(json, "fingerprint");
  return environment;
}

NoiseFloor read_noise_floor(const Document& json) {
  NoiseFloor floor;
  floor.runs = static_cast<int>(number_member(json, "runs"));
  floor.all_cases = number_member(json, "all_cases");
  for (const auto& [id, gap] : object_member(json, "cases").items()) {
    if (gap.is_number()) floor.cases[id] = gap.get<double>();
  }
  return floor;
}

void read_head(const Document& head, ResultFile& file) {
  const auto version = head.find("schema_version");
  if (version == head.end()) {
    fail(ErrorKind::kFormat, "{}: not a result file: schema_version is missing", file.path);
  }
  if (*version != kSchemaVersion) {
    fail(ErrorKind::kFormat, "{}: schema_version: expected {}, found {}", file.path, kSchemaVersion,
         version->dump());
  }
  const Document& tool = object_member(head, "tool");
  file.run.tool_version = text_member(tool, "version");
  file.run.git = text_member(tool, "git");
  file.run.created = text_member(head, "created");
  for (const Document& word : head.value("command", Document::array())) {
    if (word.is_string()) file.run.command.push_back(word.get<std::string>());
  }
  const Document& environment = object_member(head, "environment");
  file.run.environment = read_environment(environment);
  for (const auto& [key, value] : object_member(environment, "device").items()) {
    if (value.is_string()) file.device[key] = value.get<std::string>();
    if (value.is_number()) file.device[key] = value.dump();
  }
  if (head.contains("noise_floor")) {
    file.run.noise_floor = read_noise_floor(object_member(head, "noise_floor"));
  }
}

void widen_clocks(const Document& result, ResultFile& file) {
  const Document& clocks = object_member(object_member(result, "timing"), "clocks");
  const double least = number_member(clocks, "sm_mhz_min");
  const double most = number_member(clocks, "sm_mhz_max");
  if (least <= 0 || most <= 0) return;
  file.sm_mhz_min = file.sm_mhz_min > 0 ? std::min(file.sm_mhz_min, least) : least;
  file.sm_mhz_max = std::max(file.sm_mhz_max, most);
}

void read_result(const Document& json, ResultFile& file) {
  try {
    file.results.push_back(result_from_document(json));
  } catch (const Error& error) {
    fail(error.kind(), "{}: results[{}]: {}", file.path, file.results.size(), error.what());
  }
  widen_clocks(json, file);
}

void read_journal(std::string_view lines, ResultFile& file) {
  file.is_journal = true;
  while (!lines.empty()) {
    const std::size_t end = lines.find('\n');
    // Why: a line without its end is what a killed process was writing.
    if (end == std::string_view::npos) return;
    const Document json = parse(lines.substr(0, end));
    if (json.is_discarded()) {
      fail(ErrorKind::kFormat, "{}: line {} of the journal is not JSON", file.path,
           file.results.size() + 2);
    }
    read_result(json, file);
    lines.remove_prefix(end + 1);
  }
}

void check_unique_ids(const ResultFile& file) {
  std::set<std::string_view> ids;
  for (const Result& result : file.results) {
    if (!ids.insert(result.id).second) {
      fail(ErrorKind::kFormat, "{}: two results have the id '{}'", file.path, result.id);
    }
  }
}

}  // namespace

ResultFile parse_result_file(const std::string& text, const std::string& path) {
  ResultFile file;
  file.path = path;
  if (nests_too_deep(text)) fail(ErrorKind::kFormat, "{}: nested too deep", path);
  const std::size_t line_end = text.find('\n');
  const std::string_view head = std::string_view(text).substr(0, line_end);
  // Why looked for first: a file may be one line, and is parsed below.
  const bool may_be_journal = head.substr(0, 4096).find("\"journal\"") != std::string_view::npos;
  const Document first_line = may_be_journal ? parse(head) : Document();
  const bool is_journal = first_line.is_object() && first_line.contains("journal");
  if (is_journal) {
    read_head(first_line, file);
    const std::size_t begin = line_end == std::string::npos ? text.size() : line_end + 1;
    read_journal(std::string_view(text).substr(begin), file);
  } else {
    const Document json = parse(text);
    if (json.is_discarded()) {
      fail(ErrorKind::kFormat, "{}: not JSON, expected a file that 'run --json' wrote", path);
    }
    if (!json.is_object()) {
      fail(ErrorKind::kFormat, "{}: not a result file: expected an object", path);
    }
    read_head(json, file);
    const auto results = json.find("results");
    if (results == json.end() || !results->is_array()) {
      fail(ErrorKind::kFormat, "{}: results: expected a list", path);
    }
    for (const Document& result : *results) read_result(result, file);
  }
  check_unique_ids(file);
  return file;
}

std::string result_file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorKind::kIo, "cannot read '{}': {}", path, std::strerror(errno));
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    fail(ErrorKind::kIo, "cannot read '{}': it is a folder", path);
  }
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad()) fail(ErrorKind::kIo, "cannot read '{}': {}", path, std::strerror(errno));
  return text.str();
}

ResultFile read_result_file(const std::string& path) {
  return parse_result_file(result_file_text(path), path);
}

}  // namespace attnbench
