#include "bench/isolated_jobs.h"

#include <fmt/core.h>

#include <chrono>
#include <csignal>
#include <string>

#include "bench/child_process.h"
#include "core/result_json.h"

namespace attnbench {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

constexpr char kStarted = 'S';
constexpr char kPhase = 'P';
constexpr char kNotice = 'N';
constexpr char kWaits = 'W';
constexpr char kFinished = 'R';
constexpr int kPollMs = 50;
/// What a child may still take to end its job after an interrupt, and itself after its last job.
constexpr double kGraceSeconds = 10;

/// Sends everything that happens to the parent.
class SendingObserver final : public BenchObserver {
 public:
  explicit SendingObserver(const MessageWriter& writer) : writer_(writer) {}
  void job_started(std::size_t, std::size_t, const Job&) override { writer_.send(kStarted, ""); }
  void phase(Phase phase) override {
    writer_.send(kPhase, std::string(1, static_cast<char>(phase)));
  }
  void notice(const std::string& text) override { writer_.send(kNotice, text); }
  void waits_for(const std::string& kernels) override { writer_.send(kWaits, kernels); }
  void job_finished(const Result& result) override {
    writer_.send(kFinished, result_to_json(result));
  }

 private:
  const MessageWriter& writer_;
};

/// Runs the jobs from one on in one child, until it has done them all or one of them ended it.
class Shift {
 public:
  Shift(const std::vector<Job>& jobs, const BenchOptions& options, BenchObserver& observer,
        std::vector<Result>& results, const RunFrom& run_from)
      : jobs_(jobs),
        options_(options),
        observer_(observer),
        results_(results),
        child_([&, first = results.size()](const MessageWriter& writer) {
          SendingObserver sender(writer);
          run_from(jobs, first, options, sender);
        }) {
    progress();
  }

  void run() {
    Message message;
    for (;;) {
      switch (child_.read(message, kPollMs)) {
        case ChildProcess::Read::kMessage:
          handle(message);
          progress();
          break;
        case ChildProcess::Read::kNothingYet:
          if (give_up()) return;
          break;
        case ChildProcess::Read::kEnded:
          return ended();
      }
    }
  }

  /// After run(): whether a job was started that has no result.
  bool in_a_job() const { return started_; }

 private:
  void progress() { last_progress_ = std::chrono::steady_clock::now(); }
  double silent_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - last_progress_).count();
  }

  void handle(const Message& message) {
    if (message.kind == kStarted) {
      started_ = true;
      phase_.reset();
      kernels_.clear();
      observer_.job_started(results_.size(), jobs_.size(), jobs_[results_.size()]);
    } else if (message.kind == kPhase) {
      phase_ = static_cast<Phase>(message.text.at(0));
      observer_.phase(*phase_);
    } else if (message.kind == kNotice) {
      observer_.notice(message.text);
    } else if (message.kind == kWaits) {
      kernels_ = message.text;
    } else if (message.kind == kFinished) {
      started_ = false;
      results_.push_back(result_from_json(message.text));
      observer_.job_finished(results_.back());
    }
  }

  /// Whether the child was killed because it hangs, or does not end after an interrupt.
  bool give_up() {
    if (options_.should_stop && options_.should_stop()) {
      if (!told_to_stop_) {
        child_.signal(SIGTERM);
        told_to_stop_ = true;
        progress();
      } else if (silent_s() > kGraceSeconds) {
        child_.kill();
        return true;
      }
      return false;
    }
    if (results_.size() == jobs_.size()) {
      if (silent_s() <= kGraceSeconds) return false;
      child_.kill();
      return true;
    }
    const double limit_s = hang_limit_s();
    if (limit_s <= 0 || silent_s() <= limit_s) return false;
    child_.kill();
    failed(
        fmt::format("E-INTERNAL: time limit: no sign of life for {:.0f} s{}; its process was "
                    "ended",
                    limit_s, in_phase()));
    return true;
  }

  /// Whom a hang or a crash may be of, as the end of a clause.
  std::string last_wait() const {
    return kernels_.empty() ? std::string() : ", where it waited last for " + kernels_;
  }

  std::string in_phase() const {
    return phase_ ? fmt::format(" in phase '{}'{}", to_string(*phase_), last_wait())
                  : " before its first phase";
  }

  /// 0 = none: making inputs and the reference takes what it takes.
  double hang_limit_s() const {
    if (options_.hang_limit_s <= 0) return 0;
    // Before the first phase a user's backend is asked what it supports.
    if (phase_ == Phase::kRun || (started_ && !phase_)) return options_.hang_limit_s;
    const double timeout_s = jobs_[results_.size()].problem->timing.timeout_s;
    return phase_ == Phase::kTiming ? options_.hang_limit_s + timeout_s : 0;
  }

  void ended() {
    const std::string how = child_.how_it_ended();
    const bool stopping = options_.should_stop && options_.should_stop();
    // A child may leave between two jobs (after an error it lets a fresh process go on).
    if (how.empty() && !started_ && results_.size() > first_) return;
    if (stopping || results_.size() == jobs_.size()) return;
    failed(fmt::format("E-INTERNAL: the process that ran this case ended{}{}", in_phase(),
                       how.empty() ? "" : ": " + how));
  }

  void failed(const std::string& reason) {
    const Job& job = jobs_[results_.size()];
    if (!started_) observer_.job_started(results_.size(), jobs_.size(), job);
    Result result = describe_job(job, options_);
    result.status = Status::kError;
    result.reasons = {reason};
    results_.push_back(std::move(result));
    started_ = false;
    observer_.job_finished(results_.back());
  }

  const std::vector<Job>& jobs_;
  const BenchOptions& options_;
  BenchObserver& observer_;
  std::vector<Result>& results_;
  const std::size_t first_ = results_.size();
  ChildProcess child_;
  SteadyTime last_progress_;
  std::optional<Phase> phase_;
  std::string kernels_;  // that the job waited for last
  bool started_ = false;
  bool told_to_stop_ = false;
};

}  // namespace

std::vector<Result> run_isolated(const std::vector<Job>& jobs, const BenchOptions& options,
                                 BenchObserver& observer, const RunFrom& run_from) {
  std::vector<Result> results;
  results.reserve(jobs.size());
  const auto stopped = [&] { return options.should_stop && options.should_stop(); };
  bool announced = false;  // the interrupted job was started
  while (results.size() < jobs.size() && !stopped()) {
    Shift shift(jobs, options, observer, results, run_from);
    shift.run();
    announced = shift.in_a_job();
  }
  for (; results.size() < jobs.size(); announced = false) {
    const Job& job = jobs[results.size()];
    if (!announced) observer.job_started(results.size(), jobs.size(), job);
    results.push_back(describe_job(job, options));
    results.back().status = Status::kSkipped;
    results.back().reasons = {"interrupted"};
    observer.job_finished(results.back());
  }
  return results;
}

}  // namespace attnbench
