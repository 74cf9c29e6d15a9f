// attnbench run: every case on every backend, validated and timed.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>

#include "bench/bench.h"
#include "bench/system.h"
#include "cli/command.h"
#include "cli/device.h"
#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/gate_options.h"
#include "cli/interrupt.h"
#include "cli/output_paths.h"
#include "cli/outputs.h"
#include "cli/planted_faults.h"
#include "cli/plugins.h"
#include "cli/progress.h"
#include "cli/resume.h"
#include "cli/scenario_files.h"
#include "cli/selection.h"
#include "cli/text.h"
#include "core/error.h"
#include "core/parallel.h"
#include "gate/baseline.h"
#include "inputs/mm_scale_file.h"
#include "inputs/scale_file_hashes.h"
#include "inputs/value_scale.h"
#include "report/verdicts.h"

namespace attnbench {
namespace {

struct RunArguments {
  std::vector<std::string> scenarios;
  RunOptions options;
  GateArguments gate;
  std::vector<std::string> baselines;
  std::string save_baseline;
  std::string resume;
  std::string journal;
  std::string summary;
  std::vector<std::string> links;
};

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
  bench.make_ops = [device, threads = options.threads, cache_dir = options.cache_dir] {
    return open_ops(device, threads, cache_dir);
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
  ScaleFileHashes hashes;
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
                                      Journal* journal, const ConsoleOptions& options,
                                      const Console& console) {
  ProgressOptions progress_options;
  progress_options.live =
      console.err_is_terminal && !is_dumb_terminal() && !options.quiet && !options.no_progress;
  progress_options.line_per_result = options.verbose;
  progress_options.notices = !options.quiet;
  progress_options.width = output_width(STDERR_FILENO);
  Progress progress(console.err, steady_clock(), progress_options);
  JournalObserver observer(progress, journal);
  return run_jobs(jobs, bench, observer);
}

/// Where tables go: stdout unless an output took it. With -q nothing but errors goes to stderr, so
/// a table that had to move there is left out.
struct TablePlace {
  std::ostream* out;  // null = nowhere
  TableOptions options;
};
TablePlace table_place(const OutputPlan& plan, const ConsoleOptions& options,
                       const Console& console) {
  const bool moved = plan.uses_stdout;
  TablePlace place{moved && options.quiet ? nullptr : moved ? &console.err : &console.out, {}};
  const bool is_terminal = moved ? console.err_is_terminal : console.out_is_terminal;
  place.options.color = use_color(options.color, is_terminal);
  place.options.width = output_width(moved ? STDERR_FILENO : STDOUT_FILENO);
  return place;
}

/// Where the journal goes: where the user wants it, else beside a result file that is a real file.
std::string journal_target(const RunArguments& arguments) {
  if (!arguments.journal.empty()) return arguments.journal;
  const std::string& json = arguments.options.json;
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(json, error);
  const bool is_special =
      std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
  return json.empty() || json == "-" || is_special ? "" : journal_path(json);
}

/// One run with everything around it: what is kept of an earlier one, the journal, the baseline.
class RunSession {
 public:
  RunSession(const RunArguments& arguments, const GateOptions& gate, const OutputPlan& plan,
             RunInfo run, const Console& console)
      : arguments_(arguments),
        options_(arguments.options),
        gate_(gate),
        console_(console),
        place_(table_place(plan, arguments.options.console, console)),
        plan_(plan),
        run_(std::move(run)) {}

  int run(const std::vector<Job>& jobs, const BenchOptions& bench) {
    if (!arguments_.baselines.empty()) read_baseline_of(jobs, bench);
    measure(jobs, bench);
    if (baseline_ && !InterruptGuard::interrupted()) judge(jobs, bench);
    Outcome outcome;
    const KnownInRun known = set_known_apart(results_, gate_);
    outcome.counts = known.counts;
    outcome.named_backend_unsupported =
        is_named_backend_unsupported(options_.selection.backends, results_);
    outcome.interrupted = InterruptGuard::interrupted();
    outcome.regression = (report_ && !report_->passed()) || not_repeatable_;
    print(known);
    outcome.usage_error = !write_files(outcome.interrupted);
    return exit_code(outcome);
  }

