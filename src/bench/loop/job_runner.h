// One job in this process, from its inputs to its last run: the stages, their order, and what an
// exception in one of them makes of the result. What the runs left is handed to the job's judge
// (trial/job_judge.h), which may be in another process.
//
// The order of the runs is part of what they find. A user's backend runs first with another query,
// so that an output which it keeps is a wrong one. The run that is judged follows, from poisoned
// outputs, synchronised after each step so that a stray access is blamed on its step. Then it runs
// again and must give the same bytes, with its stream held (plugins), and one request by itself.
// All of it begins with a pipeline on the values of the probe (trial/probe_run.h), which is judged
// and gone before the one that is timed is made.
// Only what passed is timed, and after timing plugins run once more on negated inputs.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "backends/backend.h"
#include "bench/bench.h"
#include "bench/cases/case.h"
#include "bench/loop/kept_settings.h"
#include "bench/loop/phase_times.h"
#include "bench/loop/timing_tools.h"
#include "bench/trial/job_judge.h"
#include "bench/trial/probe_run.h"
#include "core/problem/problem.h"
#include "core/result/result.h"
#include "ops/ops.h"

namespace attnbench {

/// A job that was begun. What is declared later is destroyed first.
struct Attempt {
  explicit Attempt(const Job& what) : job(&what) {}

  const Job* job;
  Result result;
  /// Why result is an error: too little memory, or what a user's library says, which may be the
  /// same.
  bool may_lack_memory = false;
  std::unique_ptr<KeptSettings> settings;
  std::unique_ptr<CaseRun> case_run;
  std::unique_ptr<JobProbe> probe;  // null where there is no second draw
  std::unique_ptr<JobJudge> judge;
  std::unique_ptr<Pipeline> pipeline;
  std::unique_ptr<JobTiming> timing;
  PhaseTimes times;
};

/// Makes the judge of a job that is judged elsewhere.
using MakeJudge = std::function<std::unique_ptr<JobJudge>(const Job& job)>;

/// Keeps inputs, references and device for the jobs that follow. Each function is a stage of a job
/// and says whether there is a next one; where not, attempt.result is final: the job is through,
/// refused, interrupted, or failed with an exception that became its error.
class JobRunner {
 public:
  /// `make_judge`: empty = the runner's own process judges.
  JobRunner(const BenchOptions& options, BenchObserver& observer, MakeJudge make_judge = {})
      : options_(options), observer_(observer), make_judge_(std::move(make_judge)) {}

  /// All stages.
  Result run(const Job& job);

  /// Inputs, preparation and validation; true: to be timed.
  bool begin(Attempt& attempt);
  /// Readies attempt.timing.
  bool plan_timing(Attempt& attempt, int rounds);
  bool take_round(Attempt& attempt);
  /// Figures and what is checked after the last run. Nothing follows.
  void finish(Attempt& attempt);

  bool stopped() const { return options_.should_stop && options_.should_stop(); }

 private:
  template <typename Work>
  bool guarded(Attempt& attempt, const Work& work);
  template <typename Work>
  bool without_exceptions(Attempt& attempt, const Work& work);
  void enter(Attempt& attempt, Phase phase);
  void take_fingerprint(Attempt& attempt);
  bool hand_in_samples(Attempt& attempt);
  bool prepare_and_check(Attempt& attempt);
  std::unique_ptr<JobJudge> judge_of(const Attempt& attempt);
  void run_probe(Attempt& attempt);
  PipelineOutput run_once(Pipeline& pipeline, bool with_cache = true);
  void check(Attempt& attempt);
  void run_with_another_query(JobJudge& judge, Pipeline& pipeline);
  void run_again(Attempt& attempt);
  bool run_negated(JobJudge& judge, Pipeline& pipeline);
  void check_edges(Attempt& attempt);
  Case& case_for(const Problem& problem);
  Ops& ops();
  TimingTools& timing_tools();

  const BenchOptions& options_;
  BenchObserver& observer_;
  MakeJudge make_judge_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<TimingTools> timing_tools_;
  std::unique_ptr<Case> case_;
  ProbeCases probe_cases_;
};

}  // namespace attnbench
