// attnbench gate: what got worse since a baseline, as an exit code.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <map>
#include <memory>
#include <sstream>
#include <utility>

#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/gate_options.h"
#include "core/error.h"
#include "report/verdicts.h"

namespace attnbench {
namespace {

struct GateCommand {
  std::vector<std::string> files;  // baselines, then the results
  GateArguments gate;
  GateSelection selection;
  ConsoleOptions console;
  std::string json, markdown, junit;
  std::vector<std::string> links;
};

using Paths = std::array<std::pair<const char*, const std::string*>, 3>;

Paths output_paths(const GateCommand& command) {
  return {
      {{"--json", &command.json}, {"--markdown", &command.markdown}, {"--junit", &command.junit}}};
}

/// Whether one of the outputs is stdout. Errors: kUsage when two share a target, E-IO for one that
/// cannot be written.
bool check_outputs(const GateCommand& command) {
  std::map<std::string, const char*> flags;
  for (const auto& [flag, path] : output_paths(command)) {
    if (path->empty()) continue;
    const auto [first, is_new] = flags.emplace(*path, flag);
    if (!is_new) fail(ErrorKind::kUsage, "{} and {} both write to {}", first->second, flag, *path);
    check_writable(*path);
  }
  return flags.contains("-");
}

void write_outputs(const GateCommand& command, const ResultFile& results,
                   const GateReport& report) {
  const auto write = [&](const std::string& path, const auto& writer) {
    if (path.empty()) return;
    std::ostringstream text;
    writer(text);
    write_text(path, text.str());
  };
  write(command.json, [&](std::ostream& out) { write_verdict_json(out, results.run, report); });
  write(command.markdown, [&](std::ostream& out) {
    SummaryOptions options;
    options.links = command.links;
    write_summary(out, results.run, results.results, &report, options);
  });
  write(command.junit, [&](std::ostream& out) { write_verdict_junit(out, results.run, report); });
}

int run_gate(const GateCommand& command, const Console& console) {
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
  if (!uses_stdout || !command.console.quiet) {
    TableOptions table;
    table.color = use_color(command.console.color,
                            uses_stdout ? console.err_is_terminal : console.out_is_terminal);
    table.width = output_width(uses_stdout ? STDERR_FILENO : STDOUT_FILENO);
    table.show_reasons = command.console.verbose;
    write_verdict_table(uses_stdout ? console.err : console.out, report, table);
  }
  if (!report.passed()) return kExitIncorrect;
  return report.compared_anything() ? kExitPassed : kExitNothingRan;
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
  add_gate_options(app, command->gate);
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
  return [command](const Console& console) { return run_gate(*command, console); };
}

}  // namespace attnbench
