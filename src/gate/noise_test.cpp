#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "gate/baseline.h"
#include "gate/gate_testing.h"
#include "gate/judge_time.h"
#include "gate/statistics.h"

// How often the gate is wrong on noisy machines. docs/gate.md shows the figures that
// `test_gate_slow -s` prints.

namespace attnbench {
namespace {

using gate_testing::NoiseModel;
using gate_testing::NoisyCase;

constexpr int kGates = 1000;
constexpr int kCases = 50;
constexpr int kSamples = 20;
constexpr double kTrueUs = 200;

const std::vector<NoiseModel>& models() {
  static const std::vector<NoiseModel> all{
      {.name = "jitter 1 %"},
      {.name = "jitter 3 %", .jitter = 0.03},
      {.name = "jitter 10 %", .jitter = 0.1},
      {.name = "drift 2 %, runs off by 0.5 %", .run_offset = 0.005, .drift = 0.02},
      {.name = "two clocks 6 % apart", .slow_clock = 0.06},
      {.name = "two clocks 15 % apart", .slow_clock = 0.15},
      {.name = "outliers, one in ten, to +200 %", .outlier_share = 0.1, .outlier_size = 2},
      {.name = "drift, two clocks and outliers",
       .run_offset = 0.005,
       .drift = 0.02,
       .slow_clock = 0.06,
       .outlier_share = 0.1,
       .outlier_size = 2},
      {.name = "one sample in four held up by other programs", .held_up_share = 0.25},
      {.name = "one sample in two held up by other programs", .held_up_share = 0.5},
      {.name = "nine samples in ten held up by other programs", .held_up_share = 0.9},
  };
  return all;
}

/// Noise that one run cannot show, because a whole run has it.
const std::vector<NoiseModel>& models_between_runs() {
  static const std::vector<NoiseModel> all{
      {.name = "runs off by 2 %", .run_offset = 0.02},
      {.name = "runs off by 5 %", .run_offset = 0.05},
      {.name = "a clock 6 % slower that stays for 20 samples", .slow_clock = 0.06, .stay = 0.95},
  };
  return all;
}

std::uint64_t seed_of(int gate, int test_case) {
  return static_cast<std::uint64_t>(gate) * 1'000'003U + static_cast<std::uint64_t>(test_case);
}

std::string id_of(int gate, int test_case) { return fmt::format("s/{}-{}/B", gate, test_case); }

struct Tally {
  int gates = 0;      // gates with a SLOWER case
  int slower = 0;     // cases
  int ambiguous = 0;  // cases
};

/// As many as `run --baseline` takes by default.
constexpr int kRounds = 8;

Tally identical_code(const NoiseModel& model, bool with_noise_floor, int rounds = 1) {
  Tally tally;
  for (int gate = 0; gate < kGates; ++gate) {
    std::vector<NoisyCase> cases;
    std::vector<std::vector<Result>> runs(2);
    for (int i = 0; i < kCases; ++i) {
      cases.emplace_back(model, kTrueUs, seed_of(gate, i));
      for (std::vector<Result>& run : runs) {
        run.emplace_back().id = id_of(gate, i);
        run.back().timing = cases.back().run(kSamples, 1, rounds);
      }
    }
    TimeLimits limits;
    std::vector<Result> baseline = runs[0];
    NoiseFloor floor;
    if (with_noise_floor) {
      floor = measure_noise_floor(runs, limits.floor_us);
      baseline = pool_runs(runs);
    }
    std::vector<Result> after(kCases);
    for (std::size_t i = 0; i < kCases; ++i) after[i].timing = cases[i].run(kSamples, 1, rounds);
    limits.round_error = std::hypot(usual_round_error(baseline), usual_round_error(after));
    int slower = 0;
    for (std::size_t i = 0; i < kCases; ++i) {
      const std::string& id = baseline[i].id;
      if (with_noise_floor) limits.noise_floor = std::max(floor.all_cases, floor.cases[id]);
      const TimeVerdict verdict = judge_time(*baseline[i].timing, *after[i].timing, limits);
      slower += verdict.kind == VerdictKind::kSlower;
      tally.ambiguous += verdict.kind == VerdictKind::kAmbiguous;
    }
    tally.gates += slower > 0;
    tally.slower += slower;
  }
  return tally;
}

double share_caught(const NoiseModel& model, double slowdown, const TimeLimits& limits = {},
                    int rounds = 1) {
  constexpr int kTrials = 10'000;
  int caught = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    NoisyCase noisy(model, kTrueUs, seed_of(trial, 0));
    const Timing before = noisy.run(kSamples, 1, rounds);
    const Timing after = noisy.run(kSamples, slowdown, rounds);
    const VerdictKind kind = judge_time(before, after, limits).kind;
    caught += kind == VerdictKind::kSlower;
  }
  return static_cast<double>(caught) / kTrials;
}

}  // namespace

TEST_CASE("on a noisy machine identical code is not called slower") {
  for (const NoiseModel& model : models()) {
    CAPTURE(std::string(model.name));
    const Tally tally = identical_code(model, /*with_noise_floor=*/false);
    MESSAGE(std::string(model.name) << ": " << tally.gates << " of " << kGates << " gates, "
                                    << tally.slower << " SLOWER and " << tally.ambiguous
                                    << " AMBIGUOUS of " << kGates * kCases << " cases");
    CHECK(tally.gates < 1);
  }
}

