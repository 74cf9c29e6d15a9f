#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "backends/plugin_pipeline.h"
#include "bench/bench.h"
#include "bench/isolated_jobs.h"
#include "bench/job_timing.h"
#include "bench/save.h"
#include "bench/stream_check.h"
#include "bench/system.h"
#include "core/error.h"
#include "core/problem_json.h"
#include "ops/ops.h"

namespace attnbench {
namespace {

/// Thrown where a job notices should_stop; ends the job as "skipped".
struct Interrupted {};

bool same_bytes(const Tensor& a, const Tensor& b) {
  return std::equal(a.bytes(), a.bytes() + a.size_bytes(), b.bytes(), b.bytes() + b.size_bytes());
}

class JobRunner {
 public:
  JobRunner(const BenchOptions& options, BenchObserver& observer)
      : options_(options), observer_(observer) {}

  Result run(const Job& job) {
    Result result = describe_job(job, options_);
    if (stopped()) return interrupted(std::move(result));
    try {
      run_supported(job, result);
    } catch (const Interrupted&) {
      return interrupted(describe_job(job, options_));
    } catch (const Error& error) {
      set_error(result, error.full_message());
      if (error.kind() == ErrorKind::kUnsupported) {
        result.status = Status::kUnsupported;
        result.reasons = {error.what()};
      }
    } catch (const BackendFailure& failure) {
      set_error(result, failure.what());
    } catch (const std::bad_alloc&) {
      set_error(result, "E-CAPACITY: out of memory");
    } catch (const std::exception& error) {
      set_error(result, std::string("E-INTERNAL: ") + error.what());
    }
    return result;
  }

 private:
  static Result interrupted(Result result) {
    result.status = Status::kSkipped;
    result.reasons = {"interrupted"};
    return result;
  }

  static void set_error(Result& result, const std::string& message) {
    result.status = Status::kError;
    result.reasons = {message};
    result.timing.reset();
    result.throughput.reset();
  }

  bool stopped() const { return options_.should_stop && options_.should_stop(); }
  void enter(Phase phase) {
    if (stopped()) throw Interrupted{};
    observer_.phase(phase);
  }

  void run_supported(const Job& job, Result& result) {
    result.reasons = job.extra_refusals;
    for (std::string& reason : job.backend->refusals(*job.problem, options_.device_facts)) {
      result.reasons.push_back(std::move(reason));
    }
    if (!result.reasons.empty()) {
      result.status = Status::kUnsupported;
      return;
    }
    enter(Phase::kInputs);
    const std::unique_ptr<Trial> trial = system_for(*job.problem).start(*job.backend);
    enter(Phase::kRun);
    const std::unique_ptr<Pipeline> pipeline = trial->prepare(ops());
    ops().take_kernels();  // of an earlier job that ended early
    check(*job.problem, *trial, *pipeline, result);
    result.kernels = ops().take_kernels();
    if (options_.timing && result.status != Status::kIncorrect) {
      enter(Phase::kTiming);
      time_job(*job.problem, *pipeline, timing_tools(), options_, result);
      ops().synchronize();
      if (stopped()) throw Interrupted{};
      if (result.plugin && options_.validate) check_remembered(*trial, *pipeline, result);
    }
    if (auto* plugin = dynamic_cast<PluginPipeline*>(pipeline.get())) plugin->finish();
  }

  PipelineOutput run_once(Pipeline& pipeline, bool with_cache = true) {
    pipeline.poison_outputs();
    for (const Step& step : pipeline.steps()) {
      step.run();
      ops().synchronize();  // an out-of-bounds write is found at the step that did it
    }
    return pipeline.read_output(with_cache);
  }

  /// Runs, judges and saves; sets status, reasons and errors.
  void check(const Problem& problem, Trial& trial, Pipeline& pipeline, Result& result) {
    const std::optional<PipelineOutput> before =
        options_.validate ? run_with_another_query(pipeline) : std::nullopt;
    const PipelineOutput output = run_once(pipeline);
    if (options_.validate) {
      find_defects(trial, pipeline, output, result.reasons);
      if (result.plugin && result.reasons.empty()) {
        const std::string elsewhere = check_stream(ops(), pipeline, output);
        if (!elsewhere.empty()) result.reasons.push_back(elsewhere);
      }
      repeat_alone(problem, trial, output, result);
      enter(Phase::kReference);
      judge(trial, output, result);
      if (before && !result.reasons.empty() && same_bytes(before->output, output.output)) {
        result.reasons.emplace_back(
            "a run with the query negated gave the same output: run() has to compute all of it "
            "anew");
      }
      result.status = result.reasons.empty() ? Status::kPassed : Status::kIncorrect;
      if (result.plugin && result.reasons.empty()) {
        enter(Phase::kRun);
        check_remembered(trial, pipeline, result);
      }
    } else {
      result.status = Status::kUnverified;
    }
    const bool save =
        options_.save == SaveTensors::kAlways ||
        (options_.save == SaveTensors::kFailed && result.status == Status::kIncorrect);
    if (!save) return;
    TensorList tensors;
    trial.add_tensors(output, tensors);
    save_tensors(options_.save_dir, result, tensors);
  }

  /// What can be said without a reference: written caches, stray writes, equal bytes of two runs.
  void find_defects(Trial& trial, Pipeline& pipeline, const PipelineOutput& output,
                    std::vector<std::string>& reasons) {
    if (!output.defect.empty()) reasons.push_back(output.defect);
    const std::string wrong = trial.check_stored(output);
    if (!wrong.empty()) reasons.push_back(wrong);
    const std::string difference = describe_difference(output, run_once(pipeline, false));
    if (!difference.empty()) reasons.push_back("not deterministic: " + difference);
  }

