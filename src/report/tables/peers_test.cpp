#include "report/tables/peers.h"

#include <doctest/doctest.h>

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "report/format.h"
#include "report/formats/markdown.h"

namespace attnbench {
namespace {

Result on(const std::string& case_name, const std::string& backend) {
  Result result;
  result.scenario = "suite";
  result.case_name = case_name;
  result.backend = backend;
  result.status = Status::kUnsupported;
  result.reasons = {"not found"};
  result.problem_json = "{}";
  return result;
}

/// With the samples of its rounds, one each; the median is that of three.
Result timed(const std::string& case_name, const std::string& backend,
             const std::vector<double>& rounds_us, double median_us) {
  Result result = on(case_name, backend);
  result.status = Status::kPassed;
  result.reasons.clear();
  result.error = ErrorStats{};
  result.error->err_ratio = 0.97;
  Timing& timing = result.timing.emplace();
  timing.median_us = median_us;
  timing.samples_us = rounds_us;
  timing.rounds.assign(rounds_us.size(), 1);
  timing.peers = {"A", "B"};
  Throughput& rate = result.throughput.emplace();
  rate.bound = "compute";
  rate.tflops = 1000 / median_us;
  rate.flops = 1e9;
  return result;
}

std::vector<Result> two_cases() {
  return {timed("q8k", "A", {10, 20, 14}, 14), timed("q8k", "B", {11, 10, 10}, 10), on("q8k", "C"),
          timed("q1", "A", {5, 5, 5}, 5),      timed("q1", "B", {6, 4, 6}, 6),      on("q1", "C")};
}

std::string table(const std::vector<Result>& results, std::size_t width) {
  std::ostringstream out;
  write_peer_table(out, results, width);
  return out.str();
}

}  // namespace

TEST_CASE("a time that beats the device has no rank among its peers, and shows as what it is") {
  std::vector<Result> results = two_cases();
  Result& beyond = results.emplace_back(timed("q8k", "D", {1, 1, 1}, 1));
  beyond.status = Status::kImplausible;
  const std::vector<PeerCase> cases = peer_cases(results);
  CHECK(cases[0].cells[0].ratio == 1.4);
  CHECK(cases[0].cells[1].ratio == 1);
  CHECK(std::isnan(cases[0].cells[3].ratio));
  results[1].status = Status::kImplausible;  // of B in the first case
  CHECK(peer_cases(results).size() == 1);
  results.push_back(timed("q8k", "E", {30, 30, 30}, 30));
  CHECK(table(results, 100).find("implausible") != std::string::npos);
  std::ostringstream markdown;
  write_markdown(markdown, {}, results);
  CHECK(markdown.str().find("| implausible |") != std::string::npos);
}

TEST_CASE("ratios are of the best median of the case, and of the same round") {
  const std::vector<Result> results = two_cases();
  const std::vector<PeerCase> cases = peer_cases(results);
  REQUIRE(cases.size() == 2);
  CHECK(cases[0].case_name == "q8k");
  CHECK(cases[0].rounds == 3);
  REQUIRE(cases[0].cells.size() == 3);
  CHECK(cases[0].cells[0].ratio == 1.4);
  CHECK(cases[0].cells[0].least == doctest::Approx(10.0 / 11));
  CHECK(cases[0].cells[0].largest == 2);
  CHECK(cases[0].cells[1].ratio == 1);
  CHECK(cases[0].cells[1].least == 1);
  CHECK(cases[0].cells[2].result->backend == "C");
  CHECK(std::isnan(cases[0].cells[2].ratio));
  CHECK(cases[1].cells[0].ratio == 1);
  CHECK(cases[1].cells[1].ratio == 1.2);
  CHECK(cases[1].cells[1].least == 0.8);
}

TEST_CASE("who did not take turns has a ratio of the medians and none of rounds") {
  std::vector<Result> results = two_cases();
  results[0].timing->rounds.clear();
  results[0].timing->peers.clear();
  const std::vector<PeerCase> cases = peer_cases(results);
  CHECK(cases[0].rounds == 0);
  CHECK(cases[0].cells[0].ratio == 1.4);
  CHECK(std::isnan(cases[0].cells[0].least));
  CHECK(table(results, 80).find("q8k *") != std::string::npos);
  CHECK(table(results, 80).find("* = not all in turns (1 of 2 cases)") != std::string::npos);
}

TEST_CASE(
    "a case with one time has nothing to compare, and the same name elsewhere is another case") {
  std::vector<Result> results = {timed("q8k", "A", {1}, 1), on("q8k", "B")};
  CHECK(peer_cases(results).empty());
  results.push_back(timed("q8k", "B", {2}, 2));
  results.back().scenario = "another";
  CHECK(peer_cases(results).empty());
}

TEST_CASE("runs without turns get no table of their own") {
  std::vector<Result> results = two_cases();
  for (Result& result : results) {
    if (result.timing) result.timing->peers.clear();
  }
  CHECK(peer_cases(results).size() == 2);
  CHECK(table(results, 80).empty());
}

TEST_CASE("the table has a column for each backend that has a time") {
  CHECK(table(two_cases(), 80) ==
        "side by side, with the ratio of each time to the best of the case\n"
        "                               A                 B\n"
        "q8k\n"
        "  time, ratio     14.00 us 1.40x    10.00 us 1.00x\n"
        "  rate, error  71.4 TFLOP/s 0.97  100 TFLOP/s 0.97\n"
        "q1\n"
        "  time, ratio     5.000 us 1.00x    6.000 us 1.20x\n"
        "  rate, error   200 TFLOP/s 0.97  167 TFLOP/s 0.97\n"
        "\n");
}

TEST_CASE("columns that do not fit stand in a table below, and long names lack their packages") {
  std::vector<Result> results = two_cases();
  for (Result& result : results) {
    if (result.backend == "A") result.backend = "python:a.package.module:TheAttentionClass";
  }
  const std::string text = table(results, 50);
  CHECK(text.find(" module:TheAttentionClass\nq8k\n") != std::string::npos);
  CHECK(text.find("  rate, error          200 TFLOP/s 0.97\n"
                  "                              B\n"
                  "q8k\n"
                  "  time, ratio    10.00 us 1.00x\n") != std::string::npos);
}

TEST_CASE("what is still too long loses its middle, and no two columns have one name") {
  const std::vector<Result> results = two_cases();
  const auto rename = [&](const std::string& a, const std::string& b) {
    std::vector<Result> renamed = results;
    for (Result& result : renamed) {
      if (result.backend == "A") result.backend = a;
      if (result.backend == "B") result.backend = b;
    }
    return table(renamed, 200);
  };
  const std::string apart =
      rename("python:pkg.first_module:ReshapeAndCache", "python:pkg.other_module:ReshapeAndCache");
  CHECK(apart.find(" " + shorten_middle("first_module:ReshapeAndCache", 24) + " ") !=
        std::string::npos);
  CHECK(apart.find(" " + shorten_middle("other_module:ReshapeAndCache", 24) + "\n") !=
        std::string::npos);
  const std::string alike =
      rename("python:pkg.first.kernels:Attention", "python:pkg.other.kernels:Attention");
  CHECK(alike.find(" python:pkg.first.kernels:Attention  python:pkg.other.kernels:Attention\n") !=
        std::string::npos);
}

TEST_CASE("a failed peer is named by its status, in a column that has times elsewhere") {
  std::vector<Result> results = two_cases();
  results[1] = on("q8k", "B");
  results[1].status = Status::kError;
  results.push_back(timed("q8k", "D", {20, 20, 20}, 20));
  const std::string text = table(results, 80);
  CHECK(text.find("     14.00 us 1.00x             error     20.00 us 1.43x\n") !=
        std::string::npos);
  CHECK(text.find("     5.000 us 1.00x    6.000 us 1.20x                  -\n") !=
        std::string::npos);
}

TEST_CASE("Markdown marks the best and gives the ratios of the rounds of the others") {
  std::ostringstream out;
  write_markdown(out, {}, two_cases());
  CHECK(out.str().find("| case | A | B |\n|---|---|---|\n"
                       "| q8k | 1.40x (0.91-2.00) 14.00 us, 71.4 TFLOP/s 0.97 | "
                       "**1.00x** 10.00 us, 100 TFLOP/s 0.97 |\n"
                       "| q1 | **1.00x** 5.000 us, 200 TFLOP/s 0.97 | "
                       "1.20x (0.80-1.20) 6.000 us, 167 TFLOP/s 0.97 |\n") != std::string::npos);
}

}  // namespace attnbench
