#include "gate/baseline.h"

#include <doctest/doctest.h>

#include <cmath>

#include "core/error.h"
#include "gate/belief.h"
#include "gate/gate_cases.h"

namespace attnbench {
namespace {

using gate_testing::at_clock;
using gate_testing::file_of;
using gate_testing::held_up_timing;
using gate_testing::result_of;
using gate_testing::with_status;

}  // namespace

TEST_CASE("what other programs did to a run is no noise floor, where quiet samples tell") {
  std::vector<std::vector<Result>> runs(2, {result_of("a")});
  const std::size_t all = held_up_timing(100, 0, 0).samples_us.size();
  runs[0][0].timing = held_up_timing(100, 0, 0);
  runs[1][0].timing = held_up_timing(104, all - 5, 300);
  CHECK(measure_noise_floor(runs, 2).all_cases == doctest::Approx(0.04).epsilon(0.05));
  runs[1][0].timing = held_up_timing(104, all - 4, 300);
  // Two times as long and more: the most that a gate goes by.
  CHECK(measure_noise_floor(runs, 2).all_cases == kLargestNoiseFloor);
}

TEST_CASE("a time that beats the device is pooled with no other and makes no noise floor") {
  const Result believed = result_of("a");
  const Result beyond = result_of("a", 1);
  std::vector<std::vector<Result>> runs{{beyond}, {believed}};
  runs[0][0].status = Status::kImplausible;
  CHECK(measure_noise_floor(runs, 2).cases.empty());
  CHECK(pool_runs(runs)[0].timing->samples_us == believed.timing->samples_us);
  std::swap(runs[0], runs[1]);
  CHECK(pool_runs(runs)[0].status == Status::kImplausible);
  CHECK(pool_runs(runs)[0].timing->samples_us == beyond.timing->samples_us);
  Result result = believed;
  add_pass(result, runs[1][0]);
  CHECK(result.status == Status::kImplausible);
}

TEST_CASE("several runs together know the clock of every sample when each of them does") {
  std::vector<std::vector<Result>> runs{{at_clock(result_of("a"), 1000)},
                                        {at_clock(result_of("a"), 2000)}};
  runs[0][0].timing->checked_samples = {{1, 0.1, 0.2}};
  runs[1][0].timing->checked_samples = {{2, 0.1, 0.2}};
  const Timing pooled = *pool_runs(runs)[0].timing;
  CHECK(pooled.samples_sm_mhz.front() == 1000);
  CHECK(pooled.samples_sm_mhz.back() == 2000);
  CHECK(pooled.cycles == doctest::Approx(150'000).epsilon(0.01));
  REQUIRE(pooled.checked_samples.size() == 2);
  CHECK(pooled.checked_samples[0].sample == 1);
  CHECK(pooled.checked_samples[1].sample == 12);
  runs[1][0] = result_of("a");
  const Timing half = *pool_runs(runs)[0].timing;
  CHECK(half.samples_sm_mhz.empty());
  CHECK(std::isnan(half.cycles));
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

TEST_CASE("runs that are far apart give a noise floor of a fifth and no wider one") {
  std::vector<std::vector<Result>> runs(2, {result_of("a")});
  runs[1][0].timing->median_us *= 3;
  const NoiseFloor floor = measure_noise_floor(runs, 0);
  CHECK(floor.all_cases == doctest::Approx(0.2));
  REQUIRE(floor.cases.size() == 1);
  CHECK(floor.cases.begin()->second == doctest::Approx(0.2));
}

TEST_CASE("several runs together know the clocks of their samples, cycles and share of the peak") {
  std::vector<std::vector<Result>> runs(2, {result_of("a")});
  const std::size_t all = runs[0][0].timing->samples_us.size();
  for (std::size_t i = 0; i < 2; ++i) {
    Result& result = runs[i][0];
    result.timing->samples_sm_mhz.assign(all, i == 0 ? 1980 : 1755);
    result.timing->cycles = result.timing->median_us * (i == 0 ? 1980 : 1755);
    if (!result.throughput) result.throughput = Throughput{};
    result.throughput->peak_pct = 60;
  }
  const Result pooled = pool_runs(runs)[0];
  REQUIRE(pooled.timing->samples_sm_mhz.size() == 2 * all);
  CHECK(pooled.timing->samples_sm_mhz.front() == 1980);
  CHECK(pooled.timing->samples_sm_mhz.back() == 1755);
  const double first = runs[0][0].timing->cycles;
  const double second = runs[1][0].timing->cycles;
  CHECK(pooled.timing->cycles > second);
  CHECK(pooled.timing->cycles < first);
  CHECK(pooled.throughput->peak_pct == doctest::Approx(60 * second / pooled.timing->cycles));
  runs[0][0].timing->samples_sm_mhz.clear();
  CHECK(pool_runs(runs)[0].timing->samples_sm_mhz.empty());
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

TEST_CASE("a later pass adds its samples as a round, and rates follow the median") {
  Result result = result_of("a", 100);
  result.throughput = Throughput{};
  result.throughput->tflops = 60;
  result.timing->total_us = 110;
  Result later = with_status(result_of("a", 120), Status::kUnverified);
  later.throughput = Throughput{};
  later.throughput->tflops = 50;
  later.timing->total_us = 130;
  add_pass(result, later);
  CHECK(result.status == Status::kPassed);
  CHECK(result.error);
  CHECK(result.timing->samples_us.size() == 20);
  CHECK(result.timing->samples_us.front() < 101);
  CHECK(result.timing->rounds == std::vector<std::int64_t>{10, 10});
  CHECK(result.timing->total_us == doctest::Approx(120));
  CHECK(result.throughput->tflops * result.timing->median_us == doctest::Approx(6000));
  add_pass(result, later);
  CHECK(result.timing->rounds == std::vector<std::int64_t>{10, 10, 10});
  CHECK(result.timing->total_us == doctest::Approx(370.0 / 3));
}

TEST_CASE("a later pass that was skipped changes nothing, one that failed counts") {
  Result result = result_of("a", 100);
  add_pass(result, with_status(result_of("a"), Status::kSkipped, "interrupted"));
  CHECK(result.status == Status::kPassed);
  CHECK(result.timing->samples_us.size() == 10);
  add_pass(result, with_status(result_of("a"), Status::kError, "E-CUDA"));
  CHECK(result.status == Status::kError);
  CHECK(result.reasons == std::vector<std::string>{"E-CUDA"});
  CHECK_FALSE(result.timing);
}

TEST_CASE("what went wrong in one pass is not covered by something less bad in a later one") {
  Result result = with_status(result_of("a"), Status::kIncorrect, "row 3");
  Result later = result_of("a");
  later.status = Status::kImplausible;
  later.reasons = {"beats the memory"};
  add_pass(result, later);
  CHECK(result.status == Status::kIncorrect);
  CHECK(result.reasons == std::vector<std::string>{"row 3"});
  add_pass(result, with_status(result_of("a"), Status::kError, "E-CUDA"));
  CHECK(result.status == Status::kIncorrect);
  Result doubted = later;
  add_pass(doubted, with_status(result_of("a"), Status::kIncorrect, "row 3"));
  CHECK(doubted.status == Status::kIncorrect);
  CHECK_FALSE(doubted.timing);
}

TEST_CASE("samples of several runs are the rounds of each, one after another") {
  std::vector<std::vector<Result>> runs(3, {result_of("a")});
  const auto all = static_cast<std::int64_t>(runs[0][0].timing->samples_us.size());
  runs[1][0].timing->rounds = {1, all - 1};
  CHECK(pool_runs(runs)[0].timing->rounds == std::vector<std::int64_t>{all, 1, all - 1, all});
  CHECK(pool_runs({runs[0]})[0].timing->rounds.empty());
}

}  // namespace attnbench
