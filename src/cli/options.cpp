#include "cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/number_check.h"
#include "cli/text.h"
#include "core/assumed_device.h"
#include "core/backend_name.h"
#include "core/error.h"

namespace attnbench {

void add_selection_options(CLI::App& app, SelectionOptions& options) {
  const char* const group = "Selection";
  // Why allow_extra_args(false): otherwise a repeatable option takes the SCENARIO after it as well.
  app.add_option("--backend", options.backends,
                 "Backend to take instead of the scenario's (repeatable), NAME@KERNEL with one "
                 "attention kernel for all of its cases; python:MODULE:CLASS is a "
                 "class of the active Python, see docs/plugins.md")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--device", options.device, "auto, cpu or cuda[:N]; auto takes the GPU if any")
      ->type_name("DEVICE")
      ->capture_default_str()
      ->group(group);
  app.add_option("--assume-sm", options.assume_sm,
                 "Compute capability that backends are judged by on the CPU, e.g. 80 or 9.0")
      ->type_name("SM")
      ->group(group);
  app.add_option("--assume-num-sms", options.assume_num_sms,
                 fmt::format("Multiprocessors that work is divided among where there is no device "
                             "(default {})",
                             kAssumedNumSms))
      ->type_name("N")
      ->check(CLI::Range(1, 1024).description(""))
      ->group(group);
  app.add_option("--kernel", options.kernel,
                 "Attention kernel of every backend instead of the first that fits, e.g. general; "
                 "'attnbench explain' lists them")
      ->type_name("NAME")
      ->group(group);
  app.add_option("--set", options.set,
                 "Override a field of the scenario, e.g. timing.order=alternate (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--filter", options.filter,
                 "Only results whose id <scenario>/<case>/<backend> matches")
      ->type_name("REGEX")
      ->group(group);
  app.add_option("--part", options.part,
                 "Only the K-th of N parts of the cases, for several processes; cases that share "
                 "their inputs stay together")
      ->type_name("K/N")
      ->group(group);
  app.add_option("--seed", options.seed, "Seed of the inputs, from 0")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber.description(""))
      ->group(group);
}

void add_plugin_option(CLI::App& app, std::vector<std::string>& plugins) {
  app.add_option("--plugin", plugins,
                 "Library with backends of your own, which are taken beside the others unless "
                 "--backend chooses (repeatable); see docs/plugins.md")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->group("Selection");
}

void add_console_options(CLI::App& app, ConsoleOptions& options) {
  const char* const group = "Console";
  auto* quiet = app.add_flag("-q,--quiet", options.quiet, "Nothing on stderr but errors");
  app.add_flag("-v,--verbose", options.verbose, "More on stderr: a line for every finished case")
      ->excludes(quiet)
      ->group(group);
  quiet->group(group);
  app.add_flag("--no-progress", options.no_progress, "No live progress line")->group(group);
  app.add_option("--color", options.color,
                 "auto, always or never; auto colours a terminal unless NO_COLOR is set")
      ->type_name("WHEN")
      ->check(CLI::IsMember({"auto", "always", "never"}).description(""))
      ->capture_default_str()
      ->group(group);
}