  /// Reported for every backend, demanded where the scenario asks for batch invariance.
  void repeat_alone(const Problem& problem, Trial& trial, const PipelineOutput& output,
                    Result& result) {
    result.batch_invariance = trial.run_alone(ops(), output);
    const auto& invariance = result.batch_invariance;
    if (!invariance || invariance->equal || !problem.attention.batch_invariant) return;
    result.reasons.push_back("not batch invariant: request " + std::to_string(invariance->request) +
                             " alone gives other bytes than in the batch");
  }

  void judge(Trial& trial, const PipelineOutput& output, Result& result) {
    std::optional<Judgement> judgement = trial.judge(output);
    if (!judgement) throw Interrupted{};
    result.error = std::move(judgement->error);
    result.lse_error = std::move(judgement->lse_error);
    result.quantization_error = std::move(judgement->quantization_error);
    result.rank_errors = std::move(judgement->rank_errors);
    for (std::string& reason : judgement->reasons) result.reasons.push_back(std::move(reason));
  }

  /// The first run of a user's backend: what it keeps of it makes the one that is judged wrong.
  std::optional<PipelineOutput> run_with_another_query(Pipeline& pipeline) {
    auto* plugin = dynamic_cast<PluginPipeline*>(&pipeline);
    if (plugin == nullptr) return std::nullopt;
    plugin->negate_query();
    PipelineOutput output = run_once(pipeline, false);
    plugin->negate_query();
    return output;
  }

  /// What is kept later, or of the keys, is found by other values once more. Negated ones make a
  /// run for which the reference is there already.
  void check_remembered(Trial& trial, Pipeline& pipeline, Result& result) {
    auto* plugin = dynamic_cast<PluginPipeline*>(&pipeline);
    if (plugin == nullptr) return;
    plugin->negate_inputs();
    PipelineOutput output = run_once(pipeline, false);
    plugin->negate_inputs();
    negate(output.output);
    const std::optional<Judgement> judgement = trial.judge(output);
    if (!judgement) throw Interrupted{};
    if (judgement->reasons.empty()) return;
    result.status = Status::kIncorrect;
    result.timing.reset();
    result.throughput.reset();
    result.reasons.push_back(
        "remembers earlier values: after query, key and value were negated, the output is not the "
        "negated one: " +
        judgement->reasons.front());
  }

  System& system_for(const Problem& problem) {
    if (system_ && &system_->problem() == &problem) return *system_;
    if (!system_ || !system_->move_on(problem)) {
      system_.reset();  // free the old case's tensors before the new ones are made
      system_ = make_system(problem, {options_.num_threads, options_.should_stop});
    }
    for (const std::string& notice : system_->notices()) observer_.notice(notice);
    if (options_.timing && options_.device == "cpu" && problem.timing.mode == TimingMode::kGraph) {
      observer_.notice(problem.scenario +
                       ": timing.mode graph: cpu has no graphs, so its times are of the stream");
    }
    return *system_;
  }

  Ops& ops() {
    if (!ops_) {
      ops_ = options_.make_ops ? options_.make_ops() : make_cpu_ops(options_.num_threads);
      ops_->on_wait([this](const std::string& kernels) { observer_.waits_for(kernels); });
    }
    return *ops_;
  }

  TimingTools& timing_tools() {
    if (!timing_tools_) {
      timing_tools_ = options_.make_timing_tools
                          ? options_.make_timing_tools(ops())
                          : make_cpu_timing_tools(ops(), options_.num_threads);
    }
    return *timing_tools_;
  }

  const BenchOptions& options_;
  BenchObserver& observer_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<TimingTools> timing_tools_;
  std::unique_ptr<System> system_;
};

std::vector<Result> run_in_process(const std::vector<Job>& jobs, std::size_t first,
                                   const BenchOptions& options, BenchObserver& observer) {
  JobRunner runner(options, observer);
  std::vector<Result> results;
  results.reserve(jobs.size() - first);
  for (std::size_t i = first; i < jobs.size(); ++i) {
    observer.job_started(i, jobs.size(), jobs[i]);
    results.push_back(runner.run(jobs[i]));
    observer.job_finished(results.back());
    // Why: after a device error every later call of the process fails too.
    if (options.isolate && results.back().status == Status::kError) break;
  }
  return results;
}

}  // namespace

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::kInputs:
      return "inputs";
    case Phase::kReference:
      return "reference";
    case Phase::kRun:
      return "run";
    case Phase::kTiming:
      return "timing";
  }
  return "";
}

Result describe_job(const Job& job, const BenchOptions& options) {
  Result result;
  result.id = job.id;
  result.scenario = job.problem->scenario;
  result.case_name = job.problem->case_name;
  result.backend = std::string(job.backend->name());
  result.device = options.device;
  result.problem_json = problem_to_json(*job.problem);
  result.file_hashes = job.file_hashes;
  if (const PluginInfo* plugin = job.backend->plugin()) result.plugin = *plugin;
  result.repro = job.repro;
  return result;
}

std::vector<Result> run_jobs(const std::vector<Job>& jobs, const BenchOptions& options,
                             BenchObserver& observer) {
  if (options.isolate) return run_isolated(jobs, options, observer, run_in_process);
  return run_in_process(jobs, 0, options, observer);
}

}  // namespace attnbench
