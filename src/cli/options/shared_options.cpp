#include "cli/options/shared_options.h"

#include <fmt/format.h>

#include "core/assumed_device.h"
#include "core/backend_name.h"
#include "core/error.h"

namespace attnbench {

// Rows are in the order of --help; new ones go to the end of their function. `repeat` is for what
// changes the result of a case.

void add_selection_options(OptionTable& options, SelectionOptions& selection) {
  options.add({.names = "--backend",
               .value = "NAME",
               .help =
                   "Backend to run instead of the scenario's (repeatable); NAME@KERNEL uses one "
                   "attention kernel for all of its cases, python:MODULE:CLASS is a class of the "
                   "active Python (docs/plugins.md)",
               .group = kSelection,
               .target = &selection.backends,
               .repeat = Repeat::kInOrder});
  options.add({.names = "--device",
               .value = "DEVICE",
               .help = "auto, cpu, cuda[:N], or cuda:N-M, a GPU for each rank of a DCP group; auto "
                       "uses a GPU if there is one",
               .group = kSelection,
               .target = &selection.device,
               .shows_default = true,
               .choices = {"auto", "cpu", "cuda"},
               .takes_others = true,
               .repeat = Repeat::kInOrder});
  options.add(
      {.names = "--assume-sm",
       .value = "SM",
       .help = "On the CPU, compute capability that backends are checked against, e.g. 80 or 9.0",
       .group = kSelection,
       .target = &selection.assume_sm,
       .repeat = Repeat::kInOrder});
  options.add({.names = "--assume-num-sms",
               .value = "N",
               .help = fmt::format("Without a GPU, number of multiprocessors to divide work among "
                                   "(default {})",
                                   kAssumedNumSms),
               .group = kSelection,
               .target = &selection.assume_num_sms,
               .numbers = whole_numbers(1, 1024),
               .repeat = Repeat::kInOrder});
  options.add({.names = "--kernel",
               .value = "NAME",
               .help =
                   "Attention kernel that every backend uses instead of the first that fits, e.g. "
                   "general, or one with options, e.g. hopper_prefill:stages=3; 'attnbench "
                   "explain' lists them",
               .group = kSelection,
               .target = &selection.kernel,
               .repeat = Repeat::kInOrder});
  options.add({.names = "--set",
               .value = "KEY=VALUE",
               .help = "Override a field of the scenario, e.g. timing.order=alternate (repeatable)",
               .group = kSelection,
               .target = &selection.set,
               .repeat = Repeat::kInOrder});
  options.add({.names = "--filter",
               .value = "REGEX",
               .help = "Only results whose id <scenario>/<case>/<backend> matches",
               .group = kSelection,
               .target = &selection.filter});  // never repeated: the case is named by its id
  options.add({.names = "--part",
               .value = "K/N",
               .help =
                   "Run only part K of N, to share a suite among processes; cases with the same "
                   "inputs stay together. slurm takes K and N from the array job",
               .group = kSelection,
               .target = &selection.part});
  options.add({.names = "--part-costs",
               .value = "RESULTS",
               .help = "Balance the parts of --part by the times in this result file; give every "
                       "part the same file",
               .group = kSelection,
               .target = &selection.part_costs});
  options.add({.names = "--seed",
               .value = "N",
               .help = "Seed of the inputs, 0 or more",
               .group = kSelection,
               .target = &selection.seed,
               .numbers = numbers_from_zero(),
               .repeat = Repeat::kInOrder});
}

void add_plugin_option(OptionTable& options, std::vector<std::string>& plugins) {
  options.add({.names = "--plugin",
               .value = "FILE",
               .help =
                   "Load backends from a shared library, in addition to the built-in ones unless "
                   "--backend chooses (repeatable); see docs/plugins.md",
               .group = kSelection,
               .target = &plugins,
               .repeat = Repeat::kFirst});
}

void add_console_options(OptionTable& options, ConsoleOptions& console) {
  options.add({.names = "-q,--quiet",
               .help = "Print only errors on stderr",
               .group = kConsole,
               .target = &console.quiet});
  options.add({.names = "-v,--verbose",
               .help = "Show more: a line on stderr for every finished case, every reason and rule "
                       "below a table; in explain, every key and each backend separately",
               .group = kConsole,
               .target = &console.verbose,
               .excludes = "--quiet"});
  options.add({.names = "--no-progress",
               .help = "No live progress line",
               .group = kConsole,
               .target = &console.no_progress});
  options.add({.names = "--color",
               .value = "WHEN",
               .help = "auto, always or never; auto colours a terminal unless NO_COLOR is set",
               .group = kConsole,
               .target = &console.color,
               .shows_default = true,
               .choices = {"auto", "always", "never"}});
}

void add_format_options(OptionTable& options, OutputFiles& files, const char* OutputFormat::*help,
                        const std::vector<OutputFormat>& formats) {
  for (const OutputFormat& format : formats) {
    if (format.*help == nullptr) continue;
    options.add({.names = fmt::format("--{}", format.name),
                 .value = "FILE",
                 .help = format.*help,
                 .group = kOutputs,
                 .target = &files[format.name]});
  }
}

const std::string& result_file_path(const OutputFiles& files) {
  static const std::string none;
  const auto found = files.find(result_file_format().name);
  return found == files.end() ? none : found->second;
}

namespace {

void add_save_options(OptionTable& options, RunOptions& run) {
  options.add({.names = "--save-tensors",
               .value = "DIR",
               .help = "Write inputs, output and reference as safetensors files",
               .group = kOutputs,
               .target = &run.save_tensors});
  options.add({.names = "--save",
               .value = "WHEN",
               .help = "Save tensors of failed results only, or always (the default)",
               .group = kOutputs,
               .target = &run.save,
               .choices = {"failed", "always"},
               .needs = "--save-tensors"});
}

void add_running_options(OptionTable& options, RunOptions& run) {
  options.add({.names = "--no-timing",
               .help = "Only validate",
               .group = kRunning,
               .target = &run.no_timing,
               .repeat = Repeat::kInOrder});
  options.add({.names = "--no-validation",
               .help = "Only time; results are 'unverified', not 'passed'",
               .group = kRunning,
               .target = &run.no_validation,
               .repeat = Repeat::kInOrder});
  options.add({.names = "--sample-checks",
               .value = "WHICH",
               .help =
                   "Checks around timed samples: all (the default), query (only write the query "
                   "last) or none, to see what the checks cost",
               .group = kRunning,
               .target = &run.sample_checks,
               .choices = {"all", "query", "none"}});
  options.add({.names = "--all-edges",
               .help = "Also run built-in backends with their buffers at the edges of memory "
                       "(docs/verdicts.md)",
               .group = kRunning,
               .target = &run.all_edges,
               .repeat = Repeat::kInOrder});
  options.add({.names = "--samples",
               .value = "N",
               .help = "Number of timing samples",
               .group = kRunning,
               .target = &run.samples,
               .numbers = whole_numbers(1, 1'000'000'000),
               .repeat = Repeat::kInOrder});
  options.add({.names = "--timeout",
               .value = "S",
               .help =
                   "Time limit for timing one case, in seconds; a notice says where it cuts the "
                   "number of samples",
               .group = kRunning,
               .target = &run.timeout_s,
               .numbers = positive_number(),
               .repeat = Repeat::kInOrder});
  options.add({.names = "--fingerprint",
               .help =
                   "Determine the arithmetic of each kernel from its outputs: bits of its sums, "
                   "type of P, rounding, and how the error grows with length on values with a "
                   "nonzero mean (docs/verdicts.md)",
               .group = kRunning,
               .target = &run.fingerprint});
  options.add({.names = "--sample-seed",
               .value = "N",
               .help = "Check the same rows as an earlier run: the \"sample_seed\" of its result",
               .group = kRunning,
               .target = &run.sample_seed,
               .numbers = whole_numbers(0, 2147483647)});
  add_threads_option(options, kRunning, run.threads, Repeat::kLast);
  options.add({.names = "--in-process",
               .help = "Run the cases of a CUDA device or a plugin in this process, for debuggers "
                       "and sanitizers",
               .group = kRunning,
               .target = &run.in_process});
  options.add({.names = "--hang-limit",
               .value = "S",
               .help =
                   "Seconds of silence after which a case ends as an error, while a backend runs "
                   "on a CUDA device or a plugin is loaded (default 60; 0 = never)",
               .group = kRunning,
               .target = &run.hang_limit_s,
               .numbers = positive_number(/*or_zero=*/true),
               .repeat = Repeat::kInOrder});
  add_cache_dir_option(options, kRunning, run.cache_dir);
  options.add({.names = "--compile-jobs",
               .value = "N",
               .help = "Kernels that are compiled at a time ahead of their use on a CUDA device; 0 "
                       "= none (default: two fewer than there are cores, at most 16)",
               .group = kRunning,
               .target = &run.compile_jobs,
               .numbers = whole_numbers(0, 256)});
  options.add(
      {.names = "--no-cublaslt",
       .help = "Use attnbench's own matrix product on a CUDA device, even if cuBLASLt is found",
       .group = kRunning,
       .target = &run.no_cublas_lt,
       .repeat = Repeat::kInOrder});
}

void add_fault_option(OptionTable& options, RunOptions& run) {
  options.add({.names = "--plant-fault",
               .value = "KIND=REGEX",
               .help = "Make the cases that match hang, crash, overrun a buffer or exit, to see "
                       "what happens to them and to the others; KIND@RANK: on one rank, "
                       "KIND:STEP: at the start of that step (repeatable)",
               .group = "Testing this program",
               .target = &run.plant_faults,
               .repeat = Repeat::kInOrder});
}

}  // namespace

void add_run_options(OptionTable& options, RunOptions& run) {
  add_selection_options(options, run.selection);
  add_plugin_option(options, run.selection.plugins);
  add_format_options(options, run.outputs, &OutputFormat::help);
  add_save_options(options, run);
  add_running_options(options, run);
  add_fault_option(options, run);
  add_console_options(options, run.console);
}

void add_threads_option(OptionTable& options, const char* group, int& threads, Repeat repeat) {
  options.add({.names = "--threads",
               .value = "N",
               .help = "CPU threads; 0 takes all cores",
               .group = group,
               .target = &threads,
               .numbers = whole_numbers(0, 4096),
               .repeat = repeat});
}

void add_cache_dir_option(OptionTable& options, const char* group, std::string& dir) {
  options.add({.names = "--cache-dir",
               .value = "DIR",
               .help = "Folder for compiled kernels",
               .group = group,
               .target = &dir});
}

void add_scenarios_argument(OptionTable& options, std::vector<std::string>& scenarios,
                            bool required) {
  options.add({.names = "SCENARIO",
               .help = "Scenario files, folders of them, names of shipped scenarios, or - for "
                       "standard input",
               .target = &scenarios,
               .required = required});
}

void add_study_options(OptionTable& options, StudyOptions& study, const char* json_help,
                       bool runs) {
  add_scenarios_argument(options, study.scenarios);
  add_selection_options(options, study.selection);
  add_plugin_option(options, study.selection.plugins);
  if (runs) {
    add_threads_option(options, kRunning, study.threads);
    add_cache_dir_option(options, kRunning, study.cache_dir);
  }
  options.add({.names = "--json", .value = "FILE", .help = json_help, .target = &study.json});
  add_console_options(options, study.console);
}

void add_link_option(OptionTable& options, std::vector<std::string>& links) {
  options.add({.names = "--link",
               .value = "URL",
               .help = "URL of an artefact for the summary (repeatable)",
               .group = kOutputs,
               .target = &links});
}

void add_result_selection(OptionTable& options, std::string& filter,
                          std::vector<std::string>& backends) {
  options.add({.names = "--filter",
               .value = "REGEX",
               .help = "Only results whose id matches",
               .target = &filter});
  options.add({.names = "--backend",
               .value = "NAME",
               .help = "Only this backend (repeatable)",
               .target = &backends});
}

std::vector<std::string> result_backends(const SelectionOptions& selection) {
  std::vector<std::string> names;
  for (const std::string& name : selection.backends) {
    names.push_back(backend_name(name, selection.kernel));
  }
  return names;
}

std::vector<std::pair<std::string, std::string>> scenario_overrides(
    const SelectionOptions& selection) {
  std::vector<std::pair<std::string, std::string>> overrides;
  for (const std::string& text : selection.set) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      fail(ErrorKind::kUsage, "--set: expected KEY=VALUE, e.g. attention.head_size=64, found '{}'",
           text);
    }
    overrides.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  if (selection.seed) overrides.emplace_back("inputs.seed", std::to_string(*selection.seed));
  return overrides;
}

std::vector<std::pair<std::string, std::string>> scenario_overrides(const RunOptions& options) {
  auto overrides = scenario_overrides(options.selection);
  if (options.samples) overrides.emplace_back("timing.samples", std::to_string(*options.samples));
  if (options.timeout_s) {
    overrides.emplace_back("timing.timeout_s", fmt::format("{}", *options.timeout_s));
  }
  return overrides;
}

}  // namespace attnbench
