#include "report/tables/verdicts.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "report/format.h"
#include "report/formats/json.h"
#include "report/formats/junit.h"
#include "report/formats/markdown.h"

namespace attnbench {
namespace {

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Verdict verdict_of(const std::string& id, VerdictKind kind, bool fails) {
  Verdict verdict;
  verdict.id = id;
  verdict.kind = kind;
  verdict.old_us = 100;
  verdict.new_us = 110;
  verdict.rule = "the rule of " + id;
  verdict.fails = fails;
  verdict.repro = "attnbench run s --filter '" + id + "'";
  return verdict;
}

GateReport many_failures(int count) {
  GateReport report;
  for (int i = 0; i < count; ++i) {
    report.verdicts.push_back(
        verdict_of("s/case-" + std::to_string(i) + "/B", VerdictKind::kSlower, true));
  }
  return report;
}

std::string table_of(const GateReport& report, const TableOptions& options) {
  std::ostringstream out;
  write_verdict_table(out, report, RowNames({}), options);
  return out.str();
}

std::string summary_of(const GateReport& report) {
  std::ostringstream out;
  write_summary(out, {}, {}, &report, {{"https://ci/1", "report.html"}, 20});
  return out.str();
}

}  // namespace

TEST_CASE("a verdict stands with its times, change and rule; what is the same only on demand") {
  GateReport report = many_failures(1);
  report.verdicts.push_back(verdict_of("s/quiet/B", VerdictKind::kSame, false));
  const std::string table = table_of(report, {false, 80, false});
  CHECK(says(table, "SLOWER "));
  CHECK(says(table, "100.0 us -> 110.0 us"));
  CHECK(says(table, "+10.0%"));
  CHECK(says(table, "    the rule of s/case-0/B\n"));
  CHECK(says(table, "1 SLOWER, 1 SAME\n"));
  CHECK(says(table, "gate failed: 1 of 2 cases\n"));
  CHECK(says(table, "reproduce: attnbench run s"));
  CHECK_FALSE(says(table, "s/quiet/B"));
  CHECK(says(table_of(report, {false, 80, true}), "s/quiet/B"));
}

TEST_CASE("lines of verdicts fit their width and have colours only when asked for") {
  GateReport report = many_failures(1);
  report.verdicts[0].id = "s/" + std::string(150, 'x') + "/B";
  report.verdicts[0].rule =
      "many words that do not fit into one line of a terminal of this width, "
      "so that they go on in the next";
  report.verdicts[0].repro.clear();
  std::istringstream lines(table_of(report, {false, 80, false}));
  for (std::string line; std::getline(lines, line);) CHECK(display_width(line) <= 80);
  CHECK_FALSE(says(table_of(report, {false, 80, false}), "\x1b["));
  CHECK(says(table_of(report, {true, 80, false}), "\x1b[31mSLOWER"));
}

TEST_CASE("a gate without cases has not passed") {
  const std::string table = table_of(GateReport{}, {});
  CHECK(says(table, "no case was compared\n"));
  CHECK_FALSE(says(table, "gate passed"));
}

TEST_CASE("a gate in which nothing has a result on both sides has not passed") {
  GateReport report = many_failures(1);
  report.verdicts[0].kind = VerdictKind::kNew;
  report.verdicts[0].fails = false;
  const std::string table = table_of(report, {});
  CHECK(says(table, "no case was compared\n"));
  CHECK_FALSE(says(table, "gate passed"));
}

TEST_CASE("a known failure is shown with its reason and is no failure") {
  GateReport report = many_failures(1);
  report.verdicts[0].fails = false;
  report.verdicts[0].known = Known::kYes;
  report.verdicts[0].known_text = "issue 7 (until 2099-01-31)";
  const std::string table = table_of(report, {});
  CHECK(says(table, "known: issue 7 (until 2099-01-31)"));
  CHECK(says(table, "1 SLOWER (1 known)\ngate passed\n"));
  std::ostringstream junit;
  write_verdict_junit(junit, {}, report);
  CHECK(says(junit.str(), "failures=\"0\" errors=\"0\" skipped=\"1\""));
  CHECK(says(junit.str(), "<skipped message="));
  CHECK(says(summary_of(report), "known: issue 7"));
}

TEST_CASE("a summary shows the worst, folds as many again and counts the rest") {
  const std::string text = summary_of(many_failures(50));
  CHECK(says(text, "### attnbench gate: failed, 50 of 50 cases\n"));
  CHECK(says(text, "<details><summary>30 more</summary>"));
  CHECK(says(text, "`s/case-39/B`"));
  CHECK_FALSE(says(text, "`s/case-40/B`"));
  CHECK(says(text, "10 more are in the result file"));
  CHECK(says(text, "<https://ci/1> <report.html>"));
}

TEST_CASE("the largest summary still is a comment on GitHub") {
  GateReport report = many_failures(1000);
  for (Verdict& verdict : report.verdicts) verdict.rule = std::string(5000, '|');
  CHECK(summary_of(report).size() < 65'536);
}

TEST_CASE("without a baseline the summary is that of the results") {
  Result wrong;
  wrong.id = "s/c/B";
  wrong.status = Status::kIncorrect;
  wrong.reasons = {"off | by <one>"};
  wrong.repro = "attnbench run s";
  std::ostringstream out;
  write_summary(out, {}, {wrong}, nullptr, {});
  CHECK(says(out.str(), "### attnbench: failed\n\n1 incorrect\n"));
  CHECK(says(out.str(), "off \\| by &lt;one>"));
  CHECK(says(out.str(), "```sh\nattnbench run s\n```"));
}

TEST_CASE("verdicts as JSON have their rule and null for a time that is not there") {
  GateReport report = many_failures(1);
  report.verdicts[0].old_us = std::numeric_limits<double>::quiet_NaN();
  std::ostringstream out;
  write_verdict_json(out, {}, report);
  const auto json = nlohmann::json::parse(out.str());
  CHECK(json["passed"] == false);
  CHECK(json["counts"]["SLOWER"] == 1);
  CHECK(json["verdicts"][0]["before_us"].is_null());
  CHECK(json["verdicts"][0]["ratio"].is_null());
  CHECK(json["verdicts"][0]["rule"] == "the rule of s/case-0/B");
}

}  // namespace attnbench
