#include "gate/judge_time.h"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <cmath>

#include "gate/gate_cases.h"
#include "gate/statistics.h"

namespace attnbench {
namespace {

using gate_testing::held_up_timing;
using gate_testing::samples_around;
using gate_testing::timing_of;

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

TEST_CASE("where it is not known how long the threads waited all samples count") {
  const Timing before = held_up_timing(100, 0, 0);
  Timing after = held_up_timing(120, before.samples_us.size(), 50);
  CHECK(judge_time(before, after, {}).kind == VerdictKind::kAmbiguous);
  after.waits_us.clear();
  CHECK(judge_time(before, after, {}).kind == VerdictKind::kSlower);
  after.waits_us = {50};  // not of these samples
  CHECK(judge_time(before, after, {}).kind == VerdictKind::kSlower);
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
  CHECK(verdict.rule.find("not significant: samples spread") != std::string::npos);

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

namespace {

/// Forty samples a round, half a percent wide around each median.
Timing in_rounds(const std::vector<double>& medians_us) {
  std::vector<double> samples;
  for (const double median_us : medians_us) {
    for (int i = 0; i < 4; ++i) {
      for (const double sample : samples_around(median_us)) samples.push_back(sample);
    }
  }
  Timing timing = timing_of(std::move(samples));
  timing.rounds.assign(medians_us.size(), 40);
  return timing;
}

}  // namespace

TEST_CASE("rounds that lie apart say how little the samples of one round do") {
  const Timing before = in_rounds({100, 101, 99, 100, 101, 99, 100, 100});
  Timing after = in_rounds({105, 125, 110, 108, 130, 106, 105, 124});
  const TimeVerdict verdict = judge_time(before, after, {});
  CHECK(verdict.kind == VerdictKind::kAmbiguous);
  CHECK(verdict.rule.find("not significant: they spread") != std::string::npos);
  CHECK(judge_time(after, before, {}).kind == VerdictKind::kAmbiguous);
  after.rounds.clear();  // all in one go
  CHECK(judge_time(before, after, {}).kind == VerdictKind::kSlower);
  after.rounds = {80, 80, 80};  // too few to tell
  CHECK(judge_time(before, after, {}).kind == VerdictKind::kSlower);
  CHECK(judge_time(before, in_rounds({106, 107, 105, 106, 107, 105, 106, 106}), {}).kind ==
        VerdictKind::kSlower);
  // A large gap is one also where rounds lie apart.
  CHECK(judge_time(before, in_rounds({205, 225, 210, 208, 230, 206, 205, 224}), {}).kind ==
        VerdictKind::kSlower);
}

TEST_CASE("rounds that agree by chance are held against those of most cases") {
  const Timing before = in_rounds({100, 101, 99, 100, 101, 99, 100, 100});
  const Timing after = in_rounds({106, 107, 105, 106, 107, 105, 106, 106});
  TimeLimits limits;
  limits.round_error = 0.013;
  CHECK(judge_time(before, after, limits).kind == VerdictKind::kSlower);
  limits.round_error = 0.014;  // 4.4 times that is more than the gap
  const TimeVerdict verdict = judge_time(before, after, limits);
  CHECK(verdict.kind == VerdictKind::kAmbiguous);
  CHECK(verdict.rule.find("those of most cases") != std::string::npos);
}

TEST_CASE("the usual error of rounds is that of half of the cases, where there are enough") {
  std::vector<Result> results(10);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const double step = static_cast<double>(i);
    results[i].timing = in_rounds({100 - step, 100 + step, 100 - step, 100 + step});
  }
  // Standard deviation sqrt(4 / 3) of the step, by the root of four rounds.
  CHECK(usual_round_error(results) == doctest::Approx(0.045 * std::sqrt(1.0 / 3)));
  results[4].timing->rounds = {80, 80};
  CHECK(usual_round_error(results) == 0);
}

TEST_CASE("the quiet samples of a timing are of the rounds that they were taken in") {
  Timing timing = timing_of({100, 101, 102, 103, 104, 105}, {0, 90, 90, 90, 0, 0});
  timing.rounds = {2, 2, 2};
  const Timing quiet = quiet_part(timing, 0.01);
  CHECK(quiet.samples_us == std::vector<double>{100, 104, 105});
  CHECK(quiet.rounds == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("of two spreads the wider one says how well their difference is known") {
  const MedianSpread narrow{0.0001, 1000};
  const MedianSpread wide{0.01, 9};
  CHECK(chance_gap(narrow, wide) == doctest::Approx(chance_gap({0, 1000}, wide)).epsilon(0.001));
  CHECK(chance_gap(wide, narrow) > 1.5 * chance_gap(narrow, {0.01, 1000}));
  CHECK(chance_gap({0, 5}, {0, 5}) == 0);
}

}  // namespace attnbench
