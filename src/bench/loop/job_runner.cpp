// Validation reads from prepare_and_check() down: refusals, inputs, runs; check() has their order.
#include "bench/loop/job_runner.h"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "backends/users_pipeline.h"
#include "bench/loop/edge_run.h"
#include "bench/loop/stream_check.h"
#include "bench/studies/fingerprint.h"
#include "bench/trial/case_judge.h"
#include "bench/trial/remote_judge.h"
#include "core/error.h"

namespace attnbench {
namespace {

void set_error(Attempt& attempt, const std::string& message, bool may_lack_memory = false) {
  if (attempt.judge) attempt.result = attempt.judge->abandon();
  attempt.result.status = Status::kError;
  attempt.result.reasons = {message};
  attempt.result.timing.reset();
  attempt.result.throughput.reset();
  attempt.may_lack_memory = may_lack_memory;
}

}  // namespace

Result JobRunner::run(const Job& job) {
  Attempt attempt(job);
  if (begin(attempt) && plan_timing(attempt, 1) && take_round(attempt)) finish(attempt);
  return std::move(attempt.result);
}

bool JobRunner::begin(Attempt& attempt) {
  attempt.result = describe_job(*attempt.job, options_);
  return guarded(attempt, [&] {
    if (stopped()) throw Interrupted{};
    return prepare_and_check(attempt);
  });
}

bool JobRunner::plan_timing(Attempt& attempt, int rounds) {
  return guarded(attempt, [&] {
    enter(attempt, Phase::kTiming);
    attempt.judge->begin_timing();
    attempt.timing = std::make_unique<JobTiming>(*attempt.job->problem, *attempt.pipeline,
                                                 timing_tools(), options_, rounds);
    return true;
  });
}

bool JobRunner::take_round(Attempt& attempt) {
  return guarded(attempt, [&] {
    attempt.timing->take_round();
    ops().synchronize();
    if (stopped()) throw Interrupted{};
    return true;
  });
}

void JobRunner::finish(Attempt& attempt) {
  guarded(attempt, [&] {
    if (attempt.timing) {
      Timing timing = attempt.timing->finish();
      ops().synchronize();
      if (stopped()) throw Interrupted{};
      attempt.judge->timed(std::move(timing));
      const bool goes_on = hand_in_samples(attempt);
      if (goes_on && options_.validate) run_negated(*attempt.judge, *attempt.pipeline);
    }
    take_fingerprint(attempt);
    UsersPipeline* plugin = attempt.pipeline ? attempt.pipeline->users() : nullptr;
    // Why another phase: destroy() is no sample, and does not have their time.
    if (plugin != nullptr && attempt.timing) enter(attempt, Phase::kRun);
    if (plugin != nullptr) plugin->finish();
    attempt.result = attempt.judge->finish();
    return false;
  });
}

/// By pipelines of its own; the one of the case is not touched.
void JobRunner::take_fingerprint(Attempt& attempt) {
  const Job& job = *attempt.job;
  if (!options_.fingerprint || !why_no_fingerprint(*job.problem).empty()) return;
  const Fingerprint print =
      attnbench::take_fingerprint(*job.problem, *job.backend, ops(), options_.device_facts,
                                  {options_.num_threads, options_.should_stop});
  observer_.notice(job.id + ": " + describe_fingerprint(print));
  attempt.judge->add(print);
}

/// Without validation only what they show by themselves.
bool JobRunner::hand_in_samples(Attempt& attempt) {
  JobJudge& judge = *attempt.judge;
  const std::string problem = attempt.timing->sample_problem();
  if (!problem.empty()) return judge.object(problem);
  if (!options_.validate && !options_.judge_samples) return true;
  for (TimedSample& sample : attempt.timing->take_samples()) {
    const bool goes_on = judge.submit({RunKind::kTimed, {false, sample.nonce}, sample.number, {}},
                                      std::move(sample.output));
    if (!goes_on) return false;
  }
  return true;
}

/// Does a stage and keeps its time; an exception becomes the end of the job.
template <typename Work>
bool JobRunner::guarded(Attempt& attempt, const Work& work) {
  attempt.times.resume();
  const bool goes_on = without_exceptions(attempt, work);
  attempt.times.pause();
  if (attempt.result.status != Status::kSkipped) {
    attempt.result.run_seconds = attempt.times.seconds();
  }
  return goes_on;
}

template <typename Work>
bool JobRunner::without_exceptions(Attempt& attempt, const Work& work) {
  try {
    return work();
  } catch (const Interrupted&) {
    attempt.result = describe_job(*attempt.job, options_);
    attempt.result.status = Status::kSkipped;
    attempt.result.reasons = {"interrupted"};
  } catch (const Error& error) {
    set_error(attempt, error.full_message(), error.kind() == ErrorKind::kCapacity);
    if (error.kind() == ErrorKind::kUnsupported) {
      attempt.result.status = Status::kUnsupported;
      attempt.result.reasons = {error.what()};
    }
  } catch (const JudgeFailure& failure) {
    set_error(attempt, failure.what(), std::string_view(failure.what()).starts_with("E-CAPACITY"));
  } catch (const BackendFailure& failure) {
    set_error(attempt, failure.what(), true);
  } catch (const std::bad_alloc&) {
    set_error(attempt, "E-CAPACITY: out of memory", true);
  } catch (const std::exception& error) {
    set_error(attempt, std::string("E-INTERNAL: ") + error.what());
  }
  return false;
}

void JobRunner::enter(Attempt& attempt, Phase phase) {
  if (stopped()) throw Interrupted{};
  attempt.times.enter(phase);
  observer_.phase(phase);
}

bool JobRunner::prepare_and_check(Attempt& attempt) {
  const Job& job = *attempt.job;
  Result& result = attempt.result;
  result.reasons = job.extra_refusals;
  // Before a user's code runs in this process, be it to say what it supports: it could move what
  // its time is held against.
  const bool is_users_here = !make_judge_ && job.backend->is_users();
  if (result.reasons.empty() && options_.timing && is_users_here) {
    timing_tools().ceilings(*job.problem, *job.backend);
  }
  if (job.backend->is_users()) {
    observer_.waits_for(fmt::format("the loading of {}", job.backend->name()));
    job.backend->load();
    observer_.waits_for(fmt::format("supports() of {}", job.backend->name()));
  }
  for (std::string& reason : job.backend->refusals(*job.problem, options_.device_facts)) {
    result.reasons.push_back(std::move(reason));
  }
  if (!result.reasons.empty()) {
    result.status = Status::kUnsupported;
    return false;
  }
  enter(attempt, Phase::kInputs);
  attempt.case_run = case_for(*job.problem).start(*job.backend);
  if (options_.validate && is_probed(*job.problem)) {
    attempt.probe = std::make_unique<JobProbe>(
        probe_cases_, *job.problem, *job.backend,
        ReferenceOptions{options_.num_threads, options_.should_stop}, judge_tools(options_));
  }
  attempt.judge = judge_of(attempt);
  if (attempt.probe) run_probe(attempt);
  enter(attempt, Phase::kRun);
  attempt.settings = std::make_unique<KeptSettings>(ops());
  attempt.pipeline = attempt.case_run->prepare(ops());
  if (const std::string changes = attempt.settings->changes(); !changes.empty()) {
    observer_.notice(job.id + ": prepare() changed settings of the device: " + changes);
  }
  ops().take_kernels();  // of an earlier job that ended early
  check(attempt);
  if (attempt.judge->decide(ops().take_kernels())) return true;
  finish(attempt);
  return false;
}

std::unique_ptr<JobJudge> JobRunner::judge_of(const Attempt& attempt) {
  const Job& job = *attempt.job;
  const auto speed = [this] { return &timing_tools(); };
  if (make_judge_) return make_judge_(job);
  return std::make_unique<CaseJudge>(job, options_, observer_, *attempt.case_run, speed,
                                     attempt.probe.get());
}

/// A run on the values of the second draw and the verdict on it; its pipeline is gone afterwards.
void JobRunner::run_probe(Attempt& attempt) {
  CaseRun& case_run = attempt.probe->case_run();
  enter(attempt, Phase::kRun);
  PipelineOutput output;
  {
    const std::unique_ptr<Pipeline> pipeline = case_run.prepare(ops());
    output = run_once(*pipeline);
    if (pipeline->users() != nullptr) pipeline->users()->finish();
  }
  attempt.judge->submit({RunKind::kJudged, kProbeDraw}, std::move(output));
  enter(attempt, Phase::kReference);
  attempt.judge->conclude(kProbeDraw);
  attempt.probe->release();
}

PipelineOutput JobRunner::run_once(Pipeline& pipeline, bool with_cache) {
  pipeline.poison_outputs();
  for (const Step& step : pipeline.steps()) {
    step.run();
    ops().synchronize();  // an out-of-bounds write is found at the step that did it
  }
  return pipeline.read_output(with_cache);
}

/// Every run before timing, in their order.
void JobRunner::check(Attempt& attempt) {
  JobJudge& judge = *attempt.judge;
  Pipeline& pipeline = *attempt.pipeline;
  if (options_.validate) run_with_another_query(judge, pipeline);
  judge.submit({RunKind::kJudged}, run_once(pipeline));
  if (!options_.validate) return;
  const bool is_deterministic = attempt.job->backend->is_deterministic(*attempt.job->problem);
  if (is_deterministic) run_again(attempt);
  if (std::optional<AloneRun> alone = attempt.case_run->run_alone(ops())) {
    judge.submit({RunKind::kAlone, {}, alone->request}, std::move(alone->output));
  }
  if (!is_deterministic) run_again(attempt);
  enter(attempt, Phase::kReference);
  const bool at_edges = options_.all_edges || attempt.job->backend->plugin() != nullptr;
  if (!judge.conclude() || (pipeline.users() == nullptr && !at_edges)) return;
  enter(attempt, Phase::kRun);
  if (run_negated(judge, pipeline) && at_edges) check_edges(attempt);
}

/// What accesses outside of buffers show that are edges of what is mapped. Only where nothing else
/// was found: a fault may take the device with it.
void JobRunner::check_edges(Attempt& attempt) {
  const Job& job = *attempt.job;
  const auto notice = [&](const std::string& text) { observer_.notice(job.id + ": " + text); };
  std::int64_t index = 0;
  for (EdgeOutput& edge : run_at_edges(*attempt.case_run, ops(), notice)) {
    attempt.judge->submit({RunKind::kEdge, {}, index++, edge.when}, std::move(edge.output));
  }
}

/// What other runs show: a second one, and one whose stream is held.
void JobRunner::run_again(Attempt& attempt) {
  const Job& job = *attempt.job;
  JobJudge& judge = *attempt.judge;
  const bool passes = judge.submit({RunKind::kRepeat}, run_once(*attempt.pipeline, false));
  if (!job.backend->is_deterministic(*job.problem)) {
    auto held = run_with_stream_held(ops(), *attempt.pipeline);
    if (held) judge.submit({RunKind::kHeld}, *std::move(held));
  } else if (passes && job.backend->plugin() != nullptr) {
    StreamCheck held = check_stream(ops(), *attempt.pipeline);
    if (!held.objection.empty()) judge.object(held.objection);
    if (held.output) judge.submit({RunKind::kHeld}, *std::move(held.output));
  }
}

/// The first run of a user's backend: what it keeps of it makes the one that is judged wrong.
void JobRunner::run_with_another_query(JobJudge& judge, Pipeline& pipeline) {
  UsersPipeline* plugin = pipeline.users();
  if (plugin == nullptr) return;
  plugin->negate_query();
  PipelineOutput output = run_once(pipeline, false);
  plugin->negate_query();
  judge.submit({RunKind::kOtherQuery, {}, -1, plugin->words().other}, std::move(output));
}

/// A run on negated inputs, of a user's backend.
bool JobRunner::run_negated(JobJudge& judge, Pipeline& pipeline) {
  UsersPipeline* plugin = pipeline.users();
  if (plugin == nullptr) return true;
  plugin->negate_inputs();
  PipelineOutput output = run_once(pipeline, false);
  plugin->negate_inputs();
  plugin->negate_output(output);
  return judge.submit({RunKind::kNegated, {}, -1, plugin->words().negated}, std::move(output));
}

Case& JobRunner::case_for(const Problem& problem) {
  if (case_ && &case_->problem() == &problem) return *case_;
  go_to_case(case_, problem, {options_.num_threads, options_.should_stop}, judge_tools(options_));
  for (const std::string& notice : case_->notices()) observer_.notice(notice);
  if (options_.timing && options_.device == "cpu" && problem.timing.mode == TimingMode::kGraph) {
    observer_.notice(problem.scenario +
                     ": timing.mode graph: cpu has no graphs, so its times are of the stream");
  }
  return *case_;
}

Ops& JobRunner::ops() {
  if (!ops_) {
    ops_ = open_device(options_);
    ops_->on_wait([this](const std::string& kernels) { observer_.waits_for(kernels); });
    if (options_.rank_waits) {
      *options_.rank_waits = [this](const std::string& what) { observer_.waits_for(what); };
    }
  }
  return *ops_;
}

TimingTools& JobRunner::timing_tools() {
  if (!timing_tools_) timing_tools_ = make_tools(options_, ops());
  return *timing_tools_;
}

}  // namespace attnbench
