// attnbench gate: what got worse since a baseline, or differs between devices, as an exit code.
//
// Two modes. The usual one compares times, errors and statuses with those of earlier result files
// from the same machine, best with one of `run --save-baseline`. --agreement compares two devices,
// whose times say nothing about each other: only statuses and errors. Both read result files and
// run nothing; a run that is to be judged as it ends is `run --baseline`.
#include <unistd.h>

#include <memory>
#include <sstream>

#include "cli/cases/plugins.h"
#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/outputs.h"
#include "cli/session/gate_options.h"
#include "core/error.h"
#include "gate/agreement.h"
#include "report/formats.h"
#include "report/formats/output_file.h"
#include "report/tables/results.h"
#include "report/tables/verdicts.h"

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

/// Colours and width of the stream that the table goes to.
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
  if (first.results.empty() && second.results.empty()) {
    print_error(console.err, why_none_selected(command.selection));
  }
  const AgreementReport report = compare_agreement(
      first, second,
      {command.allowed_factor, command.gate.lenient, command.gate.ignore_environment});
  write_files(plan, [&](const OutputFormat& format, std::ostream& out) {
    format.write_agreement(out, report);
  });
  if (std::ostream* out = table_stream(command, uses_stdout, console)) {
    const RowNames names({&first.results, &second.results});
    write_agreement_table(*out, report, names, table_options(command, uses_stdout, console));
  }
  if (report.failures() > 0) return kExitIncorrect;
  return report.cases.empty() ? kExitNothingRan : kExitPassed;
}

/// Exit code 1 when the gate fails, 3 when there was nothing to compare.
int run_gate(const GateCommand& command, const Console& console) {
  if (command.agreement) return compare_devices(command, console);
  if (command.files.size() < 2) {
    fail(ErrorKind::kUsage, "gate: expected BASELINE and RESULTS, found one file");
  }
  const GateOptions options = gate_options(command.gate);
  const OutputPlan plan = plan_outputs(command.outputs);
  const bool uses_stdout = check_outputs(command, plan);
  ResultFile results = read_results(command.files.back());
  ResultFile baseline = read_baseline({command.files.begin(), command.files.end() - 1}, options);
  keep_selected(command.selection, results.results);
  keep_selected(command.selection, baseline.results);
  if (results.results.empty() && baseline.results.empty()) {
    print_error(console.err, why_none_selected(command.selection));
  }

  const GateReport report = judge_results(baseline, results, options);
  const GatedRun gated{results.run, results.results, report, command.links};
  write_files(plan, [&](const OutputFormat& format, std::ostream& out) {
    format.write_verdicts(out, gated);
  });
  if (std::ostream* out = table_stream(command, uses_stdout, console)) {
    const RowNames names({&results.results, &baseline.results});
    write_verdict_table(*out, report, names, table_options(command, uses_stdout, console));
  }
  if (!report.passed()) return kExitIncorrect;
  return report.compared_anything() ? kExitPassed : kExitNothingRan;
}

void add_agreement_options(OptionTable& options, GateCommand& command) {
  const char* const group = "Two devices";
  options.add(
      {.names = "--agreement",
       .help = "Compare statuses and errors of two files, e.g. of cpu and cuda, and no times",
       .group = group,
       .target = &command.agreement});
  options.add({.names = "--factor",
               .value = "F",
               .help = "How many times larger an error may be on one device than on the other",
               .group = group,
               .target = &command.allowed_factor,
               .shows_default = true,
               .numbers = number_between(1, 1e6)});
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

/// An option of the other mode would do nothing, and whoever gives it expects something of it.
void check_mode(const OptionTable& options, bool agreement) {
  if (!agreement && options.is_given("--factor")) {
    fail(ErrorKind::kUsage, "--factor: expected --agreement with it, found none");
  }
  for (const std::string& option : options_of_times()) {
    if (!agreement || !options.is_given(option)) continue;
    fail(ErrorKind::kUsage,
         "{}: expected a gate without --agreement, which knows statuses and errors alone", option);
  }
}

}  // namespace

RunCommand declare_gate(OptionTable& options) {
  auto command = std::make_shared<GateCommand>();
  options.add({.names = "FILES",
               .value = "BASELINE... RESULTS",
               .help = "Result files: one baseline or several to pool, then the results",
               .target = &command->files,
               .required = true});
  add_result_selection(options, command->selection.filter, command->selection.backends);
  options.add({.names = "--plugin",
               .value = "FILE",
               .help = "Only the backends of this library (repeatable)",
               .target = &command->plugins});
  add_gate_options(options, command->gate);
  add_agreement_options(options, *command);
  add_format_options(options, command->outputs, &OutputFormat::verdict_help);
  add_link_option(options, command->links);
  add_console_options(options, command->console);
  return [command, &options](const Console& console) {
    check_mode(options, command->agreement);
    const Plugins plugins(command->plugins, choose_device("cpu", ""));
    for (const Backend* backend : plugins.backends()) {
      command->selection.backends.push_back(full_name(*backend));
    }
    return run_gate(*command, console);
  };
}

}  // namespace attnbench
