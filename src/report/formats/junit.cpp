#include "report/formats/junit.h"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "report/format.h"
#include "report/marks.h"

namespace attnbench {
namespace {

// ---- Results of a run.

struct Suite {
  std::string name;
  std::vector<const Result*> results;
};

/// One suite a scenario, in the order of first appearance.
std::vector<Suite> group_by_scenario(const std::vector<Result>& results) {
  std::vector<Suite> suites;
  for (const Result& result : results) {
    if (suites.empty() || suites.back().name != result.scenario) {
      auto known = suites.begin();
      while (known != suites.end() && known->name != result.scenario) ++known;
      if (known != suites.end()) {
        known->results.push_back(&result);
        continue;
      }
      suites.push_back({result.scenario, {}});
    }
    suites.back().results.push_back(&result);
  }
  return suites;
}

double seconds(const Result& result) { return result.timing ? result.timing->total_us * 1e-6 : 0; }

/// Attributes that count. Jenkins' schema has `skipped` for a suite only.
std::string totals(const std::vector<const Result*>& results, bool of_suite) {
  int failures = 0, errors = 0, skipped = 0;
  double time_s = 0;
  for (const Result* result : results) {
    failures += result->status == Status::kIncorrect || result->status == Status::kImplausible;
    errors += result->status == Status::kError;
    skipped += result->status == Status::kUnsupported || result->status == Status::kSkipped;
    time_s += seconds(*result);
  }
  return fmt::format("tests=\"{}\" failures=\"{}\" errors=\"{}\"{} time=\"{:.9f}\"", results.size(),
                     failures, errors, of_suite ? fmt::format(" skipped=\"{}\"", skipped) : "",
                     time_s);
}

/// The element that tells what became of a test; nothing for a passed one.
std::string outcome(const Result& result) {
  const std::string message =
      xml_escape(result.reasons.empty() ? to_string(result.status) : result.reasons.front());
  std::string body = fmt::format("{}", fmt::join(result.reasons, "\n"));
  if (!result.repro.empty()) body += "\n" + result.repro;
  switch (result.status) {
    case Status::kPassed:
    case Status::kUnverified:
      return "";
    case Status::kIncorrect:
    case Status::kImplausible:
      return fmt::format("      <failure message=\"{}\" type=\"{}\">{}</failure>\n", message,
                         to_string(result.status), xml_escape(body));
    case Status::kError:
      return fmt::format("      <error message=\"{}\" type=\"error\">{}</error>\n", message,
                         xml_escape(body));
    case Status::kUnsupported:
    case Status::kSkipped:
      return fmt::format("      <skipped message=\"{}\"/>\n",
                         xml_escape(fmt::format("{}: {}", to_string(result.status),
                                                fmt::join(result.reasons, "; "))));
  }
  return "";
}

/// The figures, where every reader shows them: Jenkins' schema has no properties of a testcase.
std::string figures(const Result& result) {
  std::string text = fmt::format("status: {}", to_string(result.status));
  if (result.error) {
    text += fmt::format("\nmax_abs: {}\nerr_ratio: {}", format_error(result.error->max_abs),
                        format_ratio(result.error->err_ratio));
  }
  if (result.quantization_error) text += "\nquant: " + marked_quant(result);
  const std::string clipped = clipped_text(result);
  if (!clipped.empty()) text += "\nclipped: " + clipped;
  if (result.timing) text += fmt::format("\nmedian: {}", format_time(result.timing->median_us));
  return "      <system-out>" + xml_escape(text) + "</system-out>\n";
}

// ---- Verdicts of a gate. Functions of the same names do the same for them.

struct VerdictSuite {
  std::string name;
  std::vector<const Verdict*> verdicts;
};

/// One suite a scenario, which is what an id begins with, in the order of first appearance.
std::vector<VerdictSuite> group_verdicts(const std::vector<Verdict>& verdicts) {
  std::vector<VerdictSuite> suites;
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

/// What nothing was decided of: known failures, cases that are not there, and times that differ by
/// no more than the noise. As skipped every reader shows them, and none takes them for a failure.
bool is_skipped(const Verdict& verdict) {
  return !verdict.fails && (verdict.known == Known::kYes || verdict.kind == VerdictKind::kMissing ||
                            verdict.kind == VerdictKind::kAmbiguous);
}

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

std::string figures(const Verdict& verdict) {
  std::string text = fmt::format("verdict: {}\nrule: {}", to_string(verdict.kind), verdict.rule);
  if (std::isfinite(verdict.old_us)) text += "\nbefore: " + format_time(verdict.old_us);
  if (std::isfinite(verdict.new_us)) text += "\nafter: " + format_time(verdict.new_us);
  return "      <system-out>" + xml_escape(text) + "</system-out>\n";
}

}  // namespace

void write_junit(std::ostream& out, const RunInfo& run, const std::vector<Result>& results) {
  std::vector<const Result*> all;
  for (const Result& result : results) all.push_back(&result);
  out << "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      << fmt::format("<testsuites name=\"attnbench\" {}>\n", totals(all, /*of_suite=*/false));
  for (const Suite& suite : group_by_scenario(results)) {
    out << fmt::format("  <testsuite name=\"{}\" {} timestamp=\"{}\" hostname=\"{}\">\n",
                       xml_escape(suite.name), totals(suite.results, /*of_suite=*/true),
                       xml_escape(run.created), xml_escape(run.environment.hostname));
    for (const Result* result : suite.results) {
      out << fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{:.9f}\">\n",
                         xml_escape(result->scenario),
                         xml_escape(result->case_name + "/" + result->backend), seconds(*result))
          << outcome(*result) << figures(*result) << "    </testcase>\n";
    }
    out << "  </testsuite>\n";
  }
  out << "</testsuites>\n";
}

void write_verdict_junit(std::ostream& out, const RunInfo& run, const GateReport& report) {
  std::vector<const Verdict*> all;
  for (const Verdict& verdict : report.verdicts) all.push_back(&verdict);
  out << "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      << fmt::format("<testsuites name=\"attnbench gate\" {}>\n", totals(all, /*of_suite=*/false));
  for (const VerdictSuite& suite : group_verdicts(report.verdicts)) {
    out << fmt::format("  <testsuite name=\"{}\" {} timestamp=\"{}\" hostname=\"{}\">\n",
                       xml_escape(suite.name), totals(suite.verdicts, /*of_suite=*/true),
                       xml_escape(run.created), xml_escape(run.environment.hostname));
    for (const Verdict* verdict : suite.verdicts) {
      const std::size_t slash = verdict->id.find('/');
      const std::string name =
          slash == std::string::npos ? verdict->id : verdict->id.substr(slash + 1);
      out << fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{:.9f}\">\n",
                         xml_escape(suite.name), xml_escape(name), seconds(*verdict))
          << outcome(*verdict) << figures(*verdict) << "    </testcase>\n";
    }
    out << "  </testsuite>\n";
  }
  out << "</testsuites>\n";
}

}  // namespace attnbench
