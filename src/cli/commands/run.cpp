// attnbench run: every case on every backend, validated and timed.
//
// In order: the device, the users' libraries, the scenarios, the pairs of case and backend; then
// everything that can be wrong with the input or the outputs, while nothing is written yet; then
// the jobs, which run_session() runs. A mistake of the user must show before the first case runs,
// since a run may take hours.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>

#include "bench/bench.h"
#include "bench/cases/case.h"
#include "bench/loop/ceiling_meter.h"
#include "cli/cases/device.h"
#include "cli/cases/plugins.h"
#include "cli/cases/scenario_files.h"
#include "cli/cases/selection.h"
#include "cli/commands/commands.h"
#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/outputs.h"
#include "cli/session/compile_ahead.h"
#include "cli/session/gate_options.h"
#include "cli/session/interrupt.h"
#include "cli/session/jobs.h"
#include "cli/session/ranks.h"
#include "cli/session/resume.h"
#include "cli/session/run_session.h"
#include "cli/terminal/text.h"
#include "core/error.h"
#include "core/sha256.h"
#include "core/system/parallel.h"
#include "inputs/files/encoder_scale_file.h"
#include "inputs/files/value_scale_file.h"
#include "interop/trace/set.h"
#include "jit/disk_cache.h"

namespace attnbench {
namespace {

/// How the bench runs the jobs: what is checked and timed, on what, and in whose process.
BenchOptions bench_options(const RunOptions& options, const DeviceChoice& device,
                           bool has_plugins) {
  BenchOptions bench;
  bench.validate = !options.no_validation;
  bench.timing = !options.no_timing;
  bench.fingerprint = options.fingerprint;
  if (options.sample_checks == "query") bench.sample_checks = SampleChecking::kQuery;
  if (options.sample_checks == "none") bench.sample_checks = SampleChecking::kNone;
  bench.all_edges = options.all_edges;
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
  if (device.is_cuda()) {
    bench.make_timing_tools = cuda_timing_tools;
    bench.make_screen = screens_on(device, options.cache_dir);
  }
  bench.sample_seed = options.sample_seed;
  // Why on the CPU too: a crash, planted or of a plugin, would end the program.
  const bool needs_child = device.is_cuda() || !options.plant_faults.empty() || has_plugins ||
                           device.facts.mpi.missing.empty() || device.facts.nccl.missing.empty();
  bench.isolate = needs_child && !options.in_process;
  if (options.hang_limit_s) bench.hang_limit_s = *options.hang_limit_s;
  bench.should_stop = InterruptGuard::interrupted;
  return bench;
}

/// Whether the case takes tensors or scales from files of the user.
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
      make_case(*checked, {})->notices();
    } else if (cache.value_scale_file && cache.int8_level == 1) {
      read_value_scales(*checked);
    }
    const auto& scales = checked->mm_encoder.fp8_scale_save_path;
    if (scales) check_mm_scale_target(*scales);
  }
}