TEST_CASE("on a noisy machine a noise floor covers what differs between whole runs") {
  for (const NoiseModel& model : models_between_runs()) {
    CAPTURE(std::string(model.name));
    const Tally without = identical_code(model, /*with_noise_floor=*/false);
    const Tally with = identical_code(model, /*with_noise_floor=*/true);
    MESSAGE(std::string(model.name) << ": " << without.gates << " of " << kGates
                                    << " gates without, " << with.gates << " with the noise floor");
    CHECK(with.gates < 1);
  }
}

TEST_CASE("on a noisy machine rounds show what whole runs hide") {
  std::vector<NoiseModel> all = models();
  all.insert(all.end(), models_between_runs().begin(), models_between_runs().end());
  for (const NoiseModel& model : all) {
    CAPTURE(std::string(model.name));
    const Tally tally = identical_code(model, /*with_noise_floor=*/false, kRounds);
    MESSAGE("in " << kRounds << " rounds, " << std::string(model.name) << ": " << tally.gates
                  << " of " << kGates << " gates, " << tally.slower << " SLOWER and "
                  << tally.ambiguous << " AMBIGUOUS of " << kGates * kCases << " cases");
    CHECK(tally.gates < 1);
  }
  for (const double slowdown : {1.05, 1.10}) {
    const double quiet = share_caught({.name = ""}, slowdown, {}, kRounds);
    const double off = share_caught({.name = "", .run_offset = 0.02}, slowdown, {}, kRounds);
    MESSAGE("in " << kRounds << " rounds, " << slowdown << " times at 1 % noise: caught "
                  << 100 * quiet << " %, with rounds off by 2 % " << 100 * off << " %");
    CHECK(quiet > 0.99);
  }
}

TEST_CASE("on a noisy machine one bad round of a baseline does not hide a slowdown") {
  constexpr int kTrials = 2000;
  for (const auto& [bad, slowdown] : {std::pair{1.3, 1.10}, std::pair{2.0, 1.20}}) {
    int caught = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      NoisyCase noisy({.name = ""}, kTrueUs, seed_of(trial, 0));
      Timing before = noisy.run(kSamples, 1, kRounds);
      std::vector<double> samples = before.samples_us;
      const auto first = samples.begin() + before.rounds[0];
      std::for_each(first, first + before.rounds[1], [&](double& sample) { sample *= bad; });
      Timing disturbed = gate_testing::timing_of(std::move(samples), before.waits_us);
      disturbed.rounds = before.rounds;
      const Timing after = noisy.run(kSamples, slowdown, kRounds);
      TimeLimits limits;
      limits.noise_floor = 0.03;  // the stored noise, a mean of squares, would see the bad round
      caught += judge_time(disturbed, after, limits).kind == VerdictKind::kSlower;
    }
    MESSAGE("one round of the baseline " << bad << " times as slow: " << slowdown << " caught "
                                         << 100.0 * caught / kTrials << " %");
    CHECK(caught > 0.95 * kTrials);
  }
}

TEST_CASE("on a noisy machine other programs do not make the usual error of rounds") {
  const NoiseModel busy{.name = "", .held_up_share = 0.25};
  std::vector<Result> before(kCases), after(kCases);
  for (std::size_t i = 0; i < kCases; ++i) {
    NoisyCase noisy(busy, kTrueUs, seed_of(1, static_cast<int>(i)));
    before[i].timing = noisy.run(kSamples, 1, kRounds);
    after[i].timing = noisy.run(kSamples, 1.2, kRounds);
  }
  TimeLimits limits;
  limits.round_error = std::hypot(usual_round_error(before), usual_round_error(after));
  CHECK(limits.round_error < 0.01);
  int caught = 0;
  for (std::size_t i = 0; i < kCases; ++i) {
    caught += judge_time(*before[i].timing, *after[i].timing, limits).kind == VerdictKind::kSlower;
  }
  MESSAGE("25 % of the samples held up, 20 % slower: caught " << caught << " of " << kCases);
  CHECK(caught > 0.95 * kCases);
}

TEST_CASE("on a noisy machine a slowdown of 5 % at 1 % noise is caught") {
  const double at_one = share_caught({.name = ""}, 1.05);
  MESSAGE("5 % at 1 % noise: caught " << 100 * at_one << " %");
  CHECK(at_one > 0.99);
  TimeLimits with_floor;
  with_floor.noise_floor = 0.02;
  const double with_outliers =
      share_caught({.name = "", .outlier_share = 0.1, .outlier_size = 2}, 1.10, with_floor);
  const double at_three = share_caught({.name = "", .jitter = 0.03}, 1.10);
  MESSAGE("10 % at 3 % noise: caught " << 100 * at_three << " %");
  MESSAGE("10 % at 1 % noise with outliers and a noise floor of 2 %: caught " << 100 * with_outliers
                                                                              << " %");
  const double small = share_caught({.name = ""}, 1.02);
  MESSAGE("2 % at 1 % noise: called slower " << 100 * small << " %");
  CHECK(small < 0.01);
}

TEST_CASE("on a noisy machine a slowdown is caught in the samples that nobody held up") {
  for (const double share : {0.25, 0.5, 0.9}) {
    const NoiseModel busy{.name = "", .held_up_share = share};
    const double five = share_caught(busy, 1.05);
    const double ten = share_caught(busy, 1.10);
    MESSAGE((100 * share) << " % of the samples held up: 5 % caught " << 100 * five
                          << " %, 10 % caught " << 100 * ten << " %");
    if (share <= 0.5) CHECK(ten > 0.95);
    if (share <= 0.25) CHECK(five > 0.95);
  }
}

}  // namespace attnbench
