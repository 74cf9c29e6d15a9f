#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "report/formats/xml.h"
#include "report/verdicts.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

struct Suite {
  std::string name;
  std::vector<const Verdict*> verdicts;
};

/// One suite a scenario, which is what an id begins with, in the order of first appearance.
std::vector<Suite> group_by_scenario(const std::vector<Verdict>& verdicts) {
  std::vector<Suite> suites;
  std::map<std::string, std::size_t> index;
  for (const Verdict& verdict : verdicts) {
    const std::string scenario = verdict.id.substr(0, verdict.id.find('/'));
    const auto [entry, is_new] = index.try_emplace(scenario, suites.size());
    if (is_new) suites.push_back({scenario, {}});
    suites[entry->second].verdicts.push_back(&verdict);
  }
  return suites;
}

double seconds(const Verdict& verdict) {
  return std::isfinite(verdict.new_us) ? verdict.new_us * 1e-6 : 0;
}

bool is_skipped(const Verdict& verdict) {
  return !verdict.fails && (verdict.known == Known::kYes || verdict.kind == VerdictKind::kMissing);
}

/// Attributes that count. Jenkins' schema has `skipped` for a suite only.
std::string totals(const std::vector<const Verdict*>& verdicts, bool of_suite) {
  int failures = 0, skipped = 0;
  double time_s = 0;
  for (const Verdict* verdict : verdicts) {
    failures += verdict->fails;
    skipped += is_skipped(*verdict);
    time_s += seconds(*verdict);
  }
  return fmt::format("tests=\"{}\" failures=\"{}\" errors=\"0\"{} time=\"{:.9f}\"", verdicts.size(),
                     failures, of_suite ? fmt::format(" skipped=\"{}\"", skipped) : "", time_s);
}

std::string outcome(const Verdict& verdict) {
  const std::string message = fmt::format("{}: {}", to_string(verdict.kind), verdict.rule);
  if (verdict.fails) {
    std::string body = message;
    if (verdict.known == Known::kExpired) body += "\nknown, but expired: " + verdict.known_text;
    if (!verdict.repro.empty()) body += "\n" + verdict.repro;
    return fmt::format("      <failure message=\"{}\" type=\"{}\">{}</failure>\n",
                       xml_escape(message), to_string(verdict.kind), xml_escape(body));
  }
  if (!is_skipped(verdict)) return "";
  const std::string known = verdict.known == Known::kYes ? "; known: " + verdict.known_text : "";
  return fmt::format("      <skipped message=\"{}\"/>\n", xml_escape(message + known));
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json verdict_json(const Verdict& verdict) {
  Json json = Json::object();
  json["id"] = verdict.id;
  json["verdict"] = to_string(verdict.kind);
  json["fails"] = verdict.fails;
  json["before_us"] = number(verdict.old_us);
  json["after_us"] = number(verdict.new_us);
  json["ratio"] = number(verdict.new_us / verdict.old_us);
  json["rule"] = verdict.rule;
  json["known"] = verdict.known == Known::kNo ? Json(nullptr) : Json(verdict.known_text);
  return json;
}

}  // namespace

void write_verdict_junit(std::ostream& out, const RunInfo& run, const GateReport& report) {
  std::vector<const Verdict*> all;
  for (const Verdict& verdict : report.verdicts) all.push_back(&verdict);
  out << "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      << fmt::format("<testsuites name=\"attnbench gate\" {}>\n", totals(all, /*of_suite=*/false));
  for (const Suite& suite : group_by_scenario(report.verdicts)) {
    out << fmt::format("  <testsuite name=\"{}\" {} timestamp=\"{}\" hostname=\"{}\">\n",
                       xml_escape(suite.name), totals(suite.verdicts, /*of_suite=*/true),
                       xml_escape(run.created), xml_escape(run.environment.hostname));
    for (const Verdict* verdict : suite.verdicts) {
      const std::size_t slash = verdict->id.find('/');
      const std::string name =
          slash == std::string::npos ? verdict->id : verdict->id.substr(slash + 1);
      out << fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{:.9f}\">\n",
                         xml_escape(suite.name), xml_escape(name), seconds(*verdict))
          << outcome(*verdict) << "    </testcase>\n";
    }
    out << "  </testsuite>\n";
  }
  out << "</testsuites>\n";
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

}  // namespace attnbench
