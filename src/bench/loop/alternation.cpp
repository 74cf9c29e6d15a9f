// A group of jobs that take turns. Whenever a member fails it leaves the group with its result;
// want of memory breaks the group up, because the others may be what it wanted room beside, and
// those that have no result yet start anew.
#include "bench/loop/alternation.h"

#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <string>
#include <utility>

#include "measure/measure.h"

namespace attnbench {
namespace {

struct Member {
  Member(std::size_t job_index, const Job& job) : index(job_index), attempt(job) {}
  std::size_t index;
  Attempt attempt;
};

class Group {
 public:
  Group(JobRunner& runner, const std::vector<Job>& jobs, const std::vector<std::size_t>& indices,
        const BenchOptions& options, BenchObserver& observer, const JobDone& done)
      : runner_(runner),
        jobs_(jobs),
        left_(indices),
        options_(options),
        observer_(observer),
        done_(done) {}

  bool run() {
    do {
      again_ = false;
      if (left_.size() > 1) take_turns();
    } while (again_);
    if (!leave_) one_by_one();
    return !leave_;
  }

 private:
  /// Ends early where the group has to break up: members_ is empty then.
  void take_turns() {
    for (const std::size_t index : std::vector<std::size_t>(left_)) {
      observer_.job_started(index, jobs_.size(), jobs_[index]);
      Member& member = members_.emplace_back(index, jobs_[index]);
      if (!runner_.begin(member.attempt) && !goes_on_without(member)) return;
    }
    const int rounds = num_rounds();
    for (Member* member : members_from(0)) {
      resume(*member);
      if (!runner_.plan_timing(member->attempt, rounds) && !goes_on_without(*member)) return;
    }
    for (int round = 0; round < rounds; ++round) {
      // Rounds go on counting from pass to pass.
      for (Member* member :
           members_from(static_cast<std::size_t>(options_.pass * rounds + round))) {
        resume(*member);
        if (!runner_.take_round(member->attempt) && !goes_on_without(*member)) return;
      }
    }
    finish_all();
  }

  void finish_all() {
    std::vector<std::string> peers;
    for (const Member& member : members_) peers.push_back(member.attempt.result.backend);
    for (Member* member : members_from(0)) {
      resume(*member);
      runner_.finish(member->attempt);
      Result& result = member->attempt.result;
      if (result.timing && peers.size() > 1) result.timing->peers = peers;
      if (!goes_on_without(*member)) return;
    }
  }

  /// A round without a sample is none.
  int num_rounds() const {
    if (members_.size() < 2) return 1;
    const TimingSpec spec =
        pass_share(members_.front().attempt.job->problem->timing, options_.pass, options_.passes);
    return std::min(spec.rounds, spec.samples.value_or(spec.rounds));
  }

  /// The members in their order, starting with number `first`, counted round and round.
  std::vector<Member*> members_from(std::size_t first) {
    std::vector<Member*> order;
    for (Member& member : members_) order.push_back(&member);
    if (!order.empty()) {
      const auto start = static_cast<std::ptrdiff_t>(first % order.size());
      std::rotate(order.begin(), order.begin() + start, order.end());
    }
    return order;
  }

  void resume(const Member& member) { observer_.job_resumed(member.index, jobs_[member.index]); }

  /// Delivers the result of a member that is through. False: the group breaks up.
  bool goes_on_without(Member& member) {
    Attempt& attempt = member.attempt;
    const std::size_t index = member.index;
    const bool is_crowded = attempt.may_lack_memory && members_.size() > 1;
    if (is_crowded || runner_.stopped()) {
      const std::vector<std::string> reasons = attempt.result.reasons;
      members_.clear();
      if (is_crowded) run_alone(index, reasons.front());
      return false;
    }
    Result result = std::move(attempt.result);
    members_.remove_if([&](const Member& other) { return &other == &member; });
    deliver(index, std::move(result));
    if (leave_) members_.clear();
    return !leave_;
  }

  /// Whether the others left it no room shows when they are gone. They take their turns without it.
  void run_alone(std::size_t index, const std::string& reason) {
    observer_.job_started(index, jobs_.size(), jobs_[index]);
    Result result = runner_.run(jobs_[index]);
    if (result.status != Status::kError && result.status != Status::kSkipped) {
      observer_.notice(fmt::format(
          "{}: does not fit into memory beside the other backends, so it was timed alone ({})",
          jobs_[index].id, reason));
    }
    deliver(index, std::move(result));
    again_ = !leave_;
  }

  void one_by_one() {
    for (const std::size_t index : std::vector<std::size_t>(left_)) {
      observer_.job_started(index, jobs_.size(), jobs_[index]);
      deliver(index, runner_.run(jobs_[index]));
      if (leave_) return;
    }
  }

  void deliver(std::size_t index, Result&& result) {
    leave_ = options_.isolate && spoils_its_process(jobs_[index], result.status);
    std::erase(left_, index);
    observer_.job_finished(result);
    done_(index, std::move(result));
  }

  JobRunner& runner_;
  const std::vector<Job>& jobs_;
  std::vector<std::size_t> left_;  // jobs without a result
  const BenchOptions& options_;
  BenchObserver& observer_;
  const JobDone& done_;
  std::list<Member> members_;  // those that are prepared
  bool leave_ = false;
  bool again_ = false;  // the others are to take turns without one that was run by itself
};

}  // namespace

bool run_group(JobRunner& runner, const std::vector<Job>& jobs,
               const std::vector<std::size_t>& group, const BenchOptions& options,
               BenchObserver& observer, const JobDone& done) {
  return Group(runner, jobs, group, options, observer, done).run();
}

}  // namespace attnbench
