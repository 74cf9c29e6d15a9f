#include "report/formats/json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/result/write_json.h"

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

/// The members before `results`, in the order in which contract section 4 lists them.
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

/// Why replace: names of cases and words of drivers may hold any bytes, and a file with one bad
/// character must still be JSON.
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

/// JSON has no NaN and no infinity.
Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json verdict_json(const Verdict& verdict) {
  Json json = Json::object();
  json["id"] = verdict.id;
  json["verdict"] = to_string(verdict.kind);
  json["fails"] = verdict.fails;
  json["before_us"] = number_or_null(verdict.old_us);
  json["after_us"] = number_or_null(verdict.new_us);
  json["ratio"] = number_or_null(verdict.new_us / verdict.old_us);
  json["rule"] = verdict.rule;
  json["known"] = verdict.known == Known::kNo ? Json(nullptr) : Json(verdict.known_text);
  return json;
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

void write_verdict_json(std::ostream& out, const RunInfo& run, const GateReport& report) {
  Json json = Json::object();
  json["schema_version"] = 1;
  json["tool"] = {{"name", "attnbench"}, {"version", run.tool_version}, {"git", run.git}};
  json["created"] = run.created;
  json["passed"] = report.passed();
  json["counts"] = Json::object();
  const auto counts = report.counts();
  for (const auto& row : enum_rows(VerdictKind{})) {
    json["counts"][row.name] = counts[static_cast<std::size_t>(row.value)];
  }
  json["notices"] = report.notices;
  json["verdicts"] = Json::array();
  for (const Verdict& verdict : report.verdicts) json["verdicts"].push_back(verdict_json(verdict));
  out << json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) << "\n";
}

void write_agreement_json(std::ostream& out, const AgreementReport& report) {
  Json json = {{"schema_version", 1},
               {"devices", Json::array({report.first_device, report.second_device})},
               {"allowed_factor", report.allowed_factor},
               {"passed", report.failures() == 0},
               {"lone", report.lone},
               {"cases", Json::array()}};
  for (const Agreement& agreement : report.cases) {
    const AgreementSide& a = agreement.first;
    const AgreementSide& b = agreement.second;
    json["cases"].push_back(
        {{"id", agreement.id},
         {"status", Json::array({to_string(a.status), to_string(b.status)})},
         {"err_ratio", Json::array({number_or_null(a.err_ratio), number_or_null(b.err_ratio)})},
         {"nmse", Json::array({number_or_null(a.nmse), number_or_null(b.nmse)})},
         {"lse_err_ratio",
          Json::array({number_or_null(a.lse_err_ratio), number_or_null(b.lse_err_ratio)})},
         {"lse_nmse", Json::array({number_or_null(a.lse_nmse), number_or_null(b.lse_nmse)})},
         {"factor", number_or_null(agreement.factor)},
         {"figure", agreement.figure},
         {"disagreement", agreement.disagreement}});
  }
  out << json.dump(2) << "\n";
}

}  // namespace attnbench
