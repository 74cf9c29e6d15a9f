// One job in this process, from its inputs to its last check: the stages, their order, and what an
// exception in one of them makes of the result.
//
// The order of the runs is part of what they find. A user's backend runs first with another query,
// so that an output which it keeps is a wrong one. The run that is judged follows, from poisoned
// outputs, synchronised after each step so that a stray access is blamed on its step. Then it runs
// again and must give the same bytes, with its stream held (plugins), and one request by itself.
// Only what passed is timed, and after timing plugins run once more on negated inputs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "bench/bench.h"
#include "bench/cases/case.h"
#include "bench/loop/timing_tools.h"
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
  std::unique_ptr<CaseRun> case_run;
  std::unique_ptr<Pipeline> pipeline;
  std::unique_ptr<JobTiming> timing;
};

/// Keeps inputs, references and device for the jobs that follow. Each function is a stage of a job
/// and says whether there is a next one; where not, attempt.result is final: the job is through,
/// refused, interrupted, or failed with an exception that became its error.
class JobRunner {
 public:
  JobRunner(const BenchOptions& options, BenchObserver& observer)
      : options_(options), observer_(observer) {}

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
  void enter(Phase phase);
  bool prepare_and_check(Attempt& attempt);
  PipelineOutput run_once(Pipeline& pipeline, bool with_cache = true);
  void check(const Job& job, CaseRun& case_run, Pipeline& pipeline, Result& result);
  static void find_defects(CaseRun& case_run, const PipelineOutput& output,
                           std::vector<std::string>& reasons);
  void find_differences(Pipeline& pipeline, const PipelineOutput& output, Result& result);
  void judge_again(const Job& job, CaseRun& case_run, Pipeline& pipeline,
                   const PipelineOutput& output, Result& result);
  static void add_reasons(CaseRun& case_run, const PipelineOutput& output, const std::string& when,
                          Result& result);
  void repeat_alone(const Problem& problem, CaseRun& case_run, const PipelineOutput& output,
                    Result& result);
  static void judge(CaseRun& case_run, const PipelineOutput& output, Result& result);
  std::optional<PipelineOutput> run_with_another_query(Pipeline& pipeline);
  void check_remembered(CaseRun& case_run, Pipeline& pipeline, Result& result);
  Case& case_for(const Problem& problem);
  Ops& ops();
  TimingTools& timing_tools();

  const BenchOptions& options_;
  BenchObserver& observer_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<TimingTools> timing_tools_;
  std::unique_ptr<Case> case_;
};

}  // namespace attnbench
