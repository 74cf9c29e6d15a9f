// attnbench gate: what got worse since a baseline, or differs between devices, as an exit code.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <sstream>

#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/gate_options.h"
#include "cli/number_check.h"
#include "cli/output_options.h"
#include "cli/outputs.h"
#include "cli/plugins.h"
#include "core/error.h"
#include "gate/agreement.h"
#include "report/tables/agreement.h"
#include "report/verdicts.h"

namespace attnbench {
namespace {

struct GateCommand {
  std::vector<std::string> files;  // baselines, then the results
  GateArguments gate;
  GateSelection selection;
  std::vector<std::string> plugins;
  ConsoleOptions console;
  OutputFiles outputs;
  std::vector<std::string> links;
  bool agreement = false;
  double allowed_factor = AgreementOptions{}.allowed_factor;
};

/// Whether one of the outputs is stdout. Errors: those of check_output_paths.
bool check_outputs(const GateCommand& command, const OutputPlan& plan) {
  std::vector<InputPath> inputs = input_paths(command.gate);
  for (const InputPath& plugin : input_paths("--plugin", command.plugins)) inputs.push_back(plugin);
  for (const std::string& path : command.files) {
    inputs.push_back({&path == &command.files.back() ? "RESULTS" : "BASELINE", path});
  }
  return check_output_paths(inputs, output_paths(plan));
}

/// Writes every file of the plan by `write(format, stream)`.
template <typename Write>
void write_files(const OutputPlan& plan, const Write& write) {
  for (const auto& [format, path] : plan.files) {
    std::ostringstream text;
    write(*format, text);
    write_text(path, text.str());
  }
}

/// Where the table goes: null where stdout is taken and stderr is to be quiet.
std::ostream* table_stream(const GateCommand& command, bool uses_stdout, const Console& console) {
  if (!uses_stdout) return &console.out;
  return command.console.quiet ? nullptr : &console.err;
}

TableOptions table_options(const GateCommand& command, bool uses_stdout, const Console& console) {
  TableOptions table;
  table.color = use_color(command.console.color,
                          uses_stdout ? console.err_is_terminal : console.out_is_terminal);
  table.width = output_width(uses_stdout ? STDERR_FILENO : STDOUT_FILENO);
  table.show_reasons = command.console.verbose;
  return table;
}

/// Two devices side by side: statuses and errors, no times.
int compare_devices(const GateCommand& command, const Console& console) {
  if (command.files.size() != 2) {
    fail(ErrorKind::kUsage, "gate --agreement: expected two files, found {}", command.files.size());
  }
  const OutputPlan plan = plan_outputs(command.outputs);
  const bool uses_stdout = check_outputs(command, plan);
  ResultFile first = read_result_file(command.files.front());
  ResultFile second = read_result_file(command.files.back());
  keep_selected(command.selection, first.results);
  keep_selected(command.selection, second.results);
  const AgreementReport report = compare_agreement(
      first, second,
      {command.allowed_factor, command.gate.lenient, command.gate.ignore_environment});
  write_files(plan, [&](const OutputFormat& format, std::ostream& out) {
    format.write_agreement(out, report);
  });
  if (std::ostream* out = table_stream(command, uses_stdout, console)) {
    write_agreement_table(*out, report, table_options(command, uses_stdout, console));
  }
  if (report.failures() > 0) return kExitIncorrect;
  return report.cases.empty() ? kExitNothingRan : kExitPassed;
}

int run_gate(const GateCommand& command, const Console& console) {
  if (command.agreement) return compare_devices(command, console);
  if (command.files.size() < 2) {
    fail(ErrorKind::kUsage, "gate: expected BASELINE and RESULTS, found one file");
  }
  const GateOptions options = gate_options(command.gate);
  const OutputPlan plan = plan_outputs(command.outputs);
  const bool uses_stdout = check_outputs(command, plan);
  ResultFile results = read_result_file(command.files.back());
  ResultFile baseline = read_baseline({command.files.begin(), command.files.end() - 1}, options);
  keep_selected(command.selection, results.results);
  keep_selected(command.selection, baseline.results);

  const GateReport report = judge_results(baseline, results, options);
  const GatedRun gated{results.run, results.results, report, command.links};
  write_files(plan, [&](const OutputFormat& format, std::ostream& out) {
    format.write_verdicts(out, gated);
  });
  if (std::ostream* out = table_stream(command, uses_stdout, console)) {
    write_verdict_table(*out, report, table_options(command, uses_stdout, console));
  }
  if (!report.passed()) return kExitIncorrect;
  return report.compared_anything() ? kExitPassed : kExitNothingRan;
}

/// Options of a gate that compares times too.
std::vector<std::string> options_of_times() {
  std::vector<std::string> options{"--threshold",        "--floor-us", "--accuracy-threshold",
                                   "--thresholds",       "--known",    "--fail-on-improvement",
                                   "--fail-on-ambiguous"};
  for (const OutputFormat& format : output_formats()) {
    const bool only_verdicts = format.write_verdicts && !format.write_agreement;
    if (only_verdicts) options.push_back(fmt::format("--{}", format.name));
  }
  options.emplace_back("--link");
  return options;
}

/// An option of the other mode would do nothing.
void check_mode(const CLI::App& app, bool agreement) {
  if (!agreement && app.count("--factor") > 0) {
    fail(ErrorKind::kUsage, "--factor: expected --agreement with it, found none");
  }
  for (const std::string& option : options_of_times()) {
    if (!agreement || app.count(option) == 0) continue;
    fail(ErrorKind::kUsage,
         "{}: expected a gate without --agreement, which knows statuses and errors alone", option);
  }
}

}  // namespace

RunCommand declare_gate(CLI::App& app) {
  auto command = std::make_shared<GateCommand>();
  app.add_option("FILES", command->files,
                 "Result files: one baseline or several to pool, then the results")
      ->type_name("BASELINE... RESULTS")
      ->required();
  app.add_option("--filter", command->selection.filter, "Only results whose id matches")
      ->type_name("REGEX");
  app.add_option("--backend", command->selection.backends, "Only this backend (repeatable)")
      ->type_name("NAME")
      ->allow_extra_args(false);
  app.add_option("--plugin", command->plugins, "Only the backends of this library (repeatable)")
      ->type_name("FILE")
      ->allow_extra_args(false);
  add_gate_options(app, command->gate);
  const char* const devices = "Two devices";
  app.add_flag("--agreement", command->agreement,
               "Compare statuses and errors of two files, e.g. of cpu and cuda, and no times")
      ->group(devices);
  app.add_option("--factor", command->allowed_factor,
                 "How many times larger an error may be on one device than on the other")
      ->type_name("F")
      ->check(number_between(1, 1e6))
      ->capture_default_str()
      ->group(devices);
  add_output_options(app, command->outputs, &OutputFormat::verdict_help);
  app.add_option("--link", command->links, "URL of an artefact for the summary (repeatable)")
      ->type_name("URL")
      ->allow_extra_args(false)
      ->group(kOutputGroup);
  add_console_options(app, command->console);
  return [command, &app](const Console& console) {
    check_mode(app, command->agreement);
    const Plugins plugins(command->plugins, choose_device("cpu", ""));
    for (const Backend* backend : plugins.backends()) {
      command->selection.backends.emplace_back(backend->name());
    }
    return run_gate(*command, console);
  };
}

}  // namespace attnbench
