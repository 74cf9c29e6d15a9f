#include "bench/trial/docket.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "bench/trial/timed_samples.h"
#include "core/error.h"

namespace attnbench {
namespace {

using Stage = Docket::Stage;

std::string message_of(const auto& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Everything that a user's kernel has to hand in before the verdict, but for `left_out`.
Docket docket_without(std::optional<RunKind> left_out, JobKind kind = {true, true, true, false}) {
  Docket docket(kind);
  for (const RunKind run :
       {RunKind::kOtherQuery, RunKind::kJudged, RunKind::kRepeat, RunKind::kHeld}) {
    if (run != left_out) docket.add({run});
  }
  return docket;
}

}  // namespace

TEST_CASE("a job that left a run out is not closed while nothing else is against it") {
  for (const RunKind run :
       {RunKind::kOtherQuery, RunKind::kJudged, RunKind::kRepeat, RunKind::kHeld}) {
    const std::string expected = "the output of run '" + std::string(to_string(run)) + "' was not";
    Docket docket = docket_without(run);
    CHECK(message_of([&] { docket.close(Stage::kBeforeVerdict, true); }).find(expected) == 0);
    docket = docket_without(run);
    CHECK(message_of([&] { docket.close(Stage::kBeforeVerdict, false); }).empty());
  }
  Docket complete = docket_without(std::nullopt);
  complete.close(Stage::kBeforeVerdict, true);
  CHECK(message_of([&] { complete.close(Stage::kBeforeTiming, true); }).find("'negated'") !=
        std::string::npos);
}

TEST_CASE("a run after timing does not stand for the one before it") {
  Docket docket = docket_without(std::nullopt);
  docket.close(Stage::kBeforeVerdict, true);
  docket.add({RunKind::kNegated});
  CHECK_FALSE(message_of([&] { docket.add({RunKind::kNegated}); }).empty());
  docket.close(Stage::kBeforeTiming, true);
  CHECK_FALSE(message_of([&] { docket.close(Stage::kAfterTiming, true); }).empty());
}

TEST_CASE("timed samples that are judged are handed in") {
  const auto end_of = [](bool with_sample) {
    Docket docket = docket_without(std::nullopt, {true, true, true, false, true});
    docket.close(Stage::kBeforeVerdict, true);
    docket.add({RunKind::kNegated});
    docket.close(Stage::kBeforeTiming, true);
    docket.add({RunKind::kNegated});
    if (with_sample) docket.add({RunKind::kTimed, {false, 7}, 2});
    return message_of([&] { docket.close(Stage::kAfterTiming, true); });
  };
  CHECK(end_of(true).empty());
  CHECK(end_of(false) == "the output of run 'timed' was not handed in");
}

TEST_CASE("a further pass, which validates nothing else, hands its timed samples in") {
  const auto end_of = [](bool judged, bool with_sample) {
    JobKind kind;
    kind.validated = false;
    kind.users = true;
    kind.samples = judged;
    Docket docket(kind);
    docket.add({RunKind::kJudged});
    docket.close(Stage::kBeforeVerdict, true);
    docket.close(Stage::kBeforeTiming, true);
    if (with_sample) docket.add({RunKind::kTimed, {false, 7}, 0});
    return message_of([&] { docket.close(Stage::kAfterTiming, true); });
  };
  CHECK(end_of(true, true).empty());
  CHECK(end_of(true, false) == "the output of run 'timed' was not handed in");
  CHECK(end_of(false, false).empty());
}

TEST_CASE("the second draw is handed in before the verdict or not at all") {
  Docket docket = docket_without(std::nullopt, {true, true, true, true, false});
  CHECK(message_of([&] { docket.close(Stage::kBeforeVerdict, true); }) ==
        "the output of run 'judged' on the second draw was not handed in");
  docket = docket_without(std::nullopt);
  docket.close(Stage::kBeforeVerdict, true);
  CHECK(message_of([&] {
          docket.add({RunKind::kJudged, kProbeDraw});
        }).find("wrong time") != std::string::npos);
}

TEST_CASE("a native backend's job has no runs on other inputs") {
  Docket docket = docket_without(RunKind::kOtherQuery, {true, false, false, false});
  docket.close(Stage::kBeforeVerdict, true);
  docket.close(Stage::kBeforeTiming, true);
  docket.close(Stage::kAfterTiming, true);
}

TEST_CASE("runs are handed in once and in their stage, timed samples once each") {
  Docket docket = docket_without(std::nullopt);
  CHECK(message_of([&] { docket.add({RunKind::kJudged}); }).find("twice") != std::string::npos);
  CHECK(message_of([&] { docket.add({RunKind::kTimed}); }).find("wrong time") != std::string::npos);
  CHECK_FALSE(message_of([&] { docket.close(Stage::kAfterTiming, true); }).empty());
  docket.close(Stage::kBeforeVerdict, true);
  docket.add({RunKind::kNegated});
  docket.close(Stage::kBeforeTiming, true);
  docket.add({RunKind::kTimed, {}, 3});
  docket.add({RunKind::kTimed, {}, 4});
  CHECK_FALSE(message_of([&] { docket.add({RunKind::kTimed, {}, 4}); }).empty());
}

TEST_CASE("figures come from the samples, whatever was handed in beside them") {
  Timing raw;
  raw.samples_us = {30, 10, 20};
  raw.median_us = raw.min_us = 0.001;
  const Timing timing = checked_timing(raw);
  CHECK(timing.median_us == 20);
  CHECK(timing.min_us == 10);
  CHECK(timing.mean_us == 20);
  CHECK(std::isnan(timing.cycles));
  raw.samples_sm_mhz = {1000, 2000, 1500};
  raw.cycles = 1;
  CHECK(checked_timing(raw).cycles == 30000);
}

TEST_CASE("samples that no clock gives are refused") {
  const auto refused = [](const auto& change) {
    Timing raw;
    raw.samples_us = {30, 10, 20};
    change(raw);
    return !message_of([&] { checked_timing(raw); }).empty();
  };
  CHECK_FALSE(refused([](Timing&) {}));
  CHECK(refused([](Timing& raw) { raw.samples_us.clear(); }));
  CHECK(refused([](Timing& raw) { raw.samples_us[1] = -1; }));
  CHECK(refused([](Timing& raw) { raw.samples_us[1] = std::numeric_limits<double>::quiet_NaN(); }));
  CHECK(refused([](Timing& raw) { raw.samples_us[1] = std::numeric_limits<double>::infinity(); }));
  CHECK(refused([](Timing& raw) { raw.rounds = {1, 1}; }));
  CHECK(refused([](Timing& raw) { raw.rounds = {4, -1}; }));
  CHECK(refused([](Timing& raw) { raw.waits_us = {1}; }));
  CHECK(refused([](Timing& raw) { raw.samples_sm_mhz = {1500}; }));
  CHECK(refused([](Timing& raw) { raw.samples_sm_mhz = {1500, 0, 1500}; }));
}

}  // namespace attnbench