 private:
  /// Refuses a baseline of another machine before an hour is spent on it.
  void read_baseline_of(const std::vector<Job>& jobs, const BenchOptions& bench) {
    baseline_ = read_baseline(arguments_.baselines, gate_);
    keep_selected({options_.selection.filter, options_.selection.backends}, baseline_->results);
    std::vector<Result> planned;
    for (const Job& job : jobs) planned.push_back(describe_job(job, bench));
    judge_results(*baseline_, file_with(planned), gate_);
  }

  /// This run as a gate reads it from a file: with the device and its clocks.
  ResultFile file_with(const std::vector<Result>& results) const {
    std::ostringstream text;
    write_json(text, run_, results);
    return parse_result_file(text.str(), "this run");
  }

  std::vector<Result> run_again(const std::vector<Job>& jobs, const BenchOptions& bench) {
    return run_with_progress(jobs, bench, nullptr, options_.console, console_);
  }

  void measure(const std::vector<Job>& jobs, const BenchOptions& bench) {
    std::vector<Result> kept;
    if (!arguments_.resume.empty()) kept = results_to_keep(arguments_.resume, jobs, bench, run_);
    const std::string target = journal_target(arguments_);
    if (!target.empty()) journal_.emplace(target, run_, kept);
    if (journal_ && journal_->path() != target && !options_.console.quiet) {
      print_notice(console_.err, fmt::format("another run writes '{}'; this one uses '{}'", target,
                                             journal_->path()));
    }
    const std::vector<Job> left = jobs_left(jobs, kept);
    std::vector<Result> added =
        run_with_progress(left, bench, journal_ ? &*journal_ : nullptr, options_.console, console_);
    results_ = in_job_order(jobs, std::move(kept), std::move(added));
    if (!arguments_.save_baseline.empty() && !InterruptGuard::interrupted())
      self_check(jobs, bench);
  }

  /// A/A: the same program again, which gives the noise floor. Cases that are right once and wrong
  /// once are no baseline.
  void self_check(const std::vector<Job>& jobs, const BenchOptions& bench) {
    const std::vector<std::vector<Result>> runs{results_, run_again(jobs, bench)};
    if (InterruptGuard::interrupted()) return;
    run_.noise_floor = measure_noise_floor(runs, gate_.floor_us);
    results_ = pool_runs(runs);
    GateOptions options = gate_;
    options.lenient = true;
    const GateReport check = judge_results(file_with(runs[0]), file_with(runs[1]), options);
    for (const Verdict& verdict : check.verdicts) {
      const bool unsteady = verdict.kind == VerdictKind::kBroken ||
                            verdict.kind == VerdictKind::kFixed ||
                            verdict.kind == VerdictKind::kLessAccurate;
      if (!unsteady) continue;
      not_repeatable_ = true;
      print_error(console_.err, fmt::format("not repeatable: {}: {}", verdict.id, verdict.rule));
    }
    warn_of_other_programs();
  }

  /// A baseline of a busy machine is slow, and so hides what gets slower.
  void warn_of_other_programs() const {
    constexpr double kMuch = 0.05;
    const auto waited = std::count_if(results_.begin(), results_.end(), [](const Result& result) {
      return result.timing && result.timing->cpu_wait > kMuch;
    });
    if (waited == 0) return;
    console_.err << fmt::format(
        "attnbench: other programs had the cores while {} of {} cases were timed: a baseline of a "
        "quiet machine finds smaller slowdowns\n",
        waited, results_.size());
  }

