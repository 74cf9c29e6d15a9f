// attnbench run: every case on every backend, validated and timed.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "bench/bench.h"
#include "bench/system.h"
#include "cli/command.h"
#include "cli/device.h"
#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/outputs.h"
#include "cli/progress.h"
#include "cli/scenario_files.h"
#include "cli/selection.h"
#include "cli/text.h"
#include "core/error.h"
#include "inputs/mm_scale_file.h"
#include "inputs/value_scale.h"

namespace attnbench {
namespace {

struct RunArguments {
  std::vector<std::string> scenarios;
  RunOptions options;
};

BenchOptions bench_options(const RunOptions& options, const DeviceChoice& device) {
  BenchOptions bench;
  bench.validate = !options.no_validation;
  bench.timing = !options.no_timing;
  if (!options.save_tensors.empty()) {
    bench.save = options.save == "failed" ? SaveTensors::kFailed : SaveTensors::kAlways;
    bench.save_dir = options.save_tensors;
  }
  bench.device = device.name;
  bench.device_facts = device.facts;
  bench.num_threads = options.threads;
  bench.make_ops = [device, threads = options.threads, cache_dir = options.cache_dir] {
    return open_ops(device, threads, cache_dir);
  };
  if (device.is_cuda()) bench.make_timing_tools = cuda_timing_tools;
  bench.isolate = device.is_cuda() && !options.in_process;
  bench.should_stop = InterruptGuard::interrupted;
  return bench;
}

std::vector<Job> make_jobs(const std::vector<Pair>& pairs, const RunOptions& options,
                           const DeviceChoice& device) {
  const std::string repeat = repeat_options(options);
  std::vector<Job> jobs;
  for (const Pair& pair : pairs) {
    Job job;
    job.problem = pair.problem;
    job.backend = pair.backend;
    job.id = pair.id;
    job.repro = fmt::format("attnbench run {} --filter {}{}", shell_quote(pair.source->argument),
                            shell_quote(exact_regex(pair.id)), repeat);
    job.extra_refusals = device_refusals(*pair.problem, device);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

bool reads_files(const Problem& problem) {
  return problem.inputs.file || problem.mm_encoder.fp8_scale_path;
}

/// Reads every inputs.file and scale file once, so that files that disagree with the scenario are
/// bad input (exit 2, nothing written) and not the error of a case.
void check_input_files(const std::vector<Pair>& pairs) {
  const Problem* checked = nullptr;
  for (const Pair& pair : pairs) {
    if (pair.problem == checked) continue;
    checked = pair.problem;
    const KvCacheSpec& cache = checked->kv_cache;
    if (reads_files(*checked)) {
      make_system(*checked, {})->notices();
    } else if (cache.value_scale_file && cache.int8_level == 1) {
      read_value_scales(*checked);
    }
    const auto& scales = checked->mm_encoder.fp8_scale_save_path;
    if (scales) check_mm_scale_target(*scales);
  }
}

/// Whether a backend named with --backend is unsupported in every listed case.
bool is_named_backend_unsupported(const std::vector<std::string>& named,
                                  const std::vector<Result>& results) {
  std::map<std::string, bool> unsupported_everywhere;
  for (const Result& result : results) {
    const bool unsupported = result.status == Status::kUnsupported;
    const auto [entry, is_new] = unsupported_everywhere.emplace(result.backend, unsupported);
    entry->second = entry->second && unsupported;
  }
  return std::any_of(named.begin(), named.end(), [&](const std::string& name) {
    const auto entry = unsupported_everywhere.find(name);
    return entry != unsupported_everywhere.end() && entry->second;
  });
}

std::vector<Result> run_with_progress(const std::vector<Job>& jobs, const BenchOptions& bench,
                                      const ConsoleOptions& options, const Console& console) {
  ProgressOptions progress_options;
  progress_options.live =
      console.err_is_terminal && !is_dumb_terminal() && !options.quiet && !options.no_progress;
  progress_options.line_per_result = options.verbose;
  progress_options.notices = !options.quiet;
  progress_options.width = output_width(STDERR_FILENO);
  Progress progress(console.err, steady_clock(), progress_options);
  return run_jobs(jobs, bench, progress);
}

void print_table(const RunInfo& run, const std::vector<Result>& results, const OutputPlan& plan,
                 const ConsoleOptions& options, const Console& console) {
  // With -q nothing but errors goes to stderr, so a table that had to move there is left out.
  if (plan.uses_stdout && options.quiet) return;
  const bool is_terminal = plan.uses_stdout ? console.err_is_terminal : console.out_is_terminal;
  TableOptions table;
  table.color = use_color(options.color, is_terminal);
  table.width = output_width(plan.uses_stdout ? STDERR_FILENO : STDOUT_FILENO);
  write_table(plan.uses_stdout ? console.err : console.out, run, results, table);
}

int run_cases(const RunArguments& arguments, const Console& console) {
  const RunOptions& options = arguments.options;
  const DeviceChoice device = choose_device(options.selection.device, options.selection.assume_sm);
  const std::vector<LoadedScenario> scenarios =
      load_scenarios(arguments.scenarios, scenario_overrides(options));
  const std::vector<Pair> pairs = select_pairs(scenarios, options.selection);
  const OutputPlan plan = plan_outputs(options);
  if (!options.save_tensors.empty()) check_save_dir(options.save_tensors);
  check_input_files(pairs);
  if (pairs.empty() && !options.console.quiet) {
    console.err << fmt::format("attnbench: no result id matches --filter '{}'\n",
                               options.selection.filter);
  }

  RunInfo run = describe_run(console.command);
  if (device.info) describe_device(*device.info, run.environment);
  const InterruptGuard guard;
  if (!options.save_tensors.empty()) std::filesystem::create_directories(options.save_tensors);
  const std::vector<Result> results = run_with_progress(
      make_jobs(pairs, options, device), bench_options(options, device), options.console, console);

  Outcome outcome;
  outcome.counts = count_statuses(results);
  outcome.named_backend_unsupported =
      is_named_backend_unsupported(options.selection.backends, results);
  outcome.interrupted = InterruptGuard::interrupted();
  print_table(run, results, plan, options.console, console);
  try {
    plan.write(run, results);
  } catch (const Error& error) {
    print_error(console.err, error.full_message());
    outcome.usage_error = true;
  }
  return exit_code(outcome);
}

}  // namespace

RunCommand declare_run(CLI::App& app) {
  auto arguments = std::make_shared<RunArguments>();
  app.add_option("SCENARIO", arguments->scenarios, "Scenario files, or names of shipped scenarios")
      ->required();
  add_run_options(app, arguments->options);
  return [arguments](const Console& console) { return run_cases(*arguments, console); };
}

}  // namespace attnbench
