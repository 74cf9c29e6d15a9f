// The judge of a job where the case is: inputs, references and what was kept of earlier runs are in
// this process, and so is the result that it writes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/cases/case.h"
#include "bench/trial/docket.h"
#include "bench/trial/job_judge.h"
#include "bench/trial/probe_run.h"
#include "bench/trial/timed_samples.h"

namespace attnbench {

/// Draws the conclusions; CaseRun compares.
class CaseJudge final : public JobJudge {
 public:
  /// `speed`: what is known of the device once timing begins; it may say null. `probe`: of a job
  /// that is judged on the second draw too, else null. What is passed by reference must outlive the
  /// judge.
  CaseJudge(const Job& job, const BenchOptions& options, BenchObserver& observer, CaseRun& case_run,
            std::function<DeviceSpeed*()> speed, JobProbe* probe = nullptr);

  bool submit(const Submission& what, PipelineOutput&& output) override;
  bool object(const std::string& reason) override;
  bool conclude(const Draw& draw) override;
  bool decide(std::vector<KernelInfo> kernels) override;
  void begin_timing() override;
  bool timed(Timing timing) override;
  void add(const Fingerprint& print) override { result_.fingerprint = print; }
  Result finish() override;
  Result abandon() const override { return result_; }

 private:
  bool nothing_against() const { return result_.reasons.empty(); }
  void find_defects();
  void compare_repeat(PipelineOutput&& output);
  void compare_held(PipelineOutput&& output);
  void compare_edge(const std::string& where, const PipelineOutput& output);
  void compare_alone(std::int64_t request, const PipelineOutput& output);
  void judge_output();
  void judge_again();
  void judge_timed(const Submission& what, const PipelineOutput& output);
  void judge_negated(const std::string& words, const PipelineOutput& output);
  Judgement judgement_of(const PipelineOutput& output);
  void add_reasons(const PipelineOutput& output, const std::string& when);
  void find_stale_output();
  void judge_second_draw();
  void find_blind_spots();
  void save() const;
  void save_of(const CaseRun& case_run, const PipelineOutput& output) const;

  const Job& job_;
  const BenchOptions& options_;
  BenchObserver& observer_;
  CaseRun& case_run_;
  std::function<DeviceSpeed*()> speed_;
  JobProbe* probe_;
  bool is_deterministic_;
  Docket docket_;
  Result result_;
  std::string implausible_;               // why the time cannot be
  std::string other_query_;               // what was done to the inputs of `before_`
  std::optional<PipelineOutput> before_;  // of the run with another query
  std::optional<PipelineOutput> output_;  // of the run that is judged
  std::optional<PipelineOutput> second_;  // of backends whose runs may differ
  std::optional<PipelineOutput> held_;
  std::optional<PipelineOutput> on_probe_;
  std::optional<ProbeVerdict> probed_;
};

}  // namespace attnbench