  /// Verdicts, after every case that looks slower was measured again: a slowdown that is gone in
  /// the samples of several measurements was the machine's.
  void judge(const std::vector<Job>& jobs, const BenchOptions& bench) {
    constexpr int kConfirmations = 2;
    for (int round = 0;; ++round) {
      report_ = judge_results(*baseline_, file_with(results_), gate_);
      std::vector<Job> slower;
      for (const Verdict& verdict : report_->verdicts) {
        if (verdict.kind != VerdictKind::kSlower) continue;
        for (const Job& job : jobs) {
          if (job.id == verdict.id) slower.push_back(job);
        }
      }
      if (round == kConfirmations || slower.empty() || InterruptGuard::interrupted()) return;
      const std::vector<Result> again = run_again(slower, bench);
      if (InterruptGuard::interrupted()) return;
      results_ = pool_runs({results_, again});
    }
  }

  void print(const KnownInRun& known) const {
    if (place_.out == nullptr) return;
    write_table(*place_.out, run_, results_, place_.options);
    for (const std::string& line : known.lines) *place_.out << line << "\n";
    if (!report_) {
      print_plots();
      return;
    }
    *place_.out << "\n";
    TableOptions options = place_.options;
    options.show_reasons = options_.console.verbose;
    write_verdict_table(*place_.out, *report_, options);
  }

  /// What to do next with times that nobody has to worry about.
  void print_plots() const {
    const bool is_file = !options_.json.empty() && options_.json != "-";
    const bool timed = std::any_of(results_.begin(), results_.end(),
                                   [](const Result& result) { return result.timing.has_value(); });
    if (!is_file || !timed) return;
    *place_.out << fmt::format("plots: attnbench report {} -o report.html\n", options_.json);
  }

  /// Not one whose results change from run to run, nor one that failed in the place of the baseline
  /// that it failed against: the next run would pass.
  bool may_save_baseline() const {
    if (not_repeatable_) return false;
    const auto& old = arguments_.baselines;
    const bool in_place = std::any_of(old.begin(), old.end(), [&](const std::string& path) {
      return is_same_file(path, arguments_.save_baseline);
    });
    if (!in_place || report_->passed()) return true;
    console_.err << fmt::format("attnbench: '{}' stays as it was: the gate failed\n",
                                arguments_.save_baseline);
    return false;
  }

  /// Whether all could be written; the journal stays when not, or when the run is not complete.
  bool write_files(bool interrupted) {
    try {
      plan_.write(run_, results_);
      if (!arguments_.summary.empty()) {
        std::ostringstream text;
        SummaryOptions options;
        options.links = arguments_.links;
        write_summary(text, run_, results_, report_ ? &*report_ : nullptr, options);
        write_text(arguments_.summary, text.str());
      }
      if (!arguments_.save_baseline.empty() && !interrupted && may_save_baseline()) {
        write_output(output_formats().front(), arguments_.save_baseline, run_, results_);
      }
    } catch (const Error& error) {
      print_error(console_.err, error.full_message());
      return false;
    }
    const bool is_ours = arguments_.journal.empty();
    if (journal_ && is_ours) journal_->remove();
    return true;
  }

  const RunArguments& arguments_;
  const RunOptions& options_;
  const GateOptions& gate_;
  const Console& console_;
  const TablePlace place_;
  const OutputPlan& plan_;
  RunInfo run_;
  std::optional<Journal> journal_;
  std::optional<ResultFile> baseline_;
  std::optional<GateReport> report_;
  std::vector<Result> results_;
  bool not_repeatable_ = false;
};

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
  const DeviceChoice device = choose_device(options.selection.device, options.selection.assume_sm);
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
  RunSession session(arguments, gate, plan, std::move(run), console);
  if (!options.save_tensors.empty()) std::filesystem::create_directories(options.save_tensors);
  std::vector<Job> jobs = make_jobs(pairs, options, device);
  const PlantedFaults faults(options.plant_faults, jobs);
  set_chunk_threads(options.threads);
  return session.run(jobs, bench_options(options, device, !plugins.backends().empty()));
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
