#include "gate/foreign.h"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include "core/error.h"
#include "gate/baseline.h"
#include "gate/gate_cases.h"

namespace attnbench {
namespace {

using gate_testing::file_of;
using gate_testing::result_of;
using gate_testing::set_nmse;

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
  set_nmse(result.quantization_error, nmse);
  return result;
}

}  // namespace

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
  // Results of older versions know only the path.
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

TEST_CASE("results that are checked in another way are of another case") {
  const auto difference = [](const char* before, const char* after) {
    Result old = result_of("a");
    Result now = result_of("a");
    old.problem_json = before;
    now.problem_json = after;
    return problem_difference(old, now);
  };
  const char* const all = R"({"validation":{"max_rows":"auto","rule":"auto"},"inputs":{"std":1}})";
  CHECK(difference(all, R"({"validation":{"max_rows":64,"rule":"auto"},"inputs":{"std":1}})") ==
        "validation.max_rows: \"auto\" in the baseline, 64 in the results");
  CHECK(difference(all, R"({"validation":{"max_rows":"auto","rule":"loose"},"inputs":{"std":1}})")
            .starts_with("validation.rule"));
  CHECK(difference(all, R"({"validation":{"max_rows":"auto","rule":"auto"},"inputs":{"std":0}})")
            .starts_with("inputs.std"));
  CHECK(difference(R"({"timing":{"pace":"cool"}})", R"({"timing":{"pace":"sustained"}})")
            .starts_with("timing.pace"));
  CHECK(difference(R"({"validation":3,"inputs":{"std":1}})", all)
            .starts_with("validation: 3 in the baseline, {"));
  CHECK(
      difference(all, R"({"validation":3,"inputs":{"std":1}})")
          .starts_with("validation: {\"max_rows\":\"auto\",\"rule\":\"auto\"} in the baseline, 3"));
  CHECK(difference(all, "null") == "problem is missing in the results");
  CHECK(difference(all, R"({"inputs":{"std":1}})").starts_with("validation: {"));
  // What earlier versions did not write down is not held against their baselines.
  CHECK(difference(R"({"inputs":{"std":1}})", all) == "");
  CHECK(difference(R"({"validation":{"max_rows":"auto"},"inputs":{"std":1}})", all) == "");
  CHECK(difference(R"({"timing":{"l2":"cold"}})", R"({"timing":{"l2":"cold","pace":"cool"}})") ==
        "");
}

TEST_CASE("a key that is newer than a baseline had its default there") {
  const auto difference = [](const char* after) {
    Result old = result_of("a");
    Result now = result_of("a");
    old.problem_json = R"({"attention":{"head_size":64}})";
    now.problem_json = after;
    return problem_difference(old, now);
  };
  CHECK(difference(R"({"attention":{"head_size":64,"num_splits":null},
                       "engine":{"max_model_len":null}})") == "");
  CHECK(difference(R"({"attention":{"head_size":64,"num_splits":4}})") ==
        "attention.num_splits: null in the baseline, 4 in the results");
  CHECK(difference(R"({"attention":{"head_size":64},"engine":{"max_model_len":8192}})") ==
        "engine.max_model_len: null in the baseline, 8192 in the results");
}

TEST_CASE("the probe had its needles before there was a key of them") {
  const auto difference = [](const char* distribution) {
    Result old = result_of("a");
    Result now = result_of("a");
    old.problem_json = fmt::format(R"({{"inputs":{{"distribution":"{}"}}}})", distribution);
    now.problem_json =
        fmt::format(R"({{"inputs":{{"distribution":"{}","needles":true}}}})", distribution);
    return problem_difference(old, now);
  };
  CHECK(difference("probe") == "");
  CHECK(difference("normal") == "inputs.needles: false in the baseline, true in the results");
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

TEST_CASE("files of tensors are the same when they hold the same bytes") {
  const auto reads = [](const std::string& path, const std::string& hash) {
    Result result = result_of("a");
    result.problem_json = fmt::format(R"({{"inputs":{{"file":"{}","seed":1}}}})", path);
    if (!hash.empty()) result.file_hashes = {{"inputs.file", hash}};
    return result;
  };
  CHECK(problem_difference(reads("a", "1"), reads("/b/a", "1")).empty());
  CHECK(problem_difference(reads("a", "1"), reads("a", "2")) ==
        "inputs.file: \"SHA-256 1\" in the baseline, \"SHA-256 2\" in the results");
  // Results of older versions know only the path.
  CHECK(problem_difference(reads("a", ""), reads("a", "2")).empty());
  CHECK_FALSE(problem_difference(reads("a", ""), reads("b", "2")).empty());
  CHECK_FALSE(problem_difference(result_of("a"), reads("a", "1")).empty());
}

TEST_CASE("turns are another way to take samples, not another case") {
  Result before = result_of("a");
  Result after = before;
  before.problem_json = R"({"timing":{"l2":"cold"}})";
  after.problem_json = R"({"timing":{"l2":"cold","order":"alternate","rounds":5}})";
  CHECK(problem_difference(before, after).empty());
  for (const char* other : {"warm", "clean"}) {
    after.problem_json =
        std::string(R"({"timing":{"order":"alternate","rounds":5,"l2":")") + other + "\"}}";
    CHECK_FALSE(problem_difference(before, after).empty());
  }
}

}  // namespace attnbench
