// The parent's side (Shift, which follows one child to its end) and the child's (SendingObserver).
// Results travel as the JSON that result files have, so nothing is lost that a file would keep.
#include "bench/loop/isolated_jobs.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "bench/loop/child_process.h"
#include "core/result/read_json.h"
#include "core/result/write_json.h"

namespace attnbench {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

// Kinds of messages, all from child to parent; the text of a job's event is its index.
constexpr char kStarted = 'S';
constexpr char kResumed = 'T';
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
  void job_started(std::size_t index, std::size_t, const Job&) override {
    writer_.send(kStarted, std::to_string(index));
  }
  void job_resumed(std::size_t index, const Job&) override {
    writer_.send(kResumed, std::to_string(index));
  }
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

/// What became of the jobs so far.
struct Ledger {
  explicit Ledger(std::size_t count) : results(count), started(count) {}

  std::vector<std::size_t> pending() const {
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!results[i]) indices.push_back(i);
    }
    return indices;
  }

  std::vector<std::optional<Result>> results;  // by job
  std::vector<bool> started;                   // whether the observer heard of the job
};

/// Runs the pending jobs in one child, until it has done them all or one of them ended it.
class Shift {
 public:
  Shift(const std::vector<Job>& jobs, const BenchOptions& options, BenchObserver& observer,
        Ledger& ledger, const RunPending& run_pending)
      : jobs_(jobs),
        options_(options),
        observer_(observer),
        ledger_(ledger),
        pending_(ledger.pending()),
        child_([&](const MessageWriter& writer) {
          SendingObserver sender(writer);
          run_pending(pending_, sender);
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

 private:
  void progress() { last_progress_ = std::chrono::steady_clock::now(); }
  double silent_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - last_progress_).count();
  }

  void handle(const Message& message) {
    if (message.kind == kStarted) {
      start(std::stoul(message.text));
    } else if (message.kind == kResumed) {
      current_ = std::stoul(message.text);
      observer_.job_resumed(*current_, jobs_[*current_]);
    } else if (message.kind == kPhase) {
      phase_ = static_cast<Phase>(message.text.at(0));
      observer_.phase(*phase_);
    } else if (message.kind == kNotice) {
      observer_.notice(message.text);
    } else if (message.kind == kWaits) {
      kernels_[job()] = message.text;
    } else if (message.kind == kFinished) {
      finish(result_from_json(message.text));
    }
  }

  void start(std::size_t index) {
    current_ = index;
    phase_.reset();
    kernels_.erase(index);
    ledger_.started[index] = true;
    observer_.job_started(index, jobs_.size(), jobs_[index]);
  }

  void finish(Result result) {
    std::optional<Result>& place = ledger_.results[job()];
    place = std::move(result);
    current_.reset();
    has_failed_ = place->status == Status::kError;
    ++num_finished_;
    observer_.job_finished(*place);
  }

  /// The job that runs, or the next one.
  std::size_t job() const {
    if (current_) return *current_;
    const auto is_left = [this](std::size_t index) { return !ledger_.results[index]; };
    return *std::find_if(pending_.begin(), pending_.end(), is_left);
  }
  bool all_done() const { return num_finished_ == pending_.size(); }

  /// After an error the process lets go of what others had there, which may fail as well; the
  /// blame for that stays with the job that met the error.
  bool is_leaving() const { return has_failed_ && !current_; }

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
    if (all_done() || is_leaving()) {
      if (silent_s() <= kGraceSeconds) return false;
      child_.kill();
      return true;
    }
    const double limit_s = hang_limit_s();
    if (limit_s <= 0 || silent_s() <= limit_s) return false;
    child_.kill();
    failed(
        fmt::format("E-INTERNAL: time limit: no sign of life for {:.0f} s{}; its process was "
                    "ended (--hang-limit)",
                    limit_s, in_phase()));
    return true;
  }

  /// Whom a hang or a crash may be of, as the end of a clause.
  std::string last_wait() const {
    const auto kernels = kernels_.find(job());
    return kernels == kernels_.end() ? std::string()
                                     : ", where it waited last for " + kernels->second;
  }

  std::string in_phase() const {
    return phase_ ? fmt::format(" in phase '{}'{}", to_string(*phase_), last_wait())
                  : " before its first phase";
  }

  /// 0 = none: making inputs and the reference takes what it takes.
  double hang_limit_s() const {
    if (options_.hang_limit_s <= 0) return 0;
    // Before the first phase a user's backend says what it supports, which runs its code.
    if (phase_ == Phase::kRun || (current_ && !phase_)) return options_.hang_limit_s;
    const double timeout_s = jobs_[job()].problem->timing.timeout_s;
    return phase_ == Phase::kTiming ? options_.hang_limit_s + timeout_s : 0;
  }

  void ended() {
    const std::string how = child_.how_it_ended();
    const bool stopping = options_.should_stop && options_.should_stop();
    // A child may leave between two jobs (after an error it lets a fresh process go on).
    if ((how.empty() && !current_ && num_finished_ > 0) || is_leaving()) return;
    if (stopping || all_done()) return;
    failed(fmt::format("E-INTERNAL: the process that ran this case ended{}{}", in_phase(),
                       how.empty() ? "" : ": " + how));
  }

  void failed(const std::string& reason) {
    if (!current_) start(job());
    Result result = describe_job(jobs_[job()], options_);
    result.status = Status::kError;
    result.reasons = {reason};
    finish(std::move(result));
  }

  const std::vector<Job>& jobs_;
  const BenchOptions& options_;
  BenchObserver& observer_;
  Ledger& ledger_;
  const std::vector<std::size_t> pending_;  // at the start
  ChildProcess child_;
  SteadyTime last_progress_;
  std::optional<std::size_t> current_;  // the job that runs
  std::size_t num_finished_ = 0;
  bool has_failed_ = false;  // the job that finished last
  std::optional<Phase> phase_;
  std::map<std::size_t, std::string> kernels_;  // that each job waited for last
  bool told_to_stop_ = false;
};

}  // namespace

std::vector<Result> run_isolated(const std::vector<Job>& jobs, const BenchOptions& options,
                                 BenchObserver& observer, const RunPending& run_pending) {
  Ledger ledger(jobs.size());
  const auto stopped = [&] { return options.should_stop && options.should_stop(); };
  while (!ledger.pending().empty() && !stopped()) {
    Shift(jobs, options, observer, ledger, run_pending).run();
  }
  for (const std::size_t index : ledger.pending()) {
    if (ledger.started[index]) {
      observer.job_resumed(index, jobs[index]);
    } else {
      observer.job_started(index, jobs.size(), jobs[index]);
    }
    Result& result = ledger.results[index].emplace(describe_job(jobs[index], options));
    result.status = Status::kSkipped;
    result.reasons = {"interrupted"};
    observer.job_finished(result);
  }
  std::vector<Result> results;
  for (std::optional<Result>& result : ledger.results) results.push_back(*std::move(result));
  return results;
}

}  // namespace attnbench
