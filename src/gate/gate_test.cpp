#include "gate/gate.h"

#include <doctest/doctest.h>

#include <functional>
#include <limits>

#include "core/error.h"
#include "gate/gate_cases.h"

namespace attnbench::gate_test {
namespace {

using gate_testing::at_clock;
using gate_testing::file_of;
using gate_testing::result_of;
using gate_testing::samples_around;
using gate_testing::set_nmse;
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
    before.lse_error = after.lse_error = before.error;
    before.lse_error->err_ratio = old_ratio;
    after.lse_error->err_ratio = new_ratio;
    set_nmse(before.lse_error, old_nmse);
    set_nmse(after.lse_error, new_nmse);
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
  set_nmse(after.error, 2e-6);
  check_verdict(verdict_of(before, after), VerdictKind::kLessAccurate, true, "NMSE");
  set_nmse(after.error, before.error->nmse);
  after.error->err_ratio = std::numeric_limits<double>::quiet_NaN();
  check_verdict(verdict_of(before, after), VerdictKind::kLessChecked, true,
                "error.err_ratio is missing");
  CHECK(verdict_of(after, before).kind == VerdictKind::kSame);
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
  set_nmse(after.quantization_error, 2 * before.quantization_error->nmse);
  check_verdict(verdict_of(before, after), VerdictKind::kLessAccurate, true, "quantization NMSE");
  after.quantization_error.reset();
  check_verdict(verdict_of(before, after), VerdictKind::kLessChecked, true,
                "quantization_error is missing in the results");
  CHECK(verdict_of(after, before).kind == VerdictKind::kSame);
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
}

TEST_CASE("a time that only the baseline has is missing, unless lenient") {
  Result untimed = result_of("a");
  untimed.timing.reset();
  check_verdict(verdict_of(result_of("a"), untimed), VerdictKind::kMissing, true,
                "timed in the baseline, no timing in the results");
  GateOptions lenient;
  lenient.lenient = true;
  check_verdict(verdict_of(result_of("a"), untimed, lenient), VerdictKind::kAmbiguous, false,
                "no timing in the results");
  lenient.fail_on_ambiguous = true;
  CHECK(verdict_of(result_of("a"), untimed, lenient).fails);
}

TEST_CASE("a time of which every sample was spent waiting is no time, unless lenient") {
  Result waiting = result_of("a");
  const auto wait = [&](double share) {
    waiting.timing->waits_us.clear();
    for (const double us : waiting.timing->samples_us)
      waiting.timing->waits_us.push_back(share * us);
    waiting.timing->cpu_wait = share;
  };
  wait(0.9);
  check_verdict(verdict_of(result_of("a"), waiting), VerdictKind::kMissing, true,
                "no time in the results: waits_us are at least 90% of every sample");
  check_verdict(verdict_of(waiting, result_of("a")), VerdictKind::kMissing, true,
                "no time in the baseline");
  GateOptions lenient;
  lenient.lenient = true;
  CHECK(verdict_of(result_of("a"), waiting, lenient).kind == VerdictKind::kAmbiguous);
  waiting.timing->waits_us[3] = 0;
  CHECK(verdict_of(result_of("a"), waiting).kind == VerdictKind::kSame);
  wait(0.5);
  CHECK(verdict_of(result_of("a"), waiting).kind == VerdictKind::kSame);
}

TEST_CASE("a time that beats the device is broken, and no news where it was so before") {
  const Result beyond = with_status(result_of("a", 1), Status::kImplausible, "faster than light");
  check_verdict(verdict_of(result_of("a"), beyond), VerdictKind::kBroken, true,
                "status passed -> implausible: faster than light");
  check_verdict(verdict_of(beyond, beyond), VerdictKind::kSame, false, "implausible in both");
  check_verdict(verdict_of(beyond, result_of("a")), VerdictKind::kFixed, false, "-> passed");
  CHECK_FALSE(judge_results(file_of({}), file_of({beyond}), {}).passed());
}

TEST_CASE("files that contradict themselves are refused on either side, lenient or not") {
  Result edited = result_of("a");
  edited.timing->median_us = 50;
  GateOptions loose;
  loose.lenient = loose.ignore_environment = true;
  for (const GateOptions& options : {GateOptions{}, loose}) {
    for (const auto& [before, after] :
         {std::pair{edited, result_of("a")}, std::pair{result_of("a"), edited}}) {
      CHECK_THROWS_WITH_AS(verdict_of(before, after, options),
                           doctest::Contains("timing.median_us is 50, but samples_us give 100"),
                           Error);
    }
  }
}

TEST_CASE("limits that are another rule's, or wide, are less that was compared") {
  Result full = result_of("a");
  full.error->row_error = 3e-3;
  full.error->row_limit = 6e-3;
  full.error->rule = "semantics 14.2 rows, output bfloat16, P bfloat16";
  full.lse_error = full.probe_error = full.error;
  const auto expect = [&](const std::string& words, const std::function<void(Result&)>& change) {
    Result less = full;
    change(less);
    check_verdict(verdict_of(full, less), VerdictKind::kLessChecked, true, words);
  };
  expect("error.row_limit: 0.006 in the baseline, 100 in the results",
         [](Result& r) { r.error->row_limit = 100; });
  expect("lse_error.row_limit: 0.006", [](Result& r) { r.lse_error->row_limit = 0.02; });
  expect("error.rule: 'semantics 14.2 rows, output bfloat16, P bfloat16' in the baseline, 'none'",
         [](Result& r) { r.error->rule = "none"; });
  expect("probe_error.rule: ", [](Result& r) { r.probe_error->rule.clear(); });
  // Another row is the nearest to its limit.
  Result other = full;
  other.error->row_limit = 0.011;
  CHECK(verdict_of(full, other).kind == VerdictKind::kSame);
  // A baseline of before rows had limits, and one that names no rule.
  Result old = full;
  old.error->row_error = old.error->row_limit = std::numeric_limits<double>::quiet_NaN();
  old.error->rule = "semantics 14.2 bfloat16";
  CHECK(verdict_of(old, full).kind == VerdictKind::kSame);
  old = full;
  old.error->rule.clear();
  CHECK(verdict_of(old, full).kind == VerdictKind::kSame);
}

TEST_CASE("a time that was taken in another way is not compared") {
  Result cold = result_of("a");
  cold.timing->l2 = "cold";
  cold.timing->mode = "stream";
  cold.timing->pace = "cool";
  Result other = cold;
  other.timing->l2 = "warm";
  check_verdict(verdict_of(cold, other), VerdictKind::kLessChecked, true,
                "timing.l2: 'cold' in the baseline, 'warm' in the results");
  check_verdict(verdict_of(other, cold), VerdictKind::kAmbiguous, false, "not compared");
  GateOptions anyway;
  anyway.ignore_environment = true;
  CHECK(verdict_of(cold, other, anyway).kind == VerdictKind::kSame);
  other = cold;
  other.timing->mode = "graph";
  check_verdict(verdict_of(cold, other), VerdictKind::kLessChecked, true, "timing.mode: 'stream'");
  other = cold;
  other.timing->pace = "sustained";
  check_verdict(verdict_of(cold, other), VerdictKind::kLessChecked, true, "timing.pace: 'cool'");
  other.timing->l2 = other.timing->mode = other.timing->pace = "";
  CHECK(verdict_of(other, cold).kind == VerdictKind::kSame);  // of an earlier version
}

TEST_CASE("less that was compared than in the baseline fails, whatever the threshold") {
  Result full = result_of("a");
  full.error->total_rows = 1000;
  full.error->screened_rows = 1000;
  full.error->row_error = 1e-3;
  full.error->row_limit = 4e-3;
  full.lse_error = full.probe_error = full.error;
  full.blind_to = {"window +1"};
  full.batch_invariance.emplace();
  full.quantization_error = full.error;
  for (int rank = 0; rank < 2; ++rank) full.rank_errors.push_back({rank, *full.error, *full.error});
  full = at_clock(full, 1500);
  full.throughput.emplace().by_name["physics_pct"] = 3;
  const auto expect = [&](const char* words, const std::function<void(Result&)>& change) {
    Result less = full;
    change(less);
    GateOptions loose;
    loose.accuracy_threshold = 1e9;
    loose.lenient = true;
    check_verdict(verdict_of(full, less, loose), VerdictKind::kLessChecked, true, words);
  };
  const double kNaN = std::numeric_limits<double>::quiet_NaN();
  expect("error.checked_rows: 64 in the baseline, 57 in the results",
         [](Result& r) { r.error->checked_rows = 57; });
  expect("error.total_rows: 1000 in the baseline, 999",
         [](Result& r) { r.error->total_rows = r.error->screened_rows = 999; });
  expect("error.screened_rows: 1000 in the baseline, 64",
         [](Result& r) { r.error->screened_rows = 64; });
  full.timing->checked_samples = {{3, 1e-3, 4e-3}};
  expect("timing.checked_samples is missing", [](Result& r) { r.timing->checked_samples.clear(); });
  expect("error.row_limit is missing",
         [&](Result& r) { r.error->row_limit = r.error->row_error = kNaN; });
  expect("lse_error is missing", [](Result& r) { r.lse_error.reset(); });
  expect("probe_error is missing", [](Result& r) { r.probe_error.reset(); });
  expect("rank_errors: 2 ranks in the baseline, 1 in the results",
         [](Result& r) { r.rank_errors.pop_back(); });
  expect("rank_errors[1].error.checked_rows: 64 in the baseline, 3",
         [](Result& r) { r.rank_errors[1].error.checked_rows = 3; });
  expect("rank_errors[0].lse_error.row_limit is missing", [&](Result& r) {
    r.rank_errors[0].lse_error.row_limit = r.rank_errors[0].lse_error.row_error = kNaN;
  });
  expect("quantization_error is missing", [](Result& r) { r.quantization_error.reset(); });
  expect("quantization_error.err_ratio is missing",
         [&](Result& r) { r.quantization_error->err_ratio = kNaN; });
  expect("error.err_ratio is missing", [&](Result& r) { r.error->err_ratio = kNaN; });
  expect("error.nmse is missing", [&](Result& r) { r.error->nmse = kNaN; });
  expect("timing.samples_sm_mhz is missing", [&](Result& r) {
    r.timing->samples_sm_mhz.clear();
    r.timing->cycles = kNaN;
  });
  expect("batch_invariance is missing", [](Result& r) { r.batch_invariance.reset(); });
  full.device = "cuda:0";
  expect("throughput is missing", [](Result& r) { r.throughput.reset(); });
  expect("throughput.physics_pct is missing", [](Result& r) { r.throughput->by_name.clear(); });
  full.device = "cpu";  // where it takes a quiet moment
  Result unknown = full;
  unknown.throughput->by_name.clear();
  CHECK(verdict_of(full, unknown).kind == VerdictKind::kSame);
  expect("blind_to is missing", [](Result& r) { r.blind_to.reset(); });
  expect("blind_to: 'last key dropped' in the results, not in the baseline",
         [](Result& r) { r.blind_to->push_back("last key dropped"); });
  Result more = full;
  more.blind_to->clear();
  more.error->checked_rows = 70;
  CHECK(verdict_of(full, more).kind == VerdictKind::kSame);
  // Beside the sample those rows are checked that screening found odd: a few more or less.
  CHECK(verdict_of(more, full).kind == VerdictKind::kLessChecked);  // blind_to grew
  Result few = full;
  few.error->checked_rows = 60;
  CHECK(verdict_of(full, few).kind == VerdictKind::kSame);
  // So do the rows of a part that is drawn.
  Result part = full, other_part = full;
  part.error->screened_rows = 900;
  other_part.error->screened_rows = 890;
  CHECK(verdict_of(part, other_part).kind == VerdictKind::kSame);
  other_part.error->screened_rows = 700;
  CHECK(verdict_of(part, other_part).kind == VerdictKind::kLessChecked);
  few.error->total_rows = few.error->screened_rows = full.error->checked_rows;
  full.error->total_rows = full.error->screened_rows = full.error->checked_rows;
  CHECK(verdict_of(full, few).kind == VerdictKind::kLessChecked);  // all of them, and now not
}

TEST_CASE("a row that comes nearer to its limit is less accurate") {
  Result before = result_of("a");
  before.error->row_error = 2e-3;
  before.error->row_limit = 4e-3;
  Result after = before;
  after.error->row_error = 2.6e-3;
  check_verdict(verdict_of(before, after), VerdictKind::kLessAccurate, true,
                "row_error / row_limit 0.5 -> 0.65 grew");
  after.error->row_error = 2.4e-3;
  CHECK(verdict_of(before, after).kind == VerdictKind::kSame);
  // Far below the limit nothing is told apart.
  before.error->row_error = 1e-5;
  after.error->row_error = 1e-3;
  CHECK(verdict_of(before, after).kind == VerdictKind::kSame);
}

TEST_CASE("errors of other rows are compared by what does not depend on the rows") {
  Result before = result_of("a");
  before.error->total_rows = 10'000;
  before.error->row_error = 2e-3;
  before.error->row_limit = 4e-3;
  before.sample_seed = 1;
  Result after = before;
  // The same rows: the largest error is that of the same element.
  after.error->err_ratio = 1.2;
  CHECK(verdict_of(before, after).kind == VerdictKind::kLessAccurate);
  after.sample_seed = 2;
  CHECK(verdict_of(before, after).kind == VerdictKind::kSame);
  // Of 64 rows the NMSE may be 1.53 times as large by chance, and 1.25 of that is the threshold.
  set_nmse(after.error, 1.8e-6);
  CHECK(verdict_of(before, after).kind == VerdictKind::kSame);
  set_nmse(after.error, 2e-6);
  check_verdict(verdict_of(before, after), VerdictKind::kLessAccurate, true,
                "NMSE 1e-06 -> 2e-06 grew");
  set_nmse(after.error, 1e-6);
  after.error->row_error = 2.6e-3;
  CHECK(verdict_of(before, after).kind == VerdictKind::kLessAccurate);
  // All rows are the same rows, whatever the seed.
  before.error->checked_rows = after.error->checked_rows = 10'000;
  after.error->row_error = 2e-3;
  CHECK(verdict_of(before, after).kind == VerdictKind::kLessAccurate);
  // Without limits of rows the largest error has to do.
  after.error->checked_rows = before.error->checked_rows = 64;
  before.error->row_limit = before.error->row_error = std::numeric_limits<double>::quiet_NaN();
  after.error->row_limit = after.error->row_error = before.error->row_limit;
  after.error->err_ratio = 1.6;
  CHECK(verdict_of(before, after).kind == VerdictKind::kLessAccurate);
}

TEST_CASE("where the clocks of a device differ cycles are judged beside the time") {
  const auto judge = [](double before_mhz, double after_us, double after_mhz,
                        const char* bound = "memory") {
    const Result before = at_clock(result_of("a"), before_mhz);
    Result after = at_clock(result_of("a", after_us), after_mhz);
    after.throughput.emplace().bound = bound;
    return verdict_of(before, after);
  };
  // 10 % slower at a clock that is 10 % lower: the clock explains it.
  check_verdict(judge(1980, 110, 1800), VerdictKind::kAmbiguous, false,
                "SM clock 1980 -> 1800 MHz");
  check_verdict(judge(1980, 130, 1800), VerdictKind::kSlower, true, "in cycles: median +18.18%");
  // The same time at a clock that is 10 % higher: arithmetic got slower, memory need not have.
  check_verdict(judge(1800, 100, 1980, "compute"), VerdictKind::kSlower, true, "in cycles");
  check_verdict(judge(1800, 100, 1980), VerdictKind::kAmbiguous, false, "in cycles");
  check_verdict(judge(1800, 80, 1980), VerdictKind::kFaster, false, "in cycles");
  // Within 1 % nothing is said of clocks.
  const Verdict same = judge(1980, 110, 1975);
  CHECK(same.kind == VerdictKind::kSlower);
  CHECK(same.rule.find("clock") == std::string::npos);
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

}  // namespace attnbench::gate_test
