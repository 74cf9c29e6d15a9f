// attnbench gate: what got worse since a baseline, or differs between devices, as an exit code.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <sstream>

#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/gate_options.h"
#include "cli/number_check.h"
#include "cli/output_paths.h"
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
  std::string json, markdown, junit;
  std::vector<std::string> links;
  bool agreement = false;
  double allowed_factor = AgreementOptions{}.allowed_factor;
};

/// Whether one of the outputs is stdout. Errors: those of check_output_paths.
bool check_outputs(const GateCommand& command) {
  std::vector<InputPath> inputs = input_paths(command.gate);
  for (const InputPath& plugin : input_paths("--plugin", command.plugins)) inputs.push_back(plugin);
  for (const std::string& path : command.files) {
    inputs.push_back({&path == &command.files.back() ? "RESULTS" : "BASELINE", path});
  }
  return check_output_paths(
      inputs,
      {{"--json", command.json}, {"--markdown", command.markdown}, {"--junit", command.junit}});
}

/// Nothing for an empty path.
template <typename Writer>
void write_file(const std::string& path, const Writer& writer) {
  if (path.empty()) return;
  std::ostringstream text;
  writer(text);
  write_text(path, text.str());
}

void write_outputs(const GateCommand& command, const ResultFile& results,
                   const GateReport& report) {
  write_file(command.json,
             [&](std::ostream& out) { write_verdict_json(out, results.run, report); });
  write_file(command.markdown, [&](std::ostream& out) {
    SummaryOptions options;
    options.links = command.links;
    write_summary(out, results.run, results.results, &report, options);
  });
  write_file(command.junit,
             [&](std::ostream& out) { write_verdict_junit(out, results.run, report); });
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
  const bool uses_stdout = check_outputs(command);
  ResultFile first = read_result_file(command.files.front());
  ResultFile second = read_result_file(command.files.back());
  keep_selected(command.selection, first.results);
  keep_selected(command.selection, second.results);
  const AgreementReport report = compare_agreement(
      first, second,
      {command.allowed_factor, command.gate.lenient, command.gate.ignore_environment});
  write_file(command.json, [&](std::ostream& out) { write_agreement_json(out, report); });
  write_file(command.markdown, [&](std::ostream& out) { write_agreement_markdown(out, report); });
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
  const bool uses_stdout = check_outputs(command);
  ResultFile results = read_result_file(command.files.back());
  ResultFile baseline = read_baseline({command.files.begin(), command.files.end() - 1}, options);
  keep_selected(command.selection, results.results);
  keep_selected(command.selection, baseline.results);

  const GateReport report = judge_results(baseline, results, options);
  write_outputs(command, results, report);
  if (std::ostream* out = table_stream(command, uses_stdout, console)) {
    write_verdict_table(*out, report, table_options(command, uses_stdout, console));
  }
  if (!report.passed()) return kExitIncorrect;
  return report.compared_anything() ? kExitPassed : kExitNothingRan;
}

/// An option of the other mode would do nothing.
void check_mode(const CLI::App& app, bool agreement) {
  if (!agreement && app.count("--factor") > 0) {
    fail(ErrorKind::kUsage, "--factor: expected --agreement with it, found none");
  }
  for (const char* option :
       {"--threshold", "--floor-us", "--accuracy-threshold", "--thresholds", "--known",
        "--fail-on-improvement", "--fail-on-ambiguous", "--junit", "--link"}) {
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
  const char* const outputs = "Outputs (FILE '-' is stdout)";
  app.add_option("--json", command->json, "Write every verdict as JSON")
      ->type_name("FILE")
      ->group(outputs);
  app.add_option("--markdown", command->markdown, "Write a summary for a pull request")
      ->type_name("FILE")
      ->group(outputs);
  app.add_option("--junit", command->junit, "Write JUnit XML")->type_name("FILE")->group(outputs);
  app.add_option("--link", command->links, "URL of an artefact for the summary (repeatable)")
      ->type_name("URL")
      ->allow_extra_args(false)
      ->group(outputs);
  add_console_options(app, command->console);
  return [command, &app](const Console& console) {
    check_mode(app, command->agreement);
    const Plugins plugins(command->plugins, choose_device("cpu", ""));
    for (const Backend* backend : plugins.backends()) {
      command->selection.backends.push_back(full_name(*backend));
    }
    return run_gate(*command, console);
  };
}

}  // namespace attnbench
