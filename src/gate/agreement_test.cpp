#include "gate/agreement.h"

#include <doctest/doctest.h>

#include <cmath>

#include "core/error.h"

namespace attnbench {
namespace {

Result passed(const std::string& id, double err_ratio, double nmse) {
  Result result;
  result.id = id;
  result.status = Status::kPassed;
  result.error.emplace();
  result.error->err_ratio = err_ratio;
  result.error->nmse = nmse;
  result.error->rms_rel = std::sqrt(nmse);
  result.error->checked_rows = result.error->total_rows = 64;
  result.problem_json = R"({"attention": {"head_size": 64}})";
  return result;
}

Result with_status(const std::string& id, Status status, const std::string& reason = "") {
  Result result;
  result.id = id;
  result.status = status;
  result.problem_json = R"({"attention": {"head_size": 64}})";
  if (!reason.empty()) result.reasons = {reason};
  return result;
}

AgreementReport compare(const std::vector<Result>& first, const std::vector<Result>& second,
                        const AgreementOptions& options = {}) {
  ResultFile a, b;
  a.results = first;
  b.results = second;
  for (Result& result : a.results) result.device = "cpu";
  for (Result& result : b.results) result.device = "cuda:0";
  return compare_agreement(a, b, options);
}

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("errors of one order agree, whichever device has the larger one") {
  const AgreementReport report = compare({passed("a", 0.7, 1e-6), passed("b", 1.4, 4e-6)},
                                         {passed("a", 1.4, 4e-6), passed("b", 0.7, 1e-6)});
  CHECK(report.first_device == "cpu");
  CHECK(report.second_device == "cuda:0");
  REQUIRE(report.cases.size() == 2);
  for (const Agreement& agreement : report.cases) {
    CHECK(agreement.factor == doctest::Approx(2));
    CHECK(agreement.disagreement.empty());
  }
  CHECK(report.failures() == 0);
}

TEST_CASE("an error that is too many times larger on one device fails and comes first") {
  const std::vector<Result> cpu{passed("a", 0.7, 1e-6), passed("b", 0.4, 1e-6)};
  for (const bool swapped : {false, true}) {
    const std::vector<Result> gpu{passed("a", 0.7, 1e-6), passed("b", 2.0, 1e-6)};
    const AgreementReport report = swapped ? compare(gpu, cpu) : compare(cpu, gpu);
    REQUIRE(report.cases.size() == 2);
    CHECK(report.cases[0].id == "b");
    CHECK(report.cases[0].factor == doctest::Approx(5));
    CHECK(report.cases[0].disagreement == "errors 5 times apart, more than 4, by err_ratio");
    CHECK(report.failures() == 1);
  }
  AgreementOptions wide;
  wide.allowed_factor = 6;
  CHECK(compare(cpu, {passed("a", 0.7, 1e-6), passed("b", 2.0, 1e-6)}, wide).failures() == 0);
}

TEST_CASE("the NMSE counts by its root, also where there is no err_ratio") {
  const AgreementReport report = compare({passed("a", kNaN, 1e-10)}, {passed("a", kNaN, 36e-10)});
  CHECK(report.cases.at(0).factor == doctest::Approx(6));
  CHECK(report.failures() == 1);
}

TEST_CASE("errors that are as good as nothing are not compared with each other") {
  CHECK(compare({passed("a", 0, 0)}, {passed("a", 0.09, 9e-17)}).cases.at(0).factor == 1);
  CHECK(compare({passed("a", 0, 0)}, {passed("a", 0.5, 0)}).cases.at(0).factor ==
        doctest::Approx(5));
}

TEST_CASE("errors of the LSE are compared as those of the output are") {
  const auto with_lse = [](double err_ratio, double nmse) {
    Result result = passed("a", 0.7, 1e-6);
    result.lse_error.emplace();
    result.lse_error->err_ratio = err_ratio;
    result.lse_error->nmse = nmse;
    result.lse_error->rms_rel = std::sqrt(nmse);
    result.lse_error->checked_rows = result.lse_error->total_rows = 64;
    return result;
  };
  const AgreementReport ratio = compare({with_lse(0.2, 1e-8)}, {with_lse(1.2, 1e-8)});
  CHECK(ratio.cases.at(0).factor == doctest::Approx(6));
  CHECK(ratio.cases.at(0).disagreement == "errors 6 times apart, more than 4, by LSE err_ratio");
  const AgreementReport nmse = compare({with_lse(0.2, 25e-8)}, {with_lse(0.2, 1e-8)});
  CHECK(nmse.cases.at(0).factor == doctest::Approx(5));
  CHECK(nmse.cases.at(0).figure == "LSE NMSE");
  CHECK(nmse.failures() == 1);
  // float32 rounds it, and exponentials are good to some 2^-22.
  CHECK(compare({with_lse(0, 0)}, {with_lse(0.09, 9e-13)}).cases.at(0).factor == 1);
  CHECK(compare({with_lse(0.2, 1e-15)}, {with_lse(1.2, 4e-15)}).cases.at(0).factor == 1);
  CHECK(std::isinf(compare({with_lse(0.2, 1e-8)}, {passed("a", 0.7, 1e-6)}).cases.at(0).factor));
  CHECK(compare({with_lse(0.2, 1e-8)}, {with_lse(0.2, 1e-8)}).cases.at(0).figure.empty());
}

TEST_CASE("an error that is a number on one device only is a difference without bound") {
  const AgreementReport report = compare({passed("a", 0.7, kNaN)}, {passed("a", 0.7, 1e-6)});
  CHECK(std::isinf(report.cases.at(0).factor));
  CHECK(report.failures() == 1);
}

TEST_CASE("results that were not validated agree only when that is allowed") {
  const std::vector<Result> results{with_status("a", Status::kUnverified)};
  CHECK(compare(results, results).failures() == 1);
  AgreementOptions lenient;
  lenient.lenient = true;
  CHECK(compare(results, results, lenient).failures() == 0);
}

TEST_CASE("different statuses fail with the reason, the same ones agree without errors") {
  const AgreementReport report =
      compare({with_status("a", Status::kUnsupported, "x"), passed("b", 0.7, 1e-6)},
              {with_status("a", Status::kUnsupported, "x"),
               with_status("b", Status::kError, "E-CUDA: lost")});
  REQUIRE(report.cases.size() == 2);
  CHECK(report.cases[0].id == "b");
  CHECK(report.cases[0].disagreement == "status passed and error: E-CUDA: lost");
  CHECK(report.cases[1].disagreement.empty());
  CHECK(report.failures() == 1);
}

TEST_CASE("a case of one file alone fails unless that is allowed, a skipped one counts as none") {
  const std::vector<Result> first{passed("a", 1, 1e-6), passed("b", 1, 1e-6)};
  const std::vector<Result> second{passed("a", 1, 1e-6), with_status("b", Status::kSkipped),
                                   passed("c", 1, 1e-6)};
  const AgreementReport report = compare(first, second);
  CHECK(report.lone == std::vector<std::string>{"b", "c"});
  CHECK(report.failures() == 2);
  AgreementOptions lenient;
  lenient.lenient = true;
  CHECK(compare(first, second, lenient).failures() == 0);
}

TEST_CASE("a case that is another problem in the other file is refused") {
  Result other = passed("a", 1, 1e-6);
  other.problem_json = R"({"attention": {"head_size": 128}})";
  CHECK_THROWS_WITH_AS(compare({passed("a", 1, 1e-6)}, {other}),
                       doctest::Contains("attention.head_size"), Error);
  Result scaled = passed("a", 1, 1e-6);
  scaled.problem_json = R"({"kv_cache": {"scale_file": "a.json"}})";
  Result rescaled = scaled;
  scaled.file_hashes = {{"kv_cache.scale_file", "1"}};
  rescaled.file_hashes = {{"kv_cache.scale_file", "2"}};
  CHECK_THROWS_WITH_AS(compare({scaled}, {rescaled}), doctest::Contains("holds other scales"),
                       Error);
  AgreementOptions ignore;
  ignore.ignore_environment = true;
  CHECK(compare({passed("a", 1, 1e-6)}, {other}, ignore).failures() == 0);
}

}  // namespace attnbench
