#include "report/tables/sol.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <string>

namespace attnbench {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// 1e9 bytes at 1000 GB/s are 1000 us, 1e9 operations at 1 TFLOP/s too.
Result timed(double bytes, double flops, double time_us = 4000) {
  Result result;
  result.scenario = "s";
  result.case_name = "c";
  result.backend = "ONE";
  result.status = Status::kPassed;
  result.timing.emplace();
  result.timing->median_us = time_us;
  result.throughput.emplace();
  result.throughput->bytes = bytes;
  result.throughput->flops = flops;
  result.throughput->ceiling_gbps = 1000;
  result.throughput->ceiling_tflops = 1;
  return result;
}

}  // namespace

TEST_CASE("the speed of light is the longer of moving the bytes and doing the operations") {
  CHECK(speed_of_light_us(timed(2e9, 1e9)) == doctest::Approx(2000));
  CHECK(speed_of_light_us(timed(1e9, 3e9)) == doctest::Approx(3000));
}

TEST_CASE("where the clock was observed the operations count at the peak of that clock") {
  Result result = timed(1e9, 3e9);
  result.throughput->peak_pct = 60;  // of the peak at the observed clock, in 4000 us
  CHECK(speed_of_light_us(result) == doctest::Approx(2400));
  result.throughput->bytes = 3e9;  // memory is not clocked with the multiprocessors
  CHECK(speed_of_light_us(result) == doctest::Approx(3000));
}

TEST_CASE("without a ceiling or a time there is no speed of light") {
  Result result = timed(1e9, 1e9);
  result.throughput->ceiling_gbps = kUnknown;
  CHECK(std::isnan(speed_of_light_us(result)));
  result = timed(1e9, 1e9);
  result.throughput->ceiling_tflops = kUnknown;
  CHECK(std::isnan(speed_of_light_us(result)));
  result = timed(1e9, 1e9);
  result.timing.reset();
  CHECK(std::isnan(speed_of_light_us(result)));
}

TEST_CASE("the score is 0.5 for the baseline and 1 for the speed of light") {
  CHECK(sol_score(300, 300, 100) == doctest::Approx(0.5));
  CHECK(sol_score(100, 300, 100) == doctest::Approx(1));
  CHECK(sol_score(200, 300, 100) == doctest::Approx(1 / 1.5));
  CHECK(sol_score(500, 300, 100) == doctest::Approx(1.0 / 3));
  // A baseline that is as fast as light leaves no gap to divide by.
  CHECK(sol_score(100, 100, 100) == 1);
  CHECK(sol_score(101, 100, 100) == 0);
  CHECK(std::isnan(sol_score(0, 300, 100)));
  CHECK(std::isnan(sol_score(200, kUnknown, 100)));
  CHECK(std::isnan(sol_score(200, 300, kUnknown)));
}

TEST_CASE("the baseline is a backend by name, or the fastest of each case") {
  Result slow = timed(1e9, 1e9, 4000);
  Result fast = timed(1e9, 1e9, 2000);
  fast.backend = "TWO";
  CHECK(baseline_times({slow, fast}, "").at("s/c") == 2000);
  CHECK(baseline_times({slow, fast}, "ONE").at("s/c") == 4000);
  CHECK(baseline_times({slow, fast}, "THREE").empty());
  // A time that is too good to be true is no baseline.
  fast.status = Status::kImplausible;
  CHECK(baseline_times({slow, fast}, "").at("s/c") == 4000);

  std::ostringstream out;
  write_sol_table(out, {slow}, {{"s/c", 4000}});
  CHECK(out.str().find("25%") != std::string::npos);
  CHECK(out.str().find("0.50") != std::string::npos);
}

}  // namespace attnbench
