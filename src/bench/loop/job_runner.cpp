// Validation reads from prepare_and_check() down: refusals, inputs, runs, verdict, what is saved.
#include "bench/loop/job_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "backends/users_pipeline.h"
#include "bench/loop/stream_check.h"
#include "bench/save.h"
#include "core/error.h"

namespace attnbench {
namespace {

/// Thrown where a job notices should_stop; ends the job as "skipped".
struct Interrupted {};

bool same_bytes(const Tensor& a, const Tensor& b) {
  return std::equal(a.bytes(), a.bytes() + a.size_bytes(), b.bytes(), b.bytes() + b.size_bytes());
}

void set_error(Attempt& attempt, const std::string& message, bool may_lack_memory = false) {
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
    enter(Phase::kTiming);
    attempt.timing =
        std::make_unique<JobTiming>(*attempt.job->problem, *attempt.job->backend, *attempt.pipeline,
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
      attempt.timing->finish(attempt.result);
      ops().synchronize();
      if (stopped()) throw Interrupted{};
      if (attempt.result.plugin && options_.validate) {
        check_remembered(*attempt.case_run, *attempt.pipeline, attempt.result);
      }
    }
    UsersPipeline* plugin = attempt.pipeline ? attempt.pipeline->users() : nullptr;
    if (plugin != nullptr) plugin->finish();
    return false;
  });
}

/// Does a stage; an exception becomes the end of the job.
template <typename Work>
bool JobRunner::guarded(Attempt& attempt, const Work& work) {
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
  } catch (const BackendFailure& failure) {
    set_error(attempt, failure.what(), true);
  } catch (const std::bad_alloc&) {
    set_error(attempt, "E-CAPACITY: out of memory", true);
  } catch (const std::exception& error) {
    set_error(attempt, std::string("E-INTERNAL: ") + error.what());
  }
  return false;
}

void JobRunner::enter(Phase phase) {
  if (stopped()) throw Interrupted{};
  observer_.phase(phase);
}

bool JobRunner::prepare_and_check(Attempt& attempt) {
  const Job& job = *attempt.job;
  Result& result = attempt.result;
  result.reasons = job.extra_refusals;
  for (std::string& reason : job.backend->refusals(*job.problem, options_.device_facts)) {
    result.reasons.push_back(std::move(reason));
  }
  if (!result.reasons.empty()) {
    result.status = Status::kUnsupported;
    return false;
  }
  enter(Phase::kInputs);
  attempt.case_run = case_for(*job.problem).start(*job.backend);
  enter(Phase::kRun);
  attempt.pipeline = attempt.case_run->prepare(ops());
  ops().take_kernels();  // of an earlier job that ended early
  check(job, *attempt.case_run, *attempt.pipeline, result);
  result.kernels = ops().take_kernels();
  if (options_.timing && result.status != Status::kIncorrect) return true;
  finish(attempt);
  return false;
}

PipelineOutput JobRunner::run_once(Pipeline& pipeline, bool with_cache) {
  pipeline.poison_outputs();
  for (const Step& step : pipeline.steps()) {
    step.run();
    ops().synchronize();  // an out-of-bounds write is found at the step that did it
  }
  return pipeline.read_output(with_cache);
}

/// Runs, judges and saves; sets status, reasons and errors.
void JobRunner::check(const Job& job, CaseRun& case_run, Pipeline& pipeline, Result& result) {
  const Problem& problem = *job.problem;
  const std::optional<PipelineOutput> before =
      options_.validate ? run_with_another_query(pipeline) : std::nullopt;
  const PipelineOutput output = run_once(pipeline);
  if (options_.validate) {
    find_defects(case_run, output, result.reasons);
    const bool is_deterministic = job.backend->is_deterministic(problem);
    if (is_deterministic) find_differences(pipeline, output, result);
    repeat_alone(problem, case_run, output, result);
    enter(Phase::kReference);
    judge(case_run, output, result);
    if (!is_deterministic) judge_again(job, case_run, pipeline, output, result);
    if (before && !result.reasons.empty() && same_bytes(before->output, output.output)) {
      result.reasons.push_back(
          fmt::format("a run with {} gave the same output: run() has to compute all of it anew",
                      pipeline.users()->words().other));
    }
    result.status = result.reasons.empty() ? Status::kPassed : Status::kIncorrect;
    if (result.plugin && result.reasons.empty()) {
      enter(Phase::kRun);
      check_remembered(case_run, pipeline, result);
    }
  } else {
    result.status = Status::kUnverified;
  }
  const bool save = options_.save == SaveTensors::kAlways ||
                    (options_.save == SaveTensors::kFailed && result.status == Status::kIncorrect);
  if (!save) return;
  TensorList tensors;
  case_run.add_tensors(output, tensors);
  save_tensors(options_.save_dir, result, *job.backend, tensors);
}

/// What can be said without a reference: written caches, stray writes.
void JobRunner::find_defects(CaseRun& case_run, const PipelineOutput& output,
                             std::vector<std::string>& reasons) {
  if (!output.defect.empty()) reasons.push_back(output.defect);
  const std::string wrong = case_run.check_stored(output);
  if (!wrong.empty()) reasons.push_back(wrong);
}