/// Why: a rank that waits inside a kernel of NCCL for one that is gone comes back to nobody, and
/// only the process that started it can end it.
void check_isolation(const RunOptions& options, const std::vector<Pair>& pairs) {
  if (!options.in_process) return;
  for (const Pair& pair : pairs) {
    const DcpSpec& dcp = pair.problem->dcp;
    if (dcp.world_size < 2 || dcp.transport != DcpTransport::kNccl) continue;
    fail(ErrorKind::kUsage,
         "--in-process: expected cases without ranks over NCCL, which hang where a rank fails and "
         "are ended from another process, found {}",
         pair.id);
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
  if (const std::string& costs = arguments.options.selection.part_costs; !costs.empty()) {
    add(input_paths("--part-costs", {costs}));
  }
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
  outputs.push_back({"--summary", arguments.summary});
  if (arguments.history == "-") {
    fail(ErrorKind::kUsage, "--history: expected a file to append to, found '-' (stdout)");
  }
  outputs.push_back({"--history", arguments.history});
  outputs.push_back({"--trace-json", arguments.trace_json});
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
  std::vector<std::string> ids;
  for (const Pair& pair : pairs) ids.push_back(pair.id);
  check_save_dir(options.save_tensors, ids);
  check_saved_tensors(options.save_tensors, ids, inputs);
}

/// Refuses to save a baseline that no gate would take.
void check_baseline(const RunArguments& arguments) {
  if (arguments.save_baseline.empty()) return;
  if (arguments.options.no_validation && !arguments.gate.lenient) {
    fail(ErrorKind::kUsage,
         "--save-baseline with --no-validation: a gate refuses unverified results");
  }
}

/// Errors: kUsage for a run that would neither check nor time anything.
void check_work(const RunOptions& options) {
  const bool has_other_work = options.fingerprint || !options.save_tensors.empty();
  if (options.no_timing && options.no_validation && !has_other_work) {
    fail(ErrorKind::kUsage,
         "--no-timing with --no-validation: expected at most one of them, a run with both does "
         "nothing; 'attnbench support' shows what would run");
  }
}

/// Has measured the ceilings of the CPU, before any library of a user is loaded.
std::shared_ptr<CeilingMeter> ceiling_meter(const RunOptions& options, const DeviceChoice& device) {
  if (options.no_timing || device.is_cuda()) return nullptr;
  auto meter = std::make_shared<CeilingMeter>(
      [threads = options.threads] { return measure_cpu_ceilings(threads); });
  meter->measure();
  return meter;
}

/// Says "K/N" for "slurm": the result file is to tell which part it is of.
void number_part(const std::string& part, std::vector<std::string>& command) {
  for (std::string& word : command) {
    if (part == "slurm" && word == part) word = numbered_part(part);
    if (part == "slurm" && word == "--part=slurm") word = "--part=" + numbered_part(part);
  }
}

/// What a rank that is not the first does with its cases: it has no results and writes no files.
int serve_cases(const RunOptions& options, const RankHome& home, const DeviceChoice& device,
                const std::vector<Pair>& pairs, bool has_plugins) {
  std::vector<Job> jobs = make_jobs(pairs, device, "");
  const PlantedFaults faults(options.plant_faults, jobs, home.launched.rank);
  serve_ranks(home, bench_options(options, device, has_plugins), jobs);
  return kExitPassed;
}

/// Which kernels are compiled while the run goes on. `jobs` as they were selected.
AheadPlan ahead_plan(const RunOptions& options, const DeviceChoice& device,
                     const std::vector<Job>& jobs) {
  AheadPlan plan;
  plan.jobs = jobs;
  plan.device = device;
  plan.num_jobs = num_compile_jobs(options.compile_jobs, options.threads, available_cores());
  plan.validates = !options.no_validation;
  plan.times = !options.no_timing;
  return plan;
}

using FaultsOfRanks = std::vector<std::unique_ptr<PlantedFaults>>;

/// Jobs whose ranks are threads with a GPU each. `faults` owns what is planted in ranks other than
/// the first.
std::unique_ptr<RankedJobs> jobs_of_threads(const RunOptions& options, const DeviceChoice& device,
                                            const std::vector<Pair>& pairs, FaultsOfRanks& faults,
                                            const BenchOptions& bench, std::vector<Job>& jobs) {
  std::vector<std::vector<Job>> of_ranks(1);
  for (int rank = 1; rank < static_cast<int>(device.of_ranks.size()); ++rank) {
    of_ranks.push_back(make_jobs(pairs, device, ""));
    faults.push_back(std::make_unique<PlantedFaults>(options.plant_faults, of_ranks.back(), rank));
  }
  const auto open = [device, threads = options.threads, cache_dir = options.cache_dir,
                     with_cublas_lt = !options.no_cublas_lt](int rank) {
    return open_ops(device_of_thread(device, rank), threads, cache_dir, with_cublas_lt);
  };
  return std::make_unique<RankedJobs>(std::move(of_ranks), open, bench, jobs);
}

/// Makes scenarios of a trace set where the command line names none, and tells the Python that runs
/// its solutions where they are. Why in the cache: the set is not ours to write into.
void take_trace_set(RunArguments& arguments, const Console& console) {
  namespace fs = std::filesystem;
  if (arguments.trace_set.empty()) return;
  std::error_code error;
  const fs::path root = fs::weakly_canonical(arguments.trace_set, error);
  if (!fs::is_directory(root, error)) {
    fail(ErrorKind::kIo, "--trace-set {}: expected a folder, found none", arguments.trace_set);
  }
  setenv("ATTNBENCH_TRACE_SET", root.c_str(), /*overwrite=*/1);
  arguments.trace_names.solutions = trace_solution_names(root);
  if (!arguments.scenarios.empty()) return;
  const std::string& cache = arguments.options.cache_dir;
  const fs::path folder = (cache.empty() ? default_cache_dir() : fs::path(cache)) / "trace-sets" /
                          sha256_hex(root.string()).substr(0, 16);
  const ImportedTraces imported = import_trace_set(root, folder, [](bool is_mla) {
    std::vector<std::string> names;
    for (const Backend* backend : all_backends()) {
      const bool is_default =
          backend->is_default_for(is_mla ? AttentionType::kMla : AttentionType::kDecoder);
      if (is_default) names.push_back(full_name(*backend));
    }
    return names;
  });
  if (!arguments.options.console.quiet) {
    for (const std::string& notice : imported.notices) print_notice(console.err, notice);
  }
  for (const fs::path& path : imported.scenarios) arguments.scenarios.push_back(path.string());
}

/// The workloads that scenarios were made of, for --trace-json.
void add_trace_names(const std::vector<LoadedScenario>& scenarios, TraceNames& names) {
  for (const LoadedScenario& loaded : scenarios) {
    const auto& files = loaded.scenario.files;
    names.workloads.merge(trace_names_beside({files.begin(), files.end()}).workloads);
  }
}

/// The ids that other parts of --part run.
std::set<std::string> ids_of_other_parts(const std::vector<LoadedScenario>& scenarios,
                                         SelectionOptions selection, const Plugins& plugins,
                                         const std::vector<Pair>& pairs) {
  std::set<std::string> ids;
  if (selection.part.empty()) return ids;
  selection.part.clear();
  selection.part_costs.clear();
  for (Pair& pair : select_pairs(scenarios, selection, plugins.backends())) {
    ids.insert(std::move(pair.id));
  }
  for (const Pair& pair : pairs) ids.erase(pair.id);
  return ids;
}

/// `repeat`: the options that a command repeating one case needs.
int run_cases(RunArguments arguments, const std::string& repeat, const Console& console) {
  const RunOptions& options = arguments.options;
  // Why first: the process that holds MPI is forked here, from one without threads and devices.
  const RankHome home = start_broker();
  take_trace_set(arguments, console);
  const DeviceChoice device = choose_rank_device(home, options.selection);
  std::shared_ptr<CeilingMeter> meter;
  if (!options.selection.plugins.empty()) meter = ceiling_meter(options, device);
  Plugins plugins(options.selection.plugins, device, options.threads,
                  options.hang_limit_s.value_or(BenchOptions().hang_limit_s));
  const std::vector<LoadedScenario> scenarios =
      load_scenarios(arguments.scenarios, scenario_overrides(options));
  add_trace_names(scenarios, arguments.trace_names);
  const std::vector<std::string> named = named_backends(options.selection, scenarios);
  if (!meter && names_python(named)) meter = ceiling_meter(options, device);
  plugins.add_named(named);
  const std::vector<Pair> pairs = select_pairs(scenarios, options.selection, plugins.backends());
  check_isolation(options, pairs);
  arguments.other_parts = ids_of_other_parts(scenarios, options.selection, plugins, pairs);
  if (home.launched.rank > 0) {
    return serve_cases(options, home, device, pairs, !plugins.backends().empty());
  }
  const OutputPlan plan = plan_outputs(options.outputs);
  check_work(options);
  check_baseline(arguments);
  check_outputs(arguments, plan, scenarios, pairs);
  const GateOptions gate = gate_options(arguments.gate);
  check_input_files(pairs);
  if (!options.console.quiet) print_notices(scenarios, console);
  if (pairs.empty() && !options.console.quiet) {
    print_error(console.err, why_no_pairs(options.selection));
  }

  RunInfo run = describe_run(console.command);
  number_part(options.selection.part, run.command);
  if (device.info) describe_device(*device.info, run.environment);
  const InterruptGuard guard;
  if (!options.save_tensors.empty()) make_save_dir(options.save_tensors);
  std::vector<Job> jobs = make_jobs(pairs, device, repeat);
  const AheadPlan ahead = ahead_plan(options, device, jobs);
  const PlantedFaults faults(options.plant_faults, jobs);
  set_chunk_threads(options.threads);
  BenchOptions bench = bench_options(options, device, !plugins.backends().empty());
  bench.ceiling_meter = meter;
  bench.rank_waits = std::make_shared<std::function<void(const std::string&)>>();
  FaultsOfRanks faults_of_ranks;
  const std::unique_ptr<RankedJobs> ranked =
      device.is_range ? jobs_of_threads(options, device, pairs, faults_of_ranks, bench, jobs)
                      : std::make_unique<RankedJobs>(home, bench, jobs);
  bench.passes = num_passes(arguments, !device.is_cuda());
  return run_session(arguments, gate, plan, std::move(run), console, jobs, bench, ahead);
}

/// What a run is held against, and by which rules.
void add_baseline_options(OptionTable& options, RunArguments& arguments) {
  options.add({.names = "--baseline",
               .value = "FILE",
               .help = "Gate against this result file, or its cases that --part selects; several "
                       "are pooled (repeatable)",
               .group = kGate,
               .target = &arguments.baselines});
  options.add({.names = "--save-baseline",
               .value = "FILE",
               .help = "Run twice and write a baseline with the noise floor of this machine",
               .group = kGate,
               .target = &arguments.save_baseline});
  add_gate_options(options, arguments.gate);
}

void add_summary_options(OptionTable& options, RunArguments& arguments) {
  options.add({.names = "--summary",
               .value = "FILE",
               .help = "Write a Markdown summary for a pull request",
               .group = kOutputs,
               .target = &arguments.summary});
  options.add({.names = "--history",
               .value = "FILE",
               .help = "Append one line of JSON per result, for 'attnbench history'",
               .group = kOutputs,
               .target = &arguments.history});
  add_link_option(options, arguments.links);
}

/// Data sets in the form of FlashInfer-Trace, in and out.
void add_trace_options(OptionTable& options, RunArguments& arguments) {
  options.add({.names = "--trace-set",
               .value = "DIR",
               .help = "Run the workloads and the solutions of a FlashInfer-Trace data set; with "
                       "SCENARIO, only use its solutions",
               .group = kSelection,
               .target = &arguments.trace_set,
               .repeat = Repeat::kFirst});
  options.add({.names = "--trace-json",
               .value = "FILE",
               .help = "Write FlashInfer-Trace records, one per line",
               .group = kOutputs,
               .target = &arguments.trace_json});
}

/// How a run is spread over time: passes over all cases, and runs that go on where one ended.
void add_pass_options(OptionTable& options, RunArguments& arguments) {
  options.add({.names = "--passes",
               .value = "N",
               .help = "Time all cases in N passes, each with a part of the samples (default: 8 on "
                       "the CPU with --baseline or --save-baseline, otherwise 1)",
               .group = kRunning,
               .target = &arguments.passes,
               .numbers = number_between(1, 1000)});
  options.add(
      {.names = "--resume",
       .value = "FILE",
       .help =
           "Continue an interrupted run: keep the results in this file and its journal, also of "
           "cases that this run does not select, run the rest, and write everything to this file, "
           "or to that of --json",
       .group = kRunning,
       .target = &arguments.resume});
  options.add(
      {.names = "--journal",
       .value = "FILE",
       .help =
           "Write each result here as it arrives (default: FILE.journal beside the --json FILE)",
       .group = kRunning,
       .target = &arguments.journal});
}

/// An option of the gate does nothing in a run without a baseline. Why an error: whoever gives one
/// believes that the run is gated.
void check_baseline_options(const OptionTable& options) {
  if (options.is_given("--baseline") || options.is_given("--save-baseline")) return;
  for (const char* option : kBaselineOptions) {
    if (!options.is_given(option)) continue;
    fail(ErrorKind::kUsage, "{}: expected --baseline or --save-baseline with it, found neither",
         option);
  }
}

}  // namespace

RunCommand declare_run(OptionTable& options) {
  auto arguments = std::make_shared<RunArguments>();
  add_scenarios_argument(options, arguments->scenarios, /*required=*/false);
  add_run_options(options, arguments->options);
  add_trace_options(options, *arguments);
  add_baseline_options(options, *arguments);
  add_summary_options(options, *arguments);
  add_pass_options(options, *arguments);
  return [arguments, &options](const Console& console) {
    check_baseline_options(options);
    if (arguments->scenarios.empty() && arguments->trace_set.empty()) {
      fail(ErrorKind::kUsage, "SCENARIO is required; see 'attnbench run --help'");
    }
    std::string& result_file = arguments->options.outputs[result_file_format().name];
    if (!arguments->resume.empty() && result_file.empty()) result_file = arguments->resume;
    return run_cases(*arguments, options.repeat_text(), console);
  };
}

}  // namespace attnbench
