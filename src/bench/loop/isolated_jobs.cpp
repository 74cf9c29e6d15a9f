// The parent's side (Shift, which follows one child to its end) and the child's (SendingObserver).
// Results travel as the JSON that result files have, so nothing is lost that a file would keep. A
// child may say anything: what cannot be read, or is of a job that it was not given, ends it.
#include "bench/loop/isolated_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "bench/process/child_process.h"
#include "bench/process/fork_server.h"
#include "bench/ranks/rank_board.h"
#include "bench/ranks/ranked_backend.h"
#include "bench/trial/judge_desk.h"
#include "bench/trial/remote_judge.h"
#include "core/error.h"
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
  explicit SendingObserver(const ParentLink& link) : link_(link) {}
  void job_started(std::size_t index, std::size_t, const Job&) override {
    link_.send(kStarted, std::to_string(index));
  }
  void job_resumed(std::size_t index, const Job&) override {
    link_.send(kResumed, std::to_string(index));
  }
  void phase(Phase phase) override { link_.send(kPhase, std::string(1, static_cast<char>(phase))); }
  void notice(const std::string& text) override { link_.send(kNotice, text); }
  void waits_for(const std::string& kernels) override { link_.send(kWaits, kernels); }
  void job_finished(const Result& result) override {
    link_.send(kFinished, result_to_json(result));
  }

 private:
  const ParentLink& link_;
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
  /// `desk`: who judges; null = the child itself.
  Shift(const std::vector<Job>& jobs, const BenchOptions& options, BenchObserver& observer,
        Ledger& ledger, ForkServer::Child child, JudgeDesk* desk)
      : jobs_(jobs),
        options_(options),
        observer_(observer),
        ledger_(ledger),
        desk_(desk),
        pending_(ledger.pending()),
        child_(child.pid, std::move(child.socket)) {
    progress();
  }

  void run() {
    Message message;
    for (;;) {
      switch (child_.read(message, kPollMs)) {
        case ChildProcess::Read::kMessage:
          if (!understand(message)) return;
          if (message.kind != kNotice) progress();
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

  /// False: the child sent what no child of ours sends, and was ended.
  bool understand(const Message& message) {
    try {
      handle(message);
      return true;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kFormat) throw;
      child_.kill();
      // What was said in between is of a job that is over; the next one has a fresh child.
      if (all_done() || (!current_ && num_finished_ > 0)) return false;
      failed(fmt::format("E-INTERNAL: the process that ran this case sent what makes no sense: {}",
                         error.what()));
      return false;
    }
  }

  static void expect(bool holds, const char* what) {
    if (!holds) fail(ErrorKind::kFormat, "{}", what);
  }

  void handle(const Message& message) {
    if (message.kind == kStarted) {
      start(pending_index(message.text));
    } else if (message.kind == kResumed) {
      resume(pending_index(message.text));
    } else if (message.kind == kPhase) {
      enter(message.text);
    } else if (message.kind == kNotice) {
      observer_.notice(message.text);
    } else if (message.kind == kWaits) {
      expect(!all_done(), "a wait of no job");
      kernels_[job()] = message.text;
    } else if (message.kind == kFinished) {
      expect(current_.has_value(), "a result of no job");
      const Result theirs = result_from_json(message.text);
      finish(desk_ == nullptr ? theirs : desk_->close(*current_, theirs));
    } else {
      expect(desk_ != nullptr && is_for_judge(message.kind), "a message of no kind");
      expect(current_.has_value(), "an output of no job");
      desk_->hear(*current_, message, child_);
    }
  }

  /// The job that a message names. It is one of this child's.
  std::size_t pending_index(const std::string& text) const {
    for (const std::size_t index : pending_) {
      if (std::to_string(index) == text && !ledger_.results[index]) return index;
    }
    fail(ErrorKind::kFormat, "a job that it was not given");
  }

  void resume(std::size_t index) {
    current_ = index;
    observer_.job_resumed(index, jobs_[index]);
  }

  void enter(const std::string& name) {
    const auto value = name.size() == 1 ? static_cast<std::size_t>(name[0]) : std::string::npos;
    expect(current_ && value < enum_rows(Phase{}).size(), "a phase that there is none");
    phase_ = static_cast<Phase>(value);
    observer_.phase(*phase_);
    // Both make their inputs at the same time.
    if (desk_ != nullptr && *phase_ == Phase::kInputs) desk_->open(*current_);
    // What a user's backend says it supports, it has said.
    if (*phase_ == Phase::kInputs) kernels_.erase(*current_);
  }

  void start(std::size_t index) {
    current_ = index;
    if (desk_ != nullptr) desk_->start(index);
    phase_.reset();
    kernels_.erase(index);
    ledger_.started[index] = true;
    observer_.job_started(index, jobs_.size(), jobs_[index]);
  }

  void finish(Result result) {
    const std::size_t finished = job();
    std::optional<Result>& place = ledger_.results[finished];
    place = std::move(result);
    current_.reset();
    has_failed_ = spoils_its_process(jobs_[finished], place->status);
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
        fmt::format("E-INTERNAL: {}time limit: no progress for {:.0f} s{}; killed (--hang-limit)",
                    whose(), limit_s, in_phase()));
    return true;
  }

  /// Whom a hang or a crash may be of, as the end of a clause.
  std::string last_wait() const {
    const auto kernels = kernels_.find(job());
    return kernels == kernels_.end() ? std::string() : ", waiting for " + kernels->second;
  }

  /// Of several ranks, the process is the first, unless all are its threads.
  std::string whose() const {
    if (!has_real_ranks(*jobs_[job()].problem)) return "";
    const std::string culprits = ranks_ == nullptr ? "" : ranks_->culprits();
    return culprits.empty() ? "rank 0: " : culprits + ": ";
  }

  std::string in_phase() const {
    if (!phase_) return " before its first phase" + last_wait();
    const std::string of_ranks = ranks_ == nullptr ? "" : ranks_->phases();
    return fmt::format(" in phase '{}'{}{}", to_string(*phase_), last_wait(),
                       of_ranks.empty() ? "" : " (" + of_ranks + ")");
  }

  /// 0 = none: making inputs and the reference takes what it takes.
  double hang_limit_s() const {
    if (options_.hang_limit_s <= 0) return 0;
    // Before the first phase a user's backend says what it supports, which runs its code.
    if (phase_ == Phase::kRun || (current_ && !phase_)) return options_.hang_limit_s;
    // What is judged here keeps the child waiting, and none of the time counts.
    if (phase_ == Phase::kReference && desk_ != nullptr) return options_.hang_limit_s;
    const double timeout_s = jobs_[job()].problem->timing.timeout_s;
    return phase_ == Phase::kTiming ? options_.hang_limit_s + timeout_s : 0;
  }

  void ended() {
    const std::string how = child_.how_it_ended();
    const bool stopping = options_.should_stop && options_.should_stop();
    // A child may leave between two jobs (after an error it lets a fresh process go on).
    if ((how.empty() && !current_ && num_finished_ > 0) || is_leaving()) return;
    if (stopping || all_done()) return;
    failed(fmt::format("E-INTERNAL: {}the process that ran this case ended{}{}", whose(),
                       in_phase(), how.empty() ? "" : ": " + how));
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
  JudgeDesk* desk_;
  const std::vector<std::size_t> pending_;  // at the start
  ChildProcess child_;
  SteadyTime last_progress_;
  std::optional<std::size_t> current_;  // the job that runs
  std::size_t num_finished_ = 0;
  bool has_failed_ = false;  // the job that finished last
  std::optional<Phase> phase_;
  std::map<std::size_t, std::string> kernels_;  // that each job waited for last
  bool told_to_stop_ = false;
  RankBoard* ranks_ = RankBoard::shared();  // those that are threads of the child
};

/// Indices as a child is given them.
std::string order_of(const std::vector<std::size_t>& indices) {
  return fmt::format("{}", fmt::join(indices, " "));
}
std::vector<std::size_t> indices_of(const std::string& order) {
  std::vector<std::size_t> indices;
  std::istringstream words(order);
  for (std::size_t index = 0; words >> index;) indices.push_back(index);
  return indices;
}

/// The device's speed, measured by this process when it is first wanted.
class ParentsDevice {
 public:
  ParentsDevice(const BenchOptions& options, BenchObserver& observer)
      : options_(options), observer_(observer) {}

  /// Null, with a notice, where this process cannot have the device beside the child.
  DeviceSpeed* speed() {
    if (failed_) return nullptr;
    try {
      if (!ops_) ops_ = open_device(options_);
      if (!tools_) tools_ = make_tools(options_, *ops_);
      return tools_.get();
    } catch (const Error& error) {
      failed_ = true;
      observer_.notice(
          fmt::format("the ceilings of {} were not measured: {}", options_.device, error.what()));
      return nullptr;
    }
  }

 private:
  const BenchOptions& options_;
  BenchObserver& observer_;
  bool failed_ = false;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<TimingTools> tools_;
};

}  // namespace

std::vector<Result> run_isolated(const std::vector<Job>& jobs, const BenchOptions& options,
                                 BenchObserver& observer, const RunPending& run_pending) {
  Ledger ledger(jobs.size());
  const bool is_apart =
      std::any_of(jobs.begin(), jobs.end(), [](const Job& job) { return job.backend->is_users(); });
  RankBoard* const ranks = RankBoard::shared();  // children are to share it
  ForkServer server([&](const std::string& order, ParentLink& link) {
    SendingObserver sender(link);
    MakeJudge make_judge;
    if (is_apart) {
      make_judge = [&](const Job& job) {
        return std::make_unique<RemoteJudge>(job, options, link);
      };
    }
    run_pending(indices_of(order), sender, make_judge);
  });
  ParentsDevice device(options, observer);
  JudgeDesk desk(jobs, options, observer, [&] { return device.speed(); });
  const auto stopped = [&] { return options.should_stop && options.should_stop(); };
  while (!ledger.pending().empty() && !stopped()) {
    desk.drop_all();
    if (ranks != nullptr) ranks->close();  // of a child that is gone
    Shift(jobs, options, observer, ledger, server.fork_child(order_of(ledger.pending())),
          is_apart ? &desk : nullptr)
        .run();
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