/// What other runs show: equal bytes of two, and of one whose stream is held.
void JobRunner::find_differences(Pipeline& pipeline, const PipelineOutput& output, Result& result) {
  const std::string difference = describe_difference(output, run_once(pipeline, false));
  if (!difference.empty()) result.reasons.push_back("not deterministic: " + difference);
  if (!result.plugin || !result.reasons.empty()) return;
  const std::string elsewhere = check_stream(ops(), pipeline, output);
  if (!elsewhere.empty()) result.reasons.push_back(elsewhere);
}

/// The same of a backend whose runs may differ: each is held against the reference.
void JobRunner::judge_again(const Job& job, CaseRun& case_run, Pipeline& pipeline,
                            const PipelineOutput& output, Result& result) {
  const PipelineOutput second = run_once(pipeline, false);
  const std::string difference = describe_difference(output, second);
  if (!difference.empty()) observer_.notice(job.id + ": not deterministic: " + difference);
  add_reasons(case_run, second, "second run: ", result);
  if (const auto held = run_with_stream_held(ops(), pipeline)) {
    add_reasons(case_run, *held, "with its stream held: ", result);
  }
}

void JobRunner::add_reasons(CaseRun& case_run, const PipelineOutput& output,
                            const std::string& when, Result& result) {
  const std::optional<Judgement> judgement = case_run.judge(output);
  if (!judgement) throw Interrupted{};
  for (const std::string& reason : judgement->reasons) result.reasons.push_back(when + reason);
}

/// Reported for every backend, demanded where the scenario says attention.batch_invariant.
void JobRunner::repeat_alone(const Problem& problem, CaseRun& case_run,
                             const PipelineOutput& output, Result& result) {
  result.batch_invariance = case_run.run_alone(ops(), output);
  const auto& invariance = result.batch_invariance;
  if (!invariance || invariance->equal || !problem.attention.batch_invariant) return;
  result.reasons.push_back("not batch invariant: request " + std::to_string(invariance->request) +
                           " alone gives other bytes than in the batch");
}

void JobRunner::judge(CaseRun& case_run, const PipelineOutput& output, Result& result) {
  std::optional<Judgement> judgement = case_run.judge(output);
  if (!judgement) throw Interrupted{};
  result.error = std::move(judgement->error);
  result.lse_error = std::move(judgement->lse_error);
  result.quantization_error = std::move(judgement->quantization_error);
  result.rank_errors = std::move(judgement->rank_errors);
  for (std::string& reason : judgement->reasons) result.reasons.push_back(std::move(reason));
}

/// The first run of a user's backend: what it keeps of it makes the one that is judged wrong.
std::optional<PipelineOutput> JobRunner::run_with_another_query(Pipeline& pipeline) {
  UsersPipeline* plugin = pipeline.users();
  if (plugin == nullptr) return std::nullopt;
  plugin->negate_query();
  PipelineOutput output = run_once(pipeline, false);
  plugin->negate_query();
  return output;
}

/// What is kept later, or of the keys, is found by other values once more. Negated ones make a
/// run for which the reference is there already.
void JobRunner::check_remembered(CaseRun& case_run, Pipeline& pipeline, Result& result) {
  UsersPipeline* plugin = pipeline.users();
  if (plugin == nullptr) return;
  plugin->negate_inputs();
  PipelineOutput output = run_once(pipeline, false);
  plugin->negate_inputs();
  plugin->negate_output(output);
  const std::optional<Judgement> judgement = case_run.judge(output);
  if (!judgement) throw Interrupted{};
  if (judgement->reasons.empty()) return;
  result.status = Status::kIncorrect;
  result.timing.reset();
  result.throughput.reset();
  result.reasons.push_back(
      fmt::format("remembers earlier values: after {}, the output is not the negated one: {}",
                  plugin->words().negated, judgement->reasons.front()));
}

Case& JobRunner::case_for(const Problem& problem) {
  if (case_ && &case_->problem() == &problem) return *case_;
  if (!case_ || !case_->move_on(problem)) {
    case_.reset();  // free the old case's tensors before the new ones are made
    case_ = make_case(problem, {options_.num_threads, options_.should_stop});
  }
  for (const std::string& notice : case_->notices()) observer_.notice(notice);
  if (options_.timing && options_.device == "cpu" && problem.timing.mode == TimingMode::kGraph) {
    observer_.notice(problem.scenario +
                     ": timing.mode graph: cpu has no graphs, so its times are of the stream");
  }
  return *case_;
}

Ops& JobRunner::ops() {
  if (!ops_) {
    ops_ = options_.make_ops ? options_.make_ops()
                             : make_cpu_ops(options_.num_threads, options_.device_facts.num_sms);
    ops_->on_wait([this](const std::string& kernels) { observer_.waits_for(kernels); });
  }
  return *ops_;
}

TimingTools& JobRunner::timing_tools() {
  if (!timing_tools_) {
    timing_tools_ = options_.make_timing_tools ? options_.make_timing_tools(ops())
                                               : make_cpu_timing_tools(ops(), options_.num_threads);
  }
  return *timing_tools_;
}

}  // namespace attnbench
