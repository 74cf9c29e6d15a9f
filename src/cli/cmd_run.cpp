// attnbench run: every case on every backend, validated and timed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include "bench/bench.h"
#include "bench/cases/case.h"
#include "cli/command.h"
#include "cli/device.h"
#include "cli/environment.h"
#include "cli/gate_options.h"
#include "cli/interrupt.h"
#include "cli/number_check.h"
#include "cli/output_paths.h"
#include "cli/outputs.h"
#include "cli/planted_faults.h"
#include "cli/plugins.h"
#include "cli/resume.h"
#include "cli/run_session.h"
#include "cli/scenario_files.h"
#include "cli/selection.h"
#include "cli/text.h"
#include "core/error.h"
#include "core/parallel.h"
#include "inputs/cache/value_scale.h"
#include "inputs/files/encoder_scale_file.h"
#include "inputs/files/file_hashes.h"

namespace attnbench {
namespace {

BenchOptions bench_options(const RunOptions& options, const DeviceChoice& device,
                           bool has_plugins) {
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
  bench.make_ops = [device, threads = options.threads, cache_dir = options.cache_dir,
                    with_cublas_lt = !options.no_cublas_lt] {
    return open_ops(device, threads, cache_dir, with_cublas_lt);
  };
  if (device.is_cuda()) bench.make_timing_tools = cuda_timing_tools;
  // Why on the CPU too: a crash, planted or of a plugin, would end the program.
  const bool needs_child = device.is_cuda() || !options.plant_faults.empty() || has_plugins;
  bench.isolate = needs_child && !options.in_process;
  if (options.hang_limit_s) bench.hang_limit_s = *options.hang_limit_s;
  bench.should_stop = InterruptGuard::interrupted;
  return bench;
}

std::vector<Job> make_jobs(const std::vector<Pair>& pairs, const RunOptions& options,
                           const DeviceChoice& device) {
  const std::string repeat = repeat_options(options);
  std::vector<Job> jobs;
  FileHashes hashes;
  for (const Pair& pair : pairs) {
    Job job;
    job.problem = pair.problem;
    job.backend = pair.backend;
    job.id = pair.id;
    job.repro = fmt::format("attnbench run {} --filter {}{}", shell_quote(pair.source->argument),
                            shell_quote(exact_regex(pair.id)), repeat);
    job.file_hashes = hashes.of(*pair.problem);
    job.extra_refusals = device_refusals(*pair.backend, *pair.problem, device);
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

/// What the files of the scenarios gave to say, each sentence once.
void print_notices(const std::vector<LoadedScenario>& scenarios, const Console& console) {
  std::set<std::string> said;
  for (const LoadedScenario& loaded : scenarios) {
    for (const std::string& notice : loaded.notices) {
      if (said.insert(notice).second) print_notice(console.err, notice);
    }
  }
}

/// Everything that is read, and that the run must not write over.
std::vector<InputPath> all_inputs(const RunArguments& arguments,
                                  const std::vector<LoadedScenario>& scenarios) {
  std::vector<InputPath> inputs = input_paths(scenarios);
  const auto add = [&](const std::vector<InputPath>& more) {
    inputs.insert(inputs.end(), more.begin(), more.end());
  };
  add(input_paths(arguments.gate));
  add(input_paths("--baseline", arguments.baselines));
  add(input_paths("--plugin", arguments.options.selection.plugins));
  if (!arguments.resume.empty()) {
    add(input_paths("--resume", {arguments.resume, journal_path(arguments.resume)}));
  }
  return inputs;
}

/// What a run is resumed from it may write again, complete; a baseline may take the place of the
/// one that it passed against.
void check_outputs(const RunArguments& arguments, const OutputPlan& plan,
                   const std::vector<LoadedScenario>& scenarios, const std::vector<Pair>& pairs) {
  const RunOptions& options = arguments.options;
  std::vector<OutputPath> outputs = output_paths(plan);
  for (OutputPath& output : outputs) {
    if (output.option == "--json") output.replaces = "--resume";
  }
  outputs.push_back({"--summary", arguments.summary});
  outputs.push_back({"--save-baseline", arguments.save_baseline, "--baseline"});
  outputs.push_back({"--journal", journal_target(arguments), "--resume"});
  std::set<std::string> saved_scales;
  for (const LoadedScenario& loaded : scenarios) {
    for (const Problem& problem : loaded.scenario.cases) {
      const auto& path = problem.mm_encoder.fp8_scale_save_path;
      if (path && saved_scales.insert(*path).second) {
        outputs.push_back({"mm_encoder.fp8_scale_save_path", *path});
      }
    }
  }
  const std::vector<InputPath> inputs = all_inputs(arguments, scenarios);
  check_output_paths(inputs, outputs);
  if (options.save_tensors.empty()) return;
  check_save_dir(options.save_tensors);
  std::vector<std::string> ids;
  for (const Pair& pair : pairs) ids.push_back(pair.id);
  check_saved_tensors(options.save_tensors, ids, inputs);
}

void check_baseline(const RunArguments& arguments) {
  if (arguments.save_baseline.empty()) return;
  if (arguments.options.no_validation && !arguments.gate.lenient) {
    fail(ErrorKind::kUsage,
         "--save-baseline with --no-validation: a gate refuses unverified results");
  }
}

int run_cases(const RunArguments& arguments, const Console& console) {
  const RunOptions& options = arguments.options;
  const DeviceChoice device = choose_device(options.selection);
  Plugins plugins(options.selection.plugins, device, options.threads);
  const std::vector<LoadedScenario> scenarios =
      load_scenarios(arguments.scenarios, scenario_overrides(options));
  plugins.add_named(named_backends(options.selection, scenarios));
  const std::vector<Pair> pairs = select_pairs(scenarios, options.selection, plugins.backends());
  const OutputPlan plan = plan_outputs(options);
  check_baseline(arguments);
  check_outputs(arguments, plan, scenarios, pairs);
  const GateOptions gate = gate_options(arguments.gate);
  check_input_files(pairs);
  if (!options.console.quiet) print_notices(scenarios, console);
  if (pairs.empty() && !options.console.quiet) {
    console.err << fmt::format("attnbench: no result id matches --filter '{}'\n",
                               options.selection.filter);
  }

  RunInfo run = describe_run(console.command);
  if (device.info) describe_device(*device.info, run.environment);
  const InterruptGuard guard;
  if (!options.save_tensors.empty()) std::filesystem::create_directories(options.save_tensors);
  std::vector<Job> jobs = make_jobs(pairs, options, device);
  const PlantedFaults faults(options.plant_faults, jobs);
  set_chunk_threads(options.threads);
  BenchOptions bench = bench_options(options, device, !plugins.backends().empty());
  bench.passes = num_passes(arguments, !device.is_cuda());
  return run_session(arguments, gate, plan, std::move(run), console, jobs, bench);
}

void add_baseline_options(CLI::App& app, RunArguments& arguments) {
  const char* const group = "Gate";
  app.add_option("--baseline", arguments.baselines,
                 "Gate against this result file; several are pooled (repeatable)")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--save-baseline", arguments.save_baseline,
                 "Run twice and write a baseline with the noise floor of this machine")
      ->type_name("FILE")
      ->group(group);
  add_gate_options(app, arguments.gate);
  const char* const outputs = "Outputs (FILE '-' is stdout)";
  app.add_option("--summary", arguments.summary, "Write a Markdown summary for a pull request")
      ->type_name("FILE")
      ->group(outputs);
  app.add_option("--link", arguments.links, "URL of an artefact for the summary (repeatable)")
      ->type_name("URL")
      ->allow_extra_args(false)
      ->group(outputs);
  const char* const running = "Running";
  app.add_option("--passes", arguments.passes,
                 "Time all cases in N passes, each a part of the samples (default: 8 on the CPU "
                 "with --baseline or --save-baseline, else 1)")
      ->type_name("N")
      ->check(number_between(1, 1000))
      ->group(running);
  app.add_option("--resume", arguments.resume,
                 "Keep the results of this file and its journal, run the rest; also --json")
      ->type_name("FILE")
      ->group(running);
  app.add_option("--journal", arguments.journal,
                 "Write results here as they come; without it FILE.journal beside --json")
      ->type_name("FILE")
      ->group(running);
}

/// An option that would do nothing is a mistake.
void check_baseline_options(const CLI::App& app) {
  if (app.count("--baseline") + app.count("--save-baseline") > 0) return;
  for (const char* option : kBaselineOptions) {
    if (app.count(option) == 0) continue;
    fail(ErrorKind::kUsage, "{}: expected --baseline or --save-baseline with it, found neither",
         option);
  }
}

}  // namespace

RunCommand declare_run(CLI::App& app) {
  auto arguments = std::make_shared<RunArguments>();
  app.add_option("SCENARIO", arguments->scenarios, "Scenario files, or names of shipped scenarios")
      ->required();
  add_run_options(app, arguments->options);
  add_baseline_options(app, *arguments);
  return [arguments, &app](const Console& console) {
    check_baseline_options(app);
    if (!arguments->resume.empty() && arguments->options.json.empty()) {
      arguments->options.json = arguments->resume;
    }
    return run_cases(*arguments, console);
  };
}

}  // namespace attnbench
