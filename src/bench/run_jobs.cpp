#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "bench/bench.h"
#include "bench/case_cache.h"
#include "bench/job_timing.h"
#include "bench/judge.h"
#include "bench/save.h"
#include "core/error.h"
#include "core/problem_json.h"
#include "ops/ops.h"

namespace attnbench {
namespace {

/// Thrown where a job notices should_stop; ends the job as "skipped".
struct Interrupted {};

class JobRunner {
 public:
  JobRunner(const BenchOptions& options, BenchObserver& observer)
      : options_(options), observer_(observer), timer_(options) {}

  Result run(const Job& job) {
    Result result = describe(job);
    if (stopped()) return interrupted(std::move(result));
    try {
      run_supported(job, result);
    } catch (const Interrupted&) {
      return interrupted(describe(job));
    } catch (const Error& error) {
      set_error(result, error.full_message());
    } catch (const std::bad_alloc&) {
      set_error(result, "E-CAPACITY: out of memory");
    } catch (const std::exception& error) {
      set_error(result, std::string("E-INTERNAL: ") + error.what());
    }
    return result;
  }

 private:
  Result describe(const Job& job) const {
    Result result;
    result.id = job.id;
    result.scenario = job.problem->scenario;
    result.case_name = job.problem->case_name;
    result.backend = std::string(job.backend->name());
    result.device = options_.device;
    result.problem_json = problem_to_json(*job.problem);
    result.repro = job.repro;
    return result;
  }

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
    CaseCache& cache = cache_for(*job.problem);
    const BackendInputs inputs = cache.backend_inputs(*job.backend);
    enter(Phase::kRun);
    const std::unique_ptr<Pipeline> pipeline = job.backend->prepare(*job.problem, inputs, ops());
    check(job, inputs, *pipeline, result);
    if (options_.timing && result.status != Status::kIncorrect) {
      enter(Phase::kTiming);
      timer_.time(*job.problem, *pipeline, ops(), result);
      if (stopped()) throw Interrupted{};
    }
  }

  PipelineOutput run_once(Pipeline& pipeline) {
    pipeline.poison_outputs();
    for (const Step& step : pipeline.steps()) step.run();
    ops().synchronize();
    return pipeline.read_output();
  }

  /// Runs, judges and saves; sets status, reasons and errors.
  void check(const Job& job, const BackendInputs& inputs, Pipeline& pipeline, Result& result) {
    const PipelineOutput output = run_once(pipeline);
    const ReferenceOutput* reference = nullptr;
    if (options_.validate) {
      find_defects(job, inputs, pipeline, output, result.reasons);
      enter(Phase::kReference);
      reference = compare_with_reference(job, output, result);
      result.status = result.reasons.empty() ? Status::kPassed : Status::kIncorrect;
    } else {
      result.status = Status::kUnverified;
    }
    const bool save =
        options_.save == SaveTensors::kAlways ||
        (options_.save == SaveTensors::kFailed && result.status == Status::kIncorrect);
    if (save) {
      save_tensors(options_.save_dir, result, {job.problem, &inputs, &output, reference});
    }
  }

  /// What can be said without a reference: written caches, stray writes, equal bytes of two runs.
  void find_defects(const Job& job, const BackendInputs& inputs, Pipeline& pipeline,
                    const PipelineOutput& output, std::vector<std::string>& reasons) {
    if (!output.defect.empty()) reasons.push_back(output.defect);
    if (inputs.cache && output.cache) {
      const std::string wrong =
          check_cache(*job.problem, *inputs.stored, *inputs.cache, *output.cache,
                      output.key_scale_cache ? &*output.key_scale_cache : nullptr);
      if (!wrong.empty()) reasons.push_back("cache write: " + wrong);
    }
    const std::string difference = describe_difference(output, run_once(pipeline));
    if (!difference.empty()) reasons.push_back("not deterministic: " + difference);
  }

  const ReferenceOutput* compare_with_reference(const Job& job, const PipelineOutput& output,
                                                Result& result) {
    const Problem& problem = *job.problem;
    CaseCache& cache = cache_for(problem);
    const ReferenceKey key = cache.key_of(*job.backend);
    Numerics numerics;
    numerics.output = output.output.dtype();
    numerics.probability = job.backend->probability_dtype(problem);
    // int8 queries fall under the row of quantised K and V, e4m3 ones have their own.
    numerics.quantised_query = key.quantised_query && problem.kv_cache.int8_level == 0;
    numerics.quantised_kv = key.store_rule.has_value();

    Yardsticks yardsticks;
    yardsticks.reference = computed(cache.reference(key));
    yardsticks.emulation = computed(cache.emulation(key, emulation_rule(problem, numerics)));
    const bool quantised = numerics.quantised_query || numerics.quantised_kv ||
                           problem.output_quant.type != OutputQuantType::kNone;
    if (quantised) yardsticks.unquantised = computed(cache.reference(CaseCache::unquantised(key)));

    Judgement judgement = judge(problem, numerics, output, yardsticks);
    result.error = std::move(judgement.error);
    result.lse_error = std::move(judgement.lse_error);
    result.quantization_error = std::move(judgement.quantization_error);
    for (std::string& reason : judgement.reasons) result.reasons.push_back(std::move(reason));
    return yardsticks.reference;
  }

  static const ReferenceOutput* computed(const ReferenceOutput* output) {
    if (output == nullptr) throw Interrupted{};
    return output;
  }

  CaseCache& cache_for(const Problem& problem) {
    if (!cache_ || &cache_->problem() != &problem) {
      cache_.reset();  // free the old case's tensors before the new ones are made
      cache_.emplace(problem, ReferenceOptions{options_.num_threads, options_.should_stop});
      for (const std::string& notice : cache_->inputs().notices) observer_.notice(notice);
    }
    return *cache_;
  }

  Ops& ops() {
    if (!ops_) ops_ = make_cpu_ops(options_.num_threads);
    return *ops_;
  }

  const BenchOptions& options_;
  BenchObserver& observer_;
  JobTimer timer_;
  std::unique_ptr<Ops> ops_;
  std::optional<CaseCache> cache_;
};

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

std::vector<Result> run_jobs(const std::vector<Job>& jobs, const BenchOptions& options,
                             BenchObserver& observer) {
  JobRunner runner(options, observer);
  std::vector<Result> results;
  results.reserve(jobs.size());
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    observer.job_started(i, jobs.size(), jobs[i]);
    results.push_back(runner.run(jobs[i]));
    observer.job_finished(results.back());
  }
  return results;
}

}  // namespace attnbench
