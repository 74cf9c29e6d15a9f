// A judge in another process, as the loop sees it.
//
// RemoteJudge is where the backend's code is: it hands everything on and knows nothing of what is
// expected. JudgeDesk (judge_desk.h) is at the other end.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/process/child_process.h"
#include "bench/trial/job_judge.h"

namespace attnbench {

/// Kinds of messages about the job that runs, from child to parent. Each is answered.
namespace judge_message {
constexpr char kSubmit = 'j';    // a parcel
constexpr char kObject = 'o';    // a reason
constexpr char kConclude = 'c';  // nothing, or "probe"
constexpr char kDecide = 'd';    // a Result as JSON, for its kernels
constexpr char kBegin = 'b';
constexpr char kTimed = 'm';  // a Result as JSON, for its timing
constexpr char kPrint = 'g';  // a Result as JSON, for its fingerprint
constexpr char kFinish = 'e';
/// Answers.
constexpr char kGoOn = 'y';
constexpr char kStop = 'n';
constexpr char kInterrupted = 'i';
constexpr char kFailed = 'x';  // why
constexpr char kStatus = 's';  // to kFinish: its name
}  // namespace judge_message

/// Whether a message is one of a RemoteJudge.
bool is_for_judge(char kind);

/// What a judge in another process could not go on with; ends the job.
class JudgeFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class RemoteJudge final : public JobJudge {
 public:
  /// What is passed by reference must outlive the judge.
  RemoteJudge(const Job& job, const BenchOptions& options, ParentLink& link)
      : job_(job), options_(options), link_(link) {}

  bool submit(const Submission& what, PipelineOutput&& output) override;
  bool object(const std::string& reason) override;
  bool conclude(const Draw& draw) override;
  bool decide(std::vector<KernelInfo> kernels) override;
  void begin_timing() override;
  bool timed(Timing timing) override;
  void add(const Fingerprint& print) override;
  /// Identity and status; timing as it was handed in, where the status has one.
  Result finish() override;
  Result abandon() const override { return describe_job(job_, options_); }

 private:
  /// Waits for what the judge says. Errors: JudgeFailure with its words.
  Message tell(char kind, const std::string& text, int file = -1);
  bool goes_on(char kind, const std::string& text, int file = -1);

  const Job& job_;
  const BenchOptions& options_;
  ParentLink& link_;
  Timing timing_;
};

}  // namespace attnbench
