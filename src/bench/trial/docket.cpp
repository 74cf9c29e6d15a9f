// Rows of runs and the stage that each belongs to.
#include "bench/trial/docket.h"

#include <algorithm>
#include <span>

#include "core/error.h"

namespace attnbench {
namespace {

using Stage = Docket::Stage;

struct Rule {
  RunKind run;
  bool probe;
  Stage stage;
  bool JobKind::*required_for;  // null = may be left out
};

constexpr Rule kRules[] = {
    {RunKind::kOtherQuery, false, Stage::kBeforeVerdict, &JobKind::users},
    {RunKind::kJudged, false, Stage::kBeforeVerdict, &JobKind::validated},
    {RunKind::kRepeat, false, Stage::kBeforeVerdict, &JobKind::validated},
    {RunKind::kHeld, false, Stage::kBeforeVerdict, &JobKind::held},
    // Not every backend takes every request of its batches by itself.
    {RunKind::kAlone, false, Stage::kBeforeVerdict, nullptr},
    {RunKind::kJudged, true, Stage::kBeforeVerdict, &JobKind::probed},
    {RunKind::kNegated, false, Stage::kBeforeTiming, &JobKind::users},
    {RunKind::kNegated, false, Stage::kAfterTiming, &JobKind::users},
    {RunKind::kEdge, false, Stage::kBeforeTiming, nullptr},
    {RunKind::kTimed, false, Stage::kAfterTiming, &JobKind::samples},
};

bool is_repeated(RunKind run) { return run == RunKind::kTimed || run == RunKind::kEdge; }

const char* words_of(const Rule& rule) { return rule.probe ? " on the second draw" : ""; }

}  // namespace

std::span<const EnumRow<RunKind>> enum_rows(RunKind) {
  using enum RunKind;
  static constexpr auto kRows = every_value<EnumRow<RunKind>>({
      {kOtherQuery, "other query", "on other inputs, before the run that is judged"},
      {kJudged, "judged", "the run whose output and cache are judged"},
      {kRepeat, "repeat", "the same once more"},
      {kHeld, "held", "with its stream held"},
      {kAlone, "alone", "one request of the batch by itself"},
      {kNegated, "negated", "on negated inputs"},
      {kEdge, "edge", "with its buffers at edges of what is mapped"},
      {kTimed, "timed", "a timed sample"},
  });
  return kRows;
}

void Docket::add(const Submission& what) {
  const auto belongs = [&](const Rule& rule) {
    return rule.run == what.run && rule.probe == what.draw.probe && rule.stage == stage_;
  };
  const auto is_same = [&](const Submission& other) {
    return other.run == what.run && other.draw.probe == what.draw.probe &&
           (!is_repeated(what.run) || other.index == what.index);
  };
  if (std::none_of(std::begin(kRules), std::end(kRules), belongs)) {
    fail(ErrorKind::kInternal, "the output of run '{}' was handed in at the wrong time",
         to_string(what.run));
  }
  if (std::any_of(stage_runs_.begin(), stage_runs_.end(), is_same)) {
    fail(ErrorKind::kInternal, "the output of run '{}' was handed in twice", to_string(what.run));
  }
  stage_runs_.push_back(what);
}

bool Docket::has(RunKind run, bool probe) const {
  return std::any_of(stage_runs_.begin(), stage_runs_.end(), [&](const Submission& what) {
    return what.run == run && what.draw.probe == probe;
  });
}

void Docket::close(Stage stage, bool passing) {
  if (stage != stage_) {
    fail(ErrorKind::kInternal, "the stages of a job were handed in in the wrong order");
  }
  for (const Rule& rule : kRules) {
    const bool validated = kind_.validated || rule.required_for == &JobKind::samples;
    const bool required = rule.required_for != nullptr && validated && passing &&
                          rule.stage == stage && kind_.*rule.required_for;
    if (!required || has(rule.run, rule.probe)) continue;
    fail(ErrorKind::kInternal, "the output of run '{}'{} was not handed in", to_string(rule.run),
         words_of(rule));
  }
  stage_runs_.clear();
  if (stage_ != Stage::kAfterTiming) stage_ = static_cast<Stage>(static_cast<int>(stage_) + 1);
}

}  // namespace attnbench
