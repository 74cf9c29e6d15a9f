// Whatever goes wrong while a message is heard is the end of its job and of nothing else: the child
// may have sent anything.
#include "bench/trial/judge_desk.h"

#include <algorithm>
#include <exception>
#include <new>

#include "bench/trial/output_parcel.h"
#include "bench/trial/remote_judge.h"
#include "core/error.h"
#include "core/result/read_json.h"

namespace attnbench {
namespace {

using namespace judge_message;

constexpr const char* kNotThrough =
    "E-INTERNAL: the process that ran this case ended it before everything was handed in";

Result failed(Result result, const std::string& reason) {
  result.status = Status::kError;
  result.reasons = {reason};
  result.timing.reset();
  result.throughput.reset();
  return result;
}

}  // namespace

Case& JudgeDesk::case_for(const Problem& problem) {
  // What was judged by another case is over.
  std::erase_if(open_, [&](const auto& entry) { return jobs_[entry.first].problem != &problem; });
  return go_to_case(case_, problem, {options_.num_threads, options_.should_stop},
                    judge_tools(options_));
}

void JudgeDesk::start(std::size_t job) { open_.erase(job); }

void JudgeDesk::open(std::size_t job) {
  const Job& opened = jobs_[job];
  open_.erase(job);
  OpenJob entry;
  guarded(entry, [&] {
    Case& own = case_for(*opened.problem);
    own.notices();
    entry.run = own.start(*opened.backend);
    if (options_.validate && is_probed(*opened.problem)) {
      entry.probe = std::make_unique<JobProbe>(
          probe_cases_, *opened.problem, *opened.backend,
          ReferenceOptions{options_.num_threads, options_.should_stop}, judge_tools(options_));
    }
    entry.judge = std::make_unique<CaseJudge>(opened, options_, observer_, *entry.run, speed_,
                                              entry.probe.get());
  });
  open_.insert_or_assign(job, std::move(entry));
}

void JudgeDesk::hear(std::size_t job, const Message& message, const ChildProcess& child) {
  const auto entry = open_.find(job);
  if (entry == open_.end()) return child.answer(kFailed, kNotThrough);
  OpenJob& opened = entry->second;
  Message answer{kStop, "", {}};
  if (opened.judge) guarded(opened, [&] { answer = reply(opened, jobs_[job], message); });
  if (opened.is_interrupted) return child.answer(kInterrupted, "");
  if (!opened.failure.empty()) return child.answer(kFailed, opened.failure);
  child.answer(answer.kind, answer.text);
}

Message JudgeDesk::reply(OpenJob& opened, const Job& job, const Message& message) {
  if (opened.is_interrupted || !opened.failure.empty()) return {};
  CaseJudge& judge = *opened.judge;
  const auto word = [](bool goes_on) { return Message{goes_on ? kGoOn : kStop, "", {}}; };
  switch (message.kind) {
    case kSubmit: {
      Unpacked left = unpack(message.text, message.file);
      check_form(*job.problem, left.what.run, left.output);
      return word(judge.submit(left.what, std::move(left.output)));
    }
    case kObject:
      return word(judge.object(message.text));
    case kConclude: {
      const bool is_probe = message.text == "probe";
      const bool goes_on = judge.conclude(Draw{is_probe, 0});
      if (is_probe && opened.probe) opened.probe->release();
      return word(goes_on);
    }
    case kDecide:
      return word(judge.decide(result_from_json(message.text).kernels));
    case kBegin:
      judge.begin_timing();
      return word(true);
    case kTimed:
      return word(judge.timed(result_from_json(message.text).timing.value_or(Timing{})));
    case kPrint:
      judge.add(result_from_json(message.text).fingerprint.value_or(Fingerprint{}));
      return word(true);
    case kFinish:
      opened.result = judge.finish();
      return {kStatus, std::string(to_string(opened.result->status)), {}};
  }
  fail(ErrorKind::kInternal, "no such message to the judge");
}

/// Does something about a job; an exception becomes its end.
void JudgeDesk::guarded(OpenJob& opened, const std::function<void()>& work) {
  try {
    work();
  } catch (const Interrupted&) {
    opened.is_interrupted = true;
  } catch (const Error& error) {
    opened.failure = error.full_message();
  } catch (const std::bad_alloc&) {
    opened.failure = "E-CAPACITY: out of memory";
  } catch (const std::exception& error) {
    opened.failure = std::string("E-INTERNAL: ") + error.what();
  }
}

Result JudgeDesk::close(std::size_t job, const Result& theirs) {
  const Result nothing = describe_job(jobs_[job], options_);
  const auto entry = open_.find(job);
  OpenJob opened;
  if (entry != open_.end()) opened = std::move(entry->second);
  open_.erase(job);
  const bool stopping = options_.should_stop && options_.should_stop();
  if (opened.is_interrupted || (theirs.status == Status::kSkipped && stopping)) {
    Result result = nothing;
    result.status = Status::kSkipped;
    result.reasons = {"interrupted"};
    return result;
  }
  const Result known = opened.judge ? opened.judge->abandon() : nothing;
  if (!opened.failure.empty()) return failed(known, opened.failure);
  if (theirs.status == Status::kError || theirs.status == Status::kUnsupported) {
    Result result = failed(known, kNotThrough);
    result.status = theirs.status;
    if (!theirs.reasons.empty()) result.reasons = theirs.reasons;
    return result;
  }
  if (!opened.result) return failed(known, kNotThrough);
  take_peers(jobs_[job], theirs, *opened.result);
  opened.result->run_seconds = theirs.run_seconds;
  return *std::move(opened.result);
}

/// Who took turns with it is known where they did.
void JudgeDesk::take_peers(const Job& job, const Result& theirs, Result& result) const {
  if (!result.timing || !theirs.timing) return;
  const auto is_peer = [&](const std::string& name) {
    return std::any_of(jobs_.begin(), jobs_.end(), [&](const Job& other) {
      return other.problem == job.problem && full_name(*other.backend) == name;
    });
  };
  const std::vector<std::string>& peers = theirs.timing->peers;
  if (std::all_of(peers.begin(), peers.end(), is_peer)) result.timing->peers = peers;
}

}  // namespace attnbench
