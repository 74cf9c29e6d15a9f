#include "gate/gate.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "gate/baseline.h"
#include "gate/foreign.h"
#include "gate/gate_testing.h"
#include "gate/judge_time.h"
#include "gate/statistics.h"

namespace attnbench {
namespace {

using gate_testing::timing_of;

/// Ten samples around `median_us`, half a percent wide.
std::vector<double> samples_around(double median_us) {
  std::vector<double> samples;
  for (int i = -5; i <= 4; ++i) samples.push_back(median_us * (1 + 0.0005 * (i + 0.5)));
  return samples;
}

Result result_of(const std::string& name, double median_us = 100) {
  Result result;
  result.id = "s/" + name + "/B";
  result.scenario = "s";
  result.case_name = name;
  result.backend = "B";
  result.device = "cpu";
  result.status = Status::kPassed;
  result.problem_json =
      R"({"attention":{"head_size":64},"timing":{"samples":20,"l2":"cold"},"description":"d"})";
  result.timing = timing_of(samples_around(median_us));
  result.error = ErrorStats{};
  result.error->err_ratio = 0.8;
  result.error->nmse = 1e-6;
  return result;
}

Result with_status(Result result, Status status, const std::string& reason = "") {
  result.status = status;
  if (status != Status::kPassed && status != Status::kUnverified) {
    result.timing.reset();
    result.reasons = {reason};
  }
  return result;
}

ResultFile file_of(std::vector<Result> results) {
  ResultFile file;
  file.path = "file.json";
  Environment& environment = file.run.environment;
  environment.hostname = "host";
  environment.cpu = {"CPU", 4, "avx2"};
  environment.compiler = "g++ 13";
  environment.fingerprint = "f00";
  file.results = std::move(results);
  return file;
}

Verdict verdict_of(const Result& before, const Result& after, const GateOptions& options = {}) {
  const GateReport report = judge_results(file_of({before}), file_of({after}), options);
  REQUIRE(report.verdicts.size() == 1);
  return report.verdicts.front();
}

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

namespace {

/// A case that reads a file of scales.
Result scaled(const std::string& path, const std::string& hash, double nmse = 1e-6) {
  Result result = result_of("a");
  result.problem_json = fmt::format(
      R"({{"kv_cache":{{"scale_file":{0},"k_scale":[0.5]}},"mm_encoder":{{"fp8_scale_path":{0}}}}})",
      path);
  if (!hash.empty()) {
    result.file_hashes = {{"kv_cache.scale_file", hash}, {"mm_encoder.fp8_scale_path", hash}};
  }
  result.quantization_error = ErrorStats{};
  result.quantization_error->nmse = nmse;
  return result;
}

}  // namespace

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

TEST_CASE("what is in a file of scales is compared as accuracy, what it is called not at all") {
  const auto judge = [](const Result& before, const Result& after) {
    return judge_results(file_of({before}), file_of({after}), {});
  };
  const GateReport moved = judge(scaled("\"a.json\"", "1"), scaled("\"/b/a.json\"", "1"));
  CHECK(moved.passed());
  CHECK(moved.notices.empty());
  const GateReport other = judge(scaled("\"a.json\"", "1"), scaled("\"b.json\"", "2", 1.1e-6));
  CHECK(other.passed());
  REQUIRE(other.notices.size() == 1);
  CHECK(other.notices[0] ==
        "mm_encoder.fp8_scale_path: 'a.json' in the baseline, 'b.json' in the results (1 case)");
  const GateReport worse = judge(scaled("\"a.json\"", "1"), scaled("\"a.json\"", "2", 2e-6));
  CHECK(worse.verdicts.at(0).kind == VerdictKind::kLessAccurate);
  CHECK(worse.notices.at(0) ==
        "mm_encoder.fp8_scale_path: 'a.json' holds other scales in the results (1 case)");
  // Results of older versions know the path alone.
  CHECK(judge(scaled("\"a.json\"", ""), scaled("\"b.json\"", "2")).notices.size() == 1);
  CHECK(judge(scaled("\"a.json\"", ""), scaled("\"a.json\"", "2")).notices.empty());
  // With scales and without is not the same work.
  CHECK_THROWS_WITH_AS(judge(scaled("null", ""), scaled("\"a.json\"", "1")),
                       doctest::Contains("scale"), Error);
}

TEST_CASE("runs with different scales are not pooled") {
  ResultFile first = file_of({scaled("\"a.json\"", "1")});
  ResultFile second = file_of({scaled("\"b.json\"", "1")});
  CHECK(pool_baselines({first, second}, 2, false).results.size() == 1);
  second = file_of({scaled("\"a.json\"", "2")});
  CHECK_THROWS_WITH_AS(pool_baselines({first, second}, 2, false),
                       doctest::Contains("holds other scales"), Error);
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

namespace {

/// Thirty samples around a median, of which the last `held_up` waited for their cores: `wait_us` by
/// the thread that waited longest, and as long in the sample.
Timing held_up_timing(double median_us, std::size_t held_up, double wait_us) {
  std::vector<double> samples;
  for (int i = 0; i < 3; ++i) {
    for (const double sample : samples_around(median_us)) samples.push_back(sample);
  }
  std::vector<double> waits(samples.size(), 0);
  REQUIRE(held_up <= samples.size());
  for (std::size_t i = samples.size() - held_up; i < samples.size(); ++i) {
    samples[i] += wait_us;
    waits[i] = wait_us;
  }
  Timing timing = timing_of(std::move(samples));
  timing.waits_us = std::move(waits);
  return timing;
}

}  // namespace

TEST_CASE("samples that other programs held up are left out where enough others are left") {
  const Timing before = held_up_timing(100, 0, 0);
  const std::size_t all = before.samples_us.size();
  const Timing same = held_up_timing(100, all - 5, 300);
  REQUIRE(same.median_us > 130);
  TimeVerdict verdict = judge_time(before, same, {});
  CHECK(verdict.kind == VerdictKind::kSame);
  CHECK(verdict.rule.find(fmt::format("{0} of {0} and 5 of {0} samples", all)) !=
        std::string::npos);
  CHECK(judge_time(same, before, {}).kind == VerdictKind::kSame);
  const Timing slower = held_up_timing(106, all - 5, 300);
  CHECK(judge_time(before, slower, {}).kind == VerdictKind::kSlower);
  CHECK(judge_time(slower, before, {}).kind == VerdictKind::kFaster);
  // A slowdown does not hide behind a baseline that was held up.
  CHECK(judge_time(same, held_up_timing(106, 0, 0), {}).kind == VerdictKind::kSlower);
}

TEST_CASE("a wait that is too short to make a gap that counts does not hold a sample up") {
  const Timing before = held_up_timing(100, 0, 0);
  const Timing after = held_up_timing(110, before.samples_us.size(), 1.05);
  const TimeVerdict verdict = judge_time(before, after, {});
  CHECK(verdict.kind == VerdictKind::kSlower);
  CHECK(verdict.rule.find("held up") == std::string::npos);
}

TEST_CASE("with too few quiet samples a gap that waiting can explain is ambiguous") {
  const Timing before = held_up_timing(100, 0, 0);
  const std::size_t all = before.samples_us.size();
  const auto judge = [&](double median_us, double wait_us) {
    return judge_time(before, held_up_timing(median_us, all - 2, wait_us), {});
  };
  const TimeVerdict verdict = judge(100, 20);
  CHECK(verdict.kind == VerdictKind::kAmbiguous);
  CHECK(verdict.rule.find(fmt::format("only {0} of {0} and 2 of {0} samples were not held up",
                                      all)) != std::string::npos);
  CHECK(judge(122, 20).kind == VerdictKind::kAmbiguous);  // another thread may have waited too
  CHECK(judge(130, 20).kind == VerdictKind::kSlower);
  CHECK(judge(100, 1900).kind == VerdictKind::kAmbiguous);
  CHECK(judge(300, 1900).kind == VerdictKind::kSlower);  // a twentieth is surely work
  const Timing slow = held_up_timing(130, all - 2, 20);
  CHECK(judge_time(slow, before, {}).kind == VerdictKind::kFaster);
  // The faster one waited, and is faster all the same.
  CHECK(judge_time(held_up_timing(80, all - 2, 15), held_up_timing(120, 0, 0), {}).kind ==
        VerdictKind::kSlower);
}

TEST_CASE("what other programs did to a run is no noise floor, where quiet samples tell") {
  std::vector<std::vector<Result>> runs(2, {result_of("a")});
  const std::size_t all = held_up_timing(100, 0, 0).samples_us.size();
  runs[0][0].timing = held_up_timing(100, 0, 0);
  runs[1][0].timing = held_up_timing(104, all - 5, 300);
  CHECK(measure_noise_floor(runs, 2).all_cases == doctest::Approx(0.04).epsilon(0.05));
  runs[1][0].timing = held_up_timing(104, all - 4, 300);
  CHECK(measure_noise_floor(runs, 2).all_cases > 3);
}

TEST_CASE("where it is not known how long the threads waited all samples count") {
  const Timing before = held_up_timing(100, 0, 0);
  Timing after = held_up_timing(120, before.samples_us.size(), 50);
  CHECK(judge_time(before, after, {}).kind == VerdictKind::kAmbiguous);
  after.waits_us.clear();
  CHECK(judge_time(before, after, {}).kind == VerdictKind::kSlower);
  after.waits_us = {50};  // not of these samples
  CHECK(judge_time(before, after, {}).kind == VerdictKind::kSlower);
}

TEST_CASE("several runs together know how long they waited when each of them does") {
  std::vector<std::vector<Result>> runs(3, {result_of("a")});
  CHECK(std::isnan(pool_runs(runs)[0].timing->cpu_wait));
  const std::size_t all = runs[0][0].timing->samples_us.size();
  for (std::size_t i = 0; i < 3; ++i) {
    Timing& timing = *runs[i][0].timing;
    timing.waits_us.assign(all, static_cast<double>(i));
    timing.cpu_wait = 0.25 * static_cast<double>(i);
  }
  const Result pooled = pool_runs(runs)[0];
  CHECK(pooled.timing->cpu_wait == 0.5);
  REQUIRE(pooled.timing->waits_us.size() == 3 * all);
  CHECK(pooled.timing->waits_us.front() == 0);
  CHECK(pooled.timing->waits_us.back() == 2);
  runs[1][0].timing->waits_us.clear();
  CHECK(pool_runs(runs)[0].timing->waits_us.empty());
}

TEST_CASE("samples of several runs are the rounds of each, one after another") {
  std::vector<std::vector<Result>> runs(3, {result_of("a")});
  const auto all = static_cast<std::int64_t>(runs[0][0].timing->samples_us.size());
  runs[1][0].timing->rounds = {1, all - 1};
  CHECK(pool_runs(runs)[0].timing->rounds == std::vector<std::int64_t>{all, 1, all - 1, all});
  CHECK(pool_runs({runs[0]})[0].timing->rounds.empty());
}

TEST_CASE("turns are another way to take samples, not another case") {
  Result before = result_of("a");
  Result after = before;
  before.problem_json = R"({"timing":{"l2":"cold"}})";
  after.problem_json = R"({"timing":{"l2":"cold","order":"alternate","rounds":5}})";
  CHECK(problem_difference(before, after).empty());
  after.problem_json = R"({"timing":{"l2":"warm","order":"alternate","rounds":5}})";
  CHECK_FALSE(problem_difference(before, after).empty());
}

TEST_CASE("a gap that noise can explain is ambiguous, by the rule that says so") {
  const auto judge = [](std::vector<double> before, std::vector<double> after) {
    return judge_time(timing_of(std::move(before)), timing_of(std::move(after)), {});
  };
  std::vector<double> wide{80, 85, 90, 95, 100, 100, 105, 110, 115, 120};
  std::vector<double> wide_slower = wide;
  for (double& sample : wide_slower) sample *= 1.1;
  TimeVerdict verdict = judge(wide, wide_slower);
  CHECK(verdict.kind == VerdictKind::kAmbiguous);
  CHECK(verdict.rule.find("what chance gives") != std::string::npos);

  const std::vector<double> steady(10, 100);
  std::vector<double> outlier(10, 110);
  outlier.back() = 500;
  verdict = judge(steady, outlier);
  CHECK(verdict.kind == VerdictKind::kAmbiguous);
  CHECK(verdict.rule.find("stored noise") != std::string::npos);

  const std::vector<double> two_clocks{100, 100, 100, 100, 100, 100, 110, 110, 110, 110,
                                       100, 100, 100, 100, 100, 100, 110, 110, 110, 110};
  std::vector<double> other_mix = two_clocks;
  for (double& sample : other_mix) sample = sample > 100 ? 100 : 110;
  verdict = judge(two_clocks, other_mix);
  CHECK(verdict.kind == VerdictKind::kAmbiguous);

  verdict = judge({100}, {200});
  CHECK(verdict.kind == VerdictKind::kAmbiguous);
  CHECK(verdict.rule.find("single sample") != std::string::npos);
  CHECK(judge({100, 101, 102}, {200, 202, 204}).kind == VerdictKind::kSlower);
}

TEST_CASE("quartile intervals that overlap are ambiguous") {
  Timing before = timing_of(samples_around(100));
  Timing after = timing_of(samples_around(110));
  before.q3_us = 111;
  before.samples_us.clear();
  before.noise = 0.001;
  const TimeVerdict verdict = judge_time(before, after, {});
  CHECK(verdict.kind == VerdictKind::kAmbiguous);
  CHECK(verdict.rule.find("quartile intervals overlap") != std::string::npos);
}

TEST_CASE("a few samples of the wrong clock keep the bootstrap interval at 1") {
  std::vector<double> before(20, 100);
  std::vector<double> after(20, 110);
  const auto judge = [&] {
    TimeLimits limits;
    limits.noise_floor = 0;
    return judge_time(timing_of(before), timing_of(after), limits);
  };
  CHECK(judge().kind == VerdictKind::kSlower);
  for (int i = 0; i < 4; ++i) before[static_cast<std::size_t>(i)] = 110;
  CHECK(judge().kind == VerdictKind::kAmbiguous);
  CHECK(judge().rule.find("bootstrap interval") != std::string::npos);
}

TEST_CASE("the verdict turns around when the timings change places") {
  for (const double slow : {100.5, 103.1, 104.0, 120.0}) {
    const Timing a = timing_of(samples_around(100));
    const Timing b = timing_of(samples_around(slow));
    const VerdictKind forth = judge_time(a, b, {}).kind;
    const VerdictKind back = judge_time(b, a, {}).kind;
    CHECK((forth == VerdictKind::kSlower) == (back == VerdictKind::kFaster));
    CHECK((forth == VerdictKind::kSame) == (back == VerdictKind::kSame));
  }
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

TEST_CASE("a baseline of another machine or of other cases is refused") {
  const ResultFile here = file_of({result_of("a")});
  const auto changed = [&](auto change) {
    ResultFile file = here;
    change(file);
    return file;
  };
  check_refused(changed([](ResultFile& f) { f.run.environment.cpu.model = "Other"; }), here,
                "CPU: Other in the baseline, CPU in the results");
  check_refused(changed([](ResultFile& f) { f.run.environment.cpu.cores = 8; }), here, "CPU cores");
  check_refused(changed([](ResultFile& f) { f.run.environment.fingerprint = "f01"; }), here,
                "fingerprint");
  check_refused(changed([](ResultFile& f) { f.results[0].device = "cuda:0"; }), here, "device");
  check_refused(changed([](ResultFile& f) {
                  f.results[0].problem_json =
                      R"({"attention":{"head_size":128},"timing":{"l2":"cold"}})";
                }),
                here, "s/a/B: attention.head_size: 128 in the baseline, 64 in the results");
  GateOptions anyway;
  anyway.ignore_environment = true;
  CHECK(judge_results(changed([](ResultFile& f) { f.run.environment.cpu.model = "Other"; }), here,
                      anyway)
            .passed());
  const ResultFile longer = changed([](ResultFile& f) {
    f.results[0].problem_json =
        R"({"attention":{"head_size":64},"timing":{"samples":90,"l2":"cold"},"description":"e"})";
    f.run.environment.hostname = "other host";
  });
  CHECK(judge_results(longer, here, {}).passed());
}

TEST_CASE("GPU baselines are refused for GPU, driver major and clocks that do not meet") {
  ResultFile here = file_of({result_of("a")});
  here.results[0].device = "cuda:0";
  here.device = {{"name", "H200"}, {"sm", "90"}, {"num_sms", "132"}, {"driver", "570.86"}};
  here.sm_mhz_min = 1700;
  here.sm_mhz_max = 1980;
  ResultFile other = here;
  other.run.environment.cpu.model = "other host CPU";
  CHECK(foreign_reasons(other, here).empty());
  other.device["driver"] = "570.124";
  other.run.environment.fingerprint = "f01";
  CHECK(foreign_reasons(other, here).empty());
  other.device["driver"] = "580.1";
  CHECK(foreign_reasons(other, here) ==
        std::vector<std::string>{"driver major: 580 in the baseline, 570 in the results"});
  other = here;
  other.device["name"] = "H100";
  CHECK(foreign_reasons(other, here).size() == 1);
  other = here;
  other.sm_mhz_min = 1100;
  other.sm_mhz_max = 1200;
  CHECK(foreign_reasons(other, here).size() == 1);
  other.sm_mhz_max = 1800;
  CHECK(foreign_reasons(other, here).empty());
}

TEST_CASE("several baselines pool their samples and learn what runs differ by") {
  ResultFile first = file_of({result_of("a", 100), result_of("b")});
  first.run.created = "2026-01-02";
  ResultFile second = file_of({result_of("a", 106), result_of("c")});
  second.run.created = "2026-01-01";
  const ResultFile pooled = pool_baselines({first, second}, 2, false);
  CHECK(pooled.run.created == "2026-01-02");
  REQUIRE(pooled.results.size() == 3);
  REQUIRE(pooled.run.noise_floor);
  CHECK(pooled.run.noise_floor->cases.at("s/a/B") == doctest::Approx(0.06));
  for (const Result& result : pooled.results) {
    const bool in_both = result.case_name == "a";
    CHECK(result.timing->samples_us.size() == (in_both ? 20 : 10));
    if (in_both) CHECK(result.timing->median_us == doctest::Approx(103).epsilon(0.01));
  }
  CHECK(judge_results(pooled, file_of({result_of("a", 107), result_of("b"), result_of("c")}), {})
            .passed());
  second.run.environment.cpu.model = "Other";
  CHECK_THROWS_AS(pool_baselines({first, second}, 2, false), Error);
  CHECK(pool_baselines({first, second}, 2, true).results.size() == 3);
}

TEST_CASE("the noise floor is what nine of ten cases differ by, doubled") {
  std::vector<std::vector<Result>> runs(2);
  for (int i = 0; i < 21; ++i) {
    runs[0].push_back(result_of(std::to_string(i), 1000));
    runs[1].push_back(result_of(std::to_string(i), 1000 * (1 + 0.001 * i)));
  }
  const NoiseFloor floor = measure_noise_floor(runs, 2);
  CHECK(floor.runs == 2);
  CHECK(floor.all_cases == doctest::Approx(2 * 0.018));
  CHECK(floor.cases.at("s/20/B") == doctest::Approx(0.02));
  CHECK(floor.cases.at("s/1/B") == 0);  // 1 us is within the floor
  CHECK(measure_noise_floor({runs[0]}, 2).all_cases == 0);
}

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

TEST_CASE("the bootstrap interval narrows with samples and holds the true ratio") {
  std::vector<double> few, many;
  for (int i = 0; i < 2000; ++i) many.push_back(100 + i % 10);
  few.assign(many.begin(), many.begin() + 10);
  const Interval wide = bootstrap_ratio(few, few);
  const Interval narrow = bootstrap_ratio(many, many);
  CHECK(wide.low < narrow.low);
  CHECK(wide.high > narrow.high);
  CHECK(narrow.low < 1);
  CHECK(narrow.high > 1);
  CHECK(narrow.low > 0.98);
}

}  // namespace attnbench
