#include <nlohmann/json.hpp>

#include "core/result/write_json.h"
#include "report/reporter.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

/// "GCC 13.2.0" -> name and version.
Json compiler_json(const std::string& compiler) {
  const std::size_t space = compiler.find(' ');
  if (space == std::string::npos) return {{"name", compiler}, {"version", ""}};
  return {{"name", compiler.substr(0, space)}, {"version", compiler.substr(space + 1)}};
}

Json device_json(const DeviceDescription& device) {
  return {{"name", device.name},         {"sm", device.sm},
          {"num_sms", device.num_sms},   {"memory_bytes", device.memory_bytes},
          {"l2_bytes", device.l2_bytes}, {"driver", device.driver},
          {"runtime", device.runtime}};
}

Json environment_json(const Environment& environment) {
  Json json = Json::object();
  json["hostname"] = environment.hostname;
  json["cpu"] = {{"model", environment.cpu.model},
                 {"cores", environment.cpu.cores},
                 {"features", environment.cpu.features}};
  json["device"] = environment.device ? device_json(*environment.device) : Json(nullptr);
  json["compiler"] = compiler_json(environment.compiler);
  json["fingerprint"] = environment.fingerprint;
  return json;
}

Json noise_floor_json(const NoiseFloor& floor) {
  return {{"runs", floor.runs}, {"all_cases", floor.all_cases}, {"cases", floor.cases}};
}

Json head_json(const RunInfo& run) {
  Json head = Json::object();
  head["schema_version"] = 1;
  head["tool"] = {{"name", "attnbench"}, {"version", run.tool_version}, {"git", run.git}};
  head["created"] = run.created;
  head["command"] = run.command;
  head["environment"] = environment_json(run.environment);
  if (run.noise_floor) head["noise_floor"] = noise_floor_json(*run.noise_floor);
  return head;
}

std::string dump(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

/// `json`, indented by 2, moved right by `margin` so that it stands in an outer object.
void write_nested(std::ostream& out, const std::string& json, const std::string& margin) {
  for (const char character : json) {
    out << character;
    if (character == '\n') out << margin;
  }
}

}  // namespace

std::string result_file_head(const RunInfo& run) { return dump(head_json(run), -1); }

void write_json(std::ostream& out, const RunInfo& run, const std::vector<Result>& results) {
  // Why: results are written one by one, so that a hundred thousand of them need not stand in
  // memory a second time as a document.
  out << "{\n";
  const Json head = head_json(run);
  for (const auto& [key, value] : head.items()) {
    out << "  " << dump(key, -1) << ": ";
    write_nested(out, dump(value, 2), "  ");
    out << ",\n";
  }
  out << "  \"results\": [";
  for (std::size_t i = 0; i < results.size(); ++i) {
    out << (i == 0 ? "\n    " : ",\n    ");
    write_nested(out, result_to_json(results[i], 2), "    ");
  }
  out << (results.empty() ? "]\n}\n" : "\n  ]\n}\n");
}

}  // namespace attnbench