void add_run_options(CLI::App& app, RunOptions& options) {
  add_selection_options(app, options.selection);
  add_plugin_option(app, options.selection.plugins);
  const char* const outputs = "Outputs (FILE '-' is stdout)";
  app.add_option("--json", options.json, "Write all results as JSON")
      ->type_name("FILE")
      ->group(outputs);
  app.add_option("--csv", options.csv, "Write a line per result")
      ->type_name("FILE")
      ->group(outputs);
  app.add_option("--markdown", options.markdown, "Write a Markdown table")
      ->type_name("FILE")
      ->group(outputs);
  app.add_option("--junit", options.junit, "Write JUnit XML")->type_name("FILE")->group(outputs);
  app.add_option("--google-benchmark", options.google_benchmark, "Write google-benchmark JSON")
      ->type_name("FILE")
      ->group(outputs);
  app.add_option("--github-benchmark", options.github_benchmark,
                 "Write JSON for github-action-benchmark (customSmallerIsBetter)")
      ->type_name("FILE")
      ->group(outputs);
  app.add_option("--vllm-csv", options.vllm_csv, "Write the CSV of vLLM's attention_benchmarks")
      ->type_name("FILE")
      ->group(outputs);
  app.add_option("--vllm-json", options.vllm_json, "Write the JSON of vLLM's attention_benchmarks")
      ->type_name("FILE")
      ->group(outputs);
  auto* directory = app.add_option("--save-tensors", options.save_tensors,
                                   "Write inputs, output and reference as safetensors files")
                        ->type_name("DIR")
                        ->group(outputs);
  app.add_option("--save", options.save, "Which results' tensors: failed, or always (the default)")
      ->type_name("WHEN")
      ->check(CLI::IsMember({"failed", "always"}).description(""))
      ->needs(directory)
      ->group(outputs);

  const char* const running = "Running";
  app.add_flag("--no-timing", options.no_timing, "Only validate")->group(running);
  app.add_flag("--no-validation", options.no_validation,
               "Only time; results are 'unverified', not 'passed'")
      ->group(running);
  app.add_option("--samples", options.samples, "Number of timing samples")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000'000).description(""))
      ->group(running);
  app.add_option("--timeout", options.timeout_s, "Limit of the timing of a case, in seconds")
      ->type_name("S")
      ->check(positive_number())
      ->group(running);
  app.add_option("--threads", options.threads, "CPU threads; 0 takes all cores")
      ->type_name("N")
      ->check(CLI::Range(0, 4096).description(""))
      ->group(running);
  app.add_flag("--in-process", options.in_process,
               "Run the cases of a CUDA device or a plugin in this process, for debuggers and "
               "sanitizers")
      ->group(running);
  app.add_option("--hang-limit", options.hang_limit_s,
                 "Seconds of silence while a backend runs on a CUDA device, or a plugin is loaded, "
                 "that end its case as an error (default 60; 0 = never)")
      ->type_name("S")
      ->check(positive_number(/*or_zero=*/true))
      ->group(running);
  app.add_option("--cache-dir", options.cache_dir, "Folder of compiled kernels")
      ->type_name("DIR")
      ->group(running);
  app.add_flag(
         "--no-cublaslt", options.no_cublas_lt,
         "Multiply by this program's own kernel on a CUDA device, also where cuBLASLt is found")
      ->group(running);
  app.add_option("--plant-fault", options.plant_faults,
                 "Let the cases that match hang, crash or overrun a buffer, to see what "
                 "becomes of them and of the others (repeatable)")
      ->type_name("KIND=REGEX")
      ->allow_extra_args(false)
      ->group("Testing this program");
  add_console_options(app, options.console);
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

std::string repeat_options(const RunOptions& options) {
  const SelectionOptions& selection = options.selection;
  std::string text;
  for (const std::string& plugin : selection.plugins) text += " --plugin " + shell_quote(plugin);
  for (const std::string& backend : selection.backends) text += " --backend " + backend;
  if (selection.device != "auto") text += " --device " + shell_quote(selection.device);
  if (!selection.assume_sm.empty()) text += " --assume-sm " + shell_quote(selection.assume_sm);
  if (selection.assume_num_sms) {
    text += fmt::format(" --assume-num-sms {}", *selection.assume_num_sms);
  }
  if (!selection.kernel.empty()) text += " --kernel " + shell_quote(selection.kernel);
  for (const std::string& pair : selection.set) text += " --set " + shell_quote(pair);
  if (selection.seed) text += fmt::format(" --seed {}", *selection.seed);
  if (options.no_timing) text += " --no-timing";
  if (options.no_validation) text += " --no-validation";
  if (options.samples) text += fmt::format(" --samples {}", *options.samples);
  if (options.timeout_s) text += fmt::format(" --timeout {}", *options.timeout_s);
  if (options.hang_limit_s) text += fmt::format(" --hang-limit {}", *options.hang_limit_s);
  if (options.no_cublas_lt) text += " --no-cublaslt";
  for (const std::string& fault : options.plant_faults) {
    text += " --plant-fault " + shell_quote(fault);
  }
  if (options.threads != 0) text += fmt::format(" --threads {}", options.threads);
  return text;
}

}  // namespace attnbench
