// Where users' backends are judged: a process in which none of their code is ever loaded. It has
// inputs and references of its own, made from problem and seed, and the CaseJudge of every job that
// is under way; what the child says of a job is an output, a sample or a name, never a verdict.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench.h"
#include "bench/cases/case.h"
#include "bench/process/child_process.h"
#include "bench/trial/case_judge.h"

namespace attnbench {

class JudgeDesk {
 public:
  /// `speed`: what is known of the device, or null. What is passed by reference must outlive
  /// the desk.
  JudgeDesk(const std::vector<Job>& jobs, const BenchOptions& options, BenchObserver& observer,
            std::function<DeviceSpeed*()> speed)
      : jobs_(jobs), options_(options), observer_(observer), speed_(std::move(speed)) {}

  /// The job starts (again): nothing is known of it.
  void start(std::size_t job);
  /// Makes its inputs; what goes wrong is said to the first message about it.
  void open(std::size_t job);
  /// Does what a message of a RemoteJudge about this job wants, and answers it.
  void hear(std::size_t job, const Message& message, const ChildProcess& child);
  /// The result of a job of which the child says `theirs`, be it through, refused or failed.
  /// Nothing that a verdict rests on is taken from there.
  Result close(std::size_t job, const Result& theirs);
  /// The child is gone, and with it every job that was under way.
  void drop_all() { open_.clear(); }

 private:
  struct OpenJob {
    std::unique_ptr<CaseRun> run;
    std::unique_ptr<JobProbe> probe;  // of a job that is judged on the second draw, else null
    std::unique_ptr<CaseJudge> judge;
    std::string failure;  // why nothing more is judged; then it is the result
    bool is_interrupted = false;
    std::optional<Result> result;
  };

  Case& case_for(const Problem& problem);
  Message reply(OpenJob& opened, const Job& job, const Message& message);
  static void guarded(OpenJob& opened, const std::function<void()>& work);
  void take_peers(const Job& job, const Result& theirs, Result& result) const;

  const std::vector<Job>& jobs_;
  const BenchOptions& options_;
  BenchObserver& observer_;
  std::function<DeviceSpeed*()> speed_;
  std::unique_ptr<Case> case_;
  ProbeCases probe_cases_;
  std::map<std::size_t, OpenJob> open_;
};

}  // namespace attnbench
