#include "gate/gate.h"

#include <doctest/doctest.h>

#include <limits>

#include "core/error.h"
#include "gate/gate_cases.h"

namespace attnbench {
namespace {

using gate_testing::file_of;
using gate_testing::result_of;
using gate_testing::samples_around;
using gate_testing::timing_of;
using gate_testing::verdict_of;
using gate_testing::with_status;

void check_verdict(const Verdict& verdict, VerdictKind kind, bool fails, const std::string& rule) {
  CHECK(to_string(verdict.kind) == to_string(kind));
  CHECK(verdict.fails == fails);
  CAPTURE(verdict.rule);
  CHECK(verdict.rule.find(rule) != std::string::npos);
}

void check_refused(const ResultFile& baseline, const ResultFile& results, const std::string& why,
                   const GateOptions& options = {}) {
  try {
    judge_results(baseline, results, options);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kUsage);
    CAPTURE(std::string(error.what()));
    CHECK(std::string(error.what()).find(why) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("a result is the same as itself") {
  check_verdict(verdict_of(result_of("a"), result_of("a")), VerdictKind::kSame, false, "floor");
}

TEST_CASE("a slowdown past the threshold fails and a speed-up passes") {
  check_verdict(verdict_of(result_of("a"), result_of("a", 106)), VerdictKind::kSlower, true,
                "median +6.00% is past the threshold 3%");
  check_verdict(verdict_of(result_of("a"), result_of("a", 94)), VerdictKind::kFaster, false,
                "median -6.00%");
  GateOptions strict;
  strict.fail_on_improvement = true;
  CHECK(verdict_of(result_of("a"), result_of("a", 94), strict).fails);
}

TEST_CASE("errors that are far below what the formats cost do not grow") {
  const auto judge = [](double old_ratio, double new_ratio, double old_nmse, double new_nmse) {
    Result before = result_of("a");
    Result after = result_of("a");
    before.lse_error = after.lse_error = ErrorStats{};
    before.lse_error->err_ratio = old_ratio;
    after.lse_error->err_ratio = new_ratio;
    before.lse_error->nmse = old_nmse;
    after.lse_error->nmse = new_nmse;
    return verdict_of(before, after).kind;
  };
  CHECK(judge(7e-5, 2e-4, 1e-15, 4e-15) == VerdictKind::kSame);
  CHECK(judge(7e-5, 0.02, 1e-15, 1e-15) == VerdictKind::kLessAccurate);
  CHECK(judge(7e-5, 7e-5, 1e-15, 2e-12) == VerdictKind::kLessAccurate);
}

TEST_CASE("threshold and floor keep small gaps from being judged") {
  check_verdict(verdict_of(result_of("a"), result_of("a", 102.5)), VerdictKind::kSame, false,
                "within the threshold 3%");
  check_verdict(verdict_of(result_of("a", 10), result_of("a", 11.5)), VerdictKind::kSame, false,
                "gap 1.5 us is within the floor of 2 us");
  GateOptions options;
  options.threshold = 0.01;
  options.floor_us = 1;
  CHECK(verdict_of(result_of("a"), result_of("a", 102.5), options).fails);
  CHECK(verdict_of(result_of("a", 10), result_of("a", 11.5), options).fails);
}

TEST_CASE("the noise floor of a baseline covers what it covers") {
  ResultFile baseline = file_of({result_of("a"), result_of("b")});
  const ResultFile results = file_of({result_of("a", 108), result_of("b", 108)});
  baseline.run.noise_floor = NoiseFloor{2, 0.02, {{"s/b/B", 0.10}}};
  const GateReport report = judge_results(baseline, results, {});
  REQUIRE(report.verdicts.size() == 2);
  CHECK(report.verdicts[0].id == "s/a/B");
  check_verdict(report.verdicts[0], VerdictKind::kSlower, true, "past the threshold");
  check_verdict(report.verdicts[1], VerdictKind::kSame, false, "within the A/A noise floor 10%");
}

TEST_CASE("a worse status is broken, a better one fixed, and the same failure is not news") {
  const Result passed = result_of("a");
  const Result wrong = with_status(passed, Status::kIncorrect, "output is off");
  const Result error = with_status(passed, Status::kError, "E-CUDA");
  const Result refused = with_status(passed, Status::kUnsupported, "too large");
  check_verdict(verdict_of(passed, wrong), VerdictKind::kBroken, true,
                "status passed -> incorrect: output is off");
  CHECK(verdict_of(passed, error).kind == VerdictKind::kBroken);
  CHECK(verdict_of(passed, refused).kind == VerdictKind::kBroken);
  CHECK(verdict_of(refused, error).kind == VerdictKind::kBroken);
  CHECK(verdict_of(error, wrong).kind == VerdictKind::kBroken);
  check_verdict(verdict_of(wrong, passed), VerdictKind::kFixed, false, "incorrect -> passed");
  check_verdict(verdict_of(wrong, wrong), VerdictKind::kSame, false, "incorrect in both");
  CHECK(verdict_of(refused, refused).kind == VerdictKind::kSame);
  CHECK(verdict_of(wrong, error).kind == VerdictKind::kSame);
}

TEST_CASE("an error that grows past its own threshold is less accurate") {
  const Result before = result_of("a");
  Result after = before;
  after.error->err_ratio = 1.1;
  check_verdict(verdict_of(before, after), VerdictKind::kLessAccurate, true,
                "err_ratio 0.8 -> 1.1");
  after.error->err_ratio = 0.9;
  CHECK(verdict_of(before, after).kind == VerdictKind::kSame);
  after.error->nmse = 2e-6;
  check_verdict(verdict_of(before, after), VerdictKind::kLessAccurate, true, "NMSE");
  after.error->nmse = before.error->nmse;
  after.error->err_ratio = std::numeric_limits<double>::quiet_NaN();
  CHECK(verdict_of(before, after).kind == VerdictKind::kSame);
  after.error->err_ratio = 1.1;
  after.timing = timing_of(samples_around(120));
  check_verdict(verdict_of(before, after), VerdictKind::kLessAccurate, true, "also SLOWER");
  GateOptions loose;
  loose.accuracy_threshold = 0.5;
  CHECK(verdict_of(before, after, loose).kind == VerdictKind::kSlower);
}

TEST_CASE("a quantization error that grows is less accurate, as of a worse scale file") {
  Result before = result_of("a");
  before.quantization_error = before.error;
  Result after = before;
  after.quantization_error->nmse = 2 * before.quantization_error->nmse;
  check_verdict(verdict_of(before, after), VerdictKind::kLessAccurate, true, "quantization NMSE");
  after.quantization_error.reset();
  CHECK(verdict_of(before, after).kind == VerdictKind::kSame);
}

TEST_CASE("missing cases fail unless lenient, new ones pass unless they are wrong") {
  const ResultFile two = file_of({result_of("a"), result_of("b")});
  const ResultFile one = file_of({result_of("a")});
  GateReport report = judge_results(two, one, {});
  check_verdict(report.verdicts.front(), VerdictKind::kMissing, true, "not in the results");
  GateOptions lenient;
  lenient.lenient = true;
  CHECK(judge_results(two, one, lenient).passed());
  const ResultFile skipped =
      file_of({result_of("a"), with_status(result_of("b"), Status::kSkipped, "interrupted")});
  CHECK(judge_results(two, skipped, {}).verdicts.front().kind == VerdictKind::kMissing);

  report = judge_results(one, two, {});
  CHECK(report.passed());
  CHECK(report.verdicts.front().kind == VerdictKind::kNew);
  const ResultFile wrong =
      file_of({result_of("a"), with_status(result_of("b"), Status::kIncorrect, "off")});
  CHECK_FALSE(judge_results(one, wrong, {}).passed());
  CHECK_FALSE(judge_results(file_of({}), one, {}).compared_anything());
}

TEST_CASE("results without timing are compared by status and accuracy") {
  Result untimed = result_of("a");
  untimed.timing.reset();
  check_verdict(verdict_of(untimed, untimed), VerdictKind::kSame, false, "not timed");
  check_verdict(verdict_of(untimed, result_of("a")), VerdictKind::kSame, false, "no timing");
  check_verdict(verdict_of(result_of("a"), untimed), VerdictKind::kAmbiguous, false,
                "no timing in the results");
  GateOptions strict;
  strict.fail_on_ambiguous = true;
  CHECK(verdict_of(result_of("a"), untimed, strict).fails);
}

TEST_CASE("unverified results are refused unless lenient") {
  const Result unverified = with_status(result_of("a", 50), Status::kUnverified);
  check_refused(file_of({result_of("a")}), file_of({unverified}), "unverified");
  check_refused(file_of({unverified}), file_of({result_of("a")}), "unverified");
  GateOptions lenient;
  lenient.lenient = true;
  CHECK(verdict_of(result_of("a"), unverified, lenient).kind == VerdictKind::kFaster);
}

TEST_CASE("verdicts come worst first") {
  const ResultFile before = file_of({result_of("same"), result_of("slow"), result_of("slower"),
                                     result_of("fast"), result_of("broken"), result_of("gone")});
  const ResultFile after = file_of({result_of("new"), result_of("same"), result_of("slow", 110),
                                    result_of("slower", 150), result_of("fast", 50),
                                    with_status(result_of("broken"), Status::kError, "E-CUDA")});
  std::vector<std::string> kinds;
  const GateReport report = judge_results(before, after, {});
  for (const Verdict& verdict : report.verdicts) kinds.emplace_back(to_string(verdict.kind));
  CHECK(kinds ==
        std::vector<std::string>{"BROKEN", "SLOWER", "SLOWER", "MISSING", "NEW", "FASTER", "SAME"});
  CHECK(report.verdicts[1].id == "s/slower/B");
  CHECK(report.failures() == 4);
  CHECK(summary_line(report) == "1 BROKEN, 2 SLOWER, 1 MISSING, 1 NEW, 1 FASTER, 1 SAME");
}

}  // namespace attnbench
