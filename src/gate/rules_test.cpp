#include "gate/rules.h"

#include <doctest/doctest.h>

#include "core/error.h"
#include "gate/gate_cases.h"

namespace attnbench {
namespace {

using gate_testing::file_of;
using gate_testing::result_of;
using gate_testing::verdict_of;
using gate_testing::with_status;

Value entry(std::vector<std::pair<std::string, Value>> members) {
  Value value = Value::map();
  for (auto& [key, member] : members) value.at_or_add(key) = std::move(member);
  return value;
}
Value list_of(std::vector<Value> items) {
  Value value = Value::list();
  value.items = std::move(items);
  return value;
}

std::vector<KnownFailure> known(const std::string& id, const std::string& expires) {
  return known_failures(list_of({entry({{"id", Value::of(id)},
                                        {"reason", Value::of("issue 12")},
                                        {"expires", Value::of(expires)}})}));
}

}  // namespace

TEST_CASE("a known failure is visible and passes until it expires") {
  GateOptions options;
  options.today = "2026-06-15";
  const Result wrong = with_status(result_of("a"), Status::kIncorrect, "off");
  for (const auto& [expires, state] :
       {std::pair{"2026-06-15", Known::kYes}, std::pair{"2026-06-14", Known::kExpired}}) {
    options.known = known("^s/a/", expires);
    const Verdict verdict = verdict_of(result_of("a"), wrong, options);
    CHECK(verdict.kind == VerdictKind::kBroken);
    CHECK(verdict.known == state);
    CHECK(verdict.fails == (state == Known::kExpired));
    CHECK(verdict.known_text.find("issue 12") != std::string::npos);
  }
  options.known = known("nothing", "2026-12-31");
  const GateReport report = judge_results(file_of({result_of("a")}), file_of({wrong}), options);
  CHECK_FALSE(report.passed());
  REQUIRE(report.notices.size() == 1);
  CHECK(report.notices[0].find("'nothing' matches nothing that fails") != std::string::npos);
}

TEST_CASE("thresholds go by pattern, later ones win") {
  GateOptions options;
  options.rules = threshold_rules(
      list_of({entry({{"id", Value::of("^s/")}, {"threshold", Value::of("10%")}}),
               entry({{"id", Value::of("/b/")},
                      {"threshold", Value::of(0.5)},
                      {"floor_us", Value::of(80.0)}}),
               entry({{"id", Value::of("/c/")}, {"floor_us", Value::of(std::int64_t{200})}})}));
  const ResultFile before = file_of({result_of("a"), result_of("b"), result_of("c")});
  const auto kinds = [&](double median_us) {
    std::string text;
    const ResultFile after =
        file_of({result_of("a", median_us), result_of("b", median_us), result_of("c", median_us)});
    for (const Verdict& verdict : judge_results(before, after, options).verdicts) {
      if (verdict.fails) text += verdict.id.substr(2, 1);
    }
    return text;
  };
  CHECK(kinds(109).empty());
  CHECK(kinds(112) == "a");
  CHECK(kinds(170) == "a");
  CHECK(kinds(190) == "ab");
}

TEST_CASE("thresholds are shares however they are written") {
  CHECK(parse_threshold("0.03", "x") == doctest::Approx(0.03));
  CHECK(parse_threshold("3%", "x") == doctest::Approx(0.03));
  CHECK(parse_threshold("3", "x") == doctest::Approx(0.03));
  CHECK(parse_threshold("0", "x") == 0);
  for (const char* bad : {"", "-1", "a", "3%%", "nan", "inf"}) {
    CHECK_THROWS_AS(parse_threshold(bad, "x"), Error);
  }
}

TEST_CASE("the files of a gate are checked key by key") {
  const auto refused = [](const Value& list) { CHECK_THROWS_AS(known_failures(list), Error); };
  refused(Value::map());
  refused(list_of({Value::of("a")}));
  refused(list_of({entry({{"id", Value::of("a")}, {"reason", Value::of("r")}})}));
  CHECK_THROWS_AS(known("a", "2026-02-30"), Error);
  CHECK_THROWS_AS(known("a", "soon"), Error);
  CHECK_THROWS_AS(known("(", "2026-02-20"), Error);
  CHECK_THROWS_AS(
      threshold_rules(list_of({entry({{"id", Value::of("a")}, {"treshold", Value::of(0.1)}})})),
      Error);
  CHECK_THROWS_AS(
      threshold_rules(list_of({entry({{"id", Value::of("a")}, {"threshold", Value::of(-0.1)}})})),
      Error);
}

}  // namespace attnbench
