// attnbench report: result files as a table, or as one page with plots.
//
// For looking at results, not for judging them: files of different machines and of different cases
// are taken together, and wrong results are no reason to fail. `gate` is for judging.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <sstream>

#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/outputs.h"
#include "cli/session/gate_options.h"
#include "cli/terminal/text.h"
#include "core/error.h"
#include "core/result/result_file.h"
#include "gate/foreign.h"
#include "report/formats/output_file.h"
#include "report/page.h"
#include "report/tables/results.h"

namespace attnbench {
namespace {

struct ReportCommand {
  std::vector<std::string> files;
  std::string output;
  GateSelection selection;
  ConsoleOptions console;
};

std::size_t num_results(const std::vector<ResultFile>& files) {
  std::size_t count = 0;
  for (const ResultFile& file : files) count += file.results.size();
  return count;
}

/// The gate's verdicts on every later file against the first. The page is for looking, so files of
/// different machines and incomplete ones are compared too.
std::vector<PageComparison> compare_with_first(const std::vector<ResultFile>& files) {
  GateOptions options;
  options.ignore_environment = true;
  options.lenient = true;
  std::vector<PageComparison> comparisons;
  for (std::size_t i = 1; i < files.size(); ++i) {
    std::vector<std::string> differences = foreign_reasons(files[0], files[i]);
    for (std::string& scales : scale_differences(files[0], files[i])) {
      differences.push_back(std::move(scales));
    }
    comparisons.push_back({i, judge_results(files[0], files[i], options), std::move(differences)});
  }
  return comparisons;
}

void write_page_file(const ReportCommand& command, const std::vector<ResultFile>& files,
                     const Console& console) {
  std::ostringstream page;
  write_page(page, files, compare_with_first(files));
  const std::string text = page.str();
  write_text(command.output, text);
  if (command.output == "-" || command.console.quiet) return;
  console.out << fmt::format(
      "{}: {} results of {} file{}, {}; open it in a browser\n", command.output, num_results(files),
      files.size(), files.size() == 1 ? "" : "s", format_bytes(static_cast<double>(text.size())));
}

/// A table for each file, with its path above where there are several.
void write_tables(const ReportCommand& command, const std::vector<ResultFile>& files,
                  const Console& console) {
  TableOptions table;
  table.color = use_color(command.console.color, console.out_is_terminal);
  table.width = output_width(STDOUT_FILENO);
  table.show_reasons = command.console.verbose;
  for (const ResultFile& file : files) {
    if (files.size() > 1) console.out << (&file == &files.front() ? "" : "\n") << file.path << "\n";
    write_table(console.out, file.run, file.results, table);
  }
}

int run_report(const ReportCommand& command, const Console& console) {
  std::vector<InputPath> inputs;
  for (const std::string& path : command.files) inputs.push_back({"RESULTS", path});
  check_output_paths(inputs, {{"--output", command.output}});
  std::vector<ResultFile> files;
  for (const std::string& path : command.files) files.push_back(read_result_file(path));
  const std::size_t num_read = num_results(files);
  for (ResultFile& file : files) keep_selected(command.selection, file.results);
  if (command.output.empty()) {
    write_tables(command, files, console);
  } else {
    write_page_file(command, files, console);
  }
  return num_read > 0 && num_results(files) == 0 ? kExitNothingRan : kExitPassed;
}

}  // namespace

RunCommand declare_report(OptionTable& options) {
  auto command = std::make_shared<ReportCommand>();
  options.add({.names = "RESULTS",
               .value = "FILE",
               .help = "Result files, or journals of unfinished runs; later ones are compared with "
                       "the first",
               .target = &command->files,
               .required = true});
  options.add({.names = "-o,--output",
               .value = "FILE",
               .help = "Write one HTML page with plots, which needs no network ('-' is stdout); "
                       "without it the results are printed as a table",
               .target = &command->output});
  add_result_selection(options, command->selection.filter, command->selection.backends);
  add_console_options(options, command->console);
  return [command](const Console& console) { return run_report(*command, console); };
}

}  // namespace attnbench
