// attnbench diff: two result files side by side in the terminal.
//
// For looking, as `report` is: files of different machines are compared too, with a notice, and
// what got worse is no reason to fail. The page of `report A B -o` shows the same with plots, and
// `gate` turns it into an exit code.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/session/gate_options.h"
#include "core/error.h"
#include "core/result/result_file.h"
#include "gate/belief.h"
#include "gate/foreign.h"
#include "report/tables/comparison.h"

namespace attnbench {
namespace {

struct DiffCommand {
  std::vector<std::string> files;
  GateSelection selection;
  ConsoleOptions console;
};

/// The file without what cannot be believed of it.
ResultFile believed_file(const std::string& path, const Console& console) {
  ResultFile file = read_result_file(path);
  const int count = disbelieve(file);
  if (count > 0) {
    print_notice(
        console.err,
        fmt::format("{}: {} cannot be believed, since numbers contradict each other; shown as {}",
                    path, count == 1 ? "1 result" : fmt::format("{} results", count),
                    count == 1 ? "an error" : "errors"));
  }
  return file;
}

/// What makes times of the two files no measure of each other.
void print_differences(const ResultFile& before, const ResultFile& after, const Console& console) {
  std::vector<std::string> differences = foreign_reasons(before, after);
  for (std::string& scales : scale_differences(before, after)) {
    differences.push_back(std::move(scales));
  }
  for (const std::string& difference : differences) print_notice(console.err, difference);
}

int run_diff(const DiffCommand& command, const Console& console) {
  if (command.files.size() != 2) {
    fail(ErrorKind::kUsage, "diff: expected two result files, found {}", command.files.size());
  }
  ResultFile before = believed_file(command.files[0], console);
  ResultFile after = believed_file(command.files[1], console);
  keep_selected(command.selection, before.results);
  keep_selected(command.selection, after.results);
  if (before.results.empty() && after.results.empty()) {
    print_error(console.err, why_none_selected(command.selection));
    return kExitNothingRan;
  }
  if (!command.console.quiet) print_differences(before, after, console);
  GateOptions options;
  options.ignore_environment = true;
  options.lenient = true;
  const GateReport report = judge_results(before, after, options);
  TableOptions table;
  table.color = use_color(command.console.color, console.out_is_terminal);
  table.width = output_width(STDOUT_FILENO);
  table.show_reasons = command.console.verbose;
  write_comparison_table(console.out, before.results, after.results, report, table);
  return report.verdicts.empty() ? kExitNothingRan : kExitPassed;
}

}  // namespace

RunCommand declare_diff(OptionTable& options) {
  auto command = std::make_shared<DiffCommand>();
  options.add({.names = "FILES",
               .value = "BEFORE AFTER",
               .help = "Two result files, or journals of unfinished runs",
               .target = &command->files,
               .required = true});
  add_result_selection(options, command->selection.filter, command->selection.backends);
  add_console_options(options, command->console);
  return [command](const Console& console) { return run_diff(*command, console); };
}

}  // namespace attnbench
