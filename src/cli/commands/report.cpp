// attnbench report: result files as a table, as one page with plots, or in any format of `run`.
//
// For looking at results, not for judging them: files of different machines and of different cases
// are taken together, and wrong results are no reason to fail. `gate` is for judging.
#include <fmt/format.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <sstream>

#include "cli/commands/commands.h"
#include "cli/exit_code.h"
#include "cli/outputs.h"
#include "cli/session/gate_options.h"
#include "cli/terminal/text.h"
#include "core/error.h"
#include "core/result/result_file.h"
#include "gate/belief.h"
#include "gate/foreign.h"
#include "interop/trace/record.h"
#include "report/formats/markdown.h"
#include "report/formats/output_file.h"
#include "report/page.h"
#include "report/tables/results.h"
#include "report/tables/sol.h"

namespace attnbench {
namespace {

struct ReportCommand {
  std::vector<std::string> files;
  std::string output;
  OutputFiles formats;
  std::string summary;
  std::vector<std::string> links;  // in the summary
  std::string trace_json;
  bool sol = false;
  std::string sol_baseline;  // a backend; empty = the fastest of each case
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
  const std::size_t count = num_results(files);
  console.out << fmt::format("{}: {} result{} of {} file{}, {}; open it in a browser\n",
                             command.output, count, count == 1 ? "" : "s", files.size(),
                             files.size() == 1 ? "" : "s",
                             format_bytes(static_cast<double>(text.size())));
}

/// A table for each file, with its path above where there are several.
void write_tables(const ReportCommand& command, const std::vector<ResultFile>& files,
                  const Console& console) {
  TableOptions table;
  table.color = use_color(command.console.color, console.out_is_terminal);
  table.width = output_width(STDOUT_FILENO);
  table.show_reasons = command.console.verbose;
  if (files.size() == 1) table.next = "next: -o report.html writes a page with plots";
  for (const ResultFile& file : files) {
    if (files.size() > 1) console.out << (&file == &files.front() ? "" : "\n") << file.path << "\n";
    write_table(console.out, file.run, file.results, table);
  }
  if (files.size() == 2 && !command.console.quiet) {
    print_notice(console.err, fmt::format("to compare them: attnbench diff {} {}",
                                          shell_quote(files[0].path), shell_quote(files[1].path)));
  }
}

/// The results of all files as those of one run, whose head is that of the first file. For the
/// parts of `run --part`, and for a single file. Errors: kUsage for an id that two files have, or
/// files of different machines.
std::vector<Result> merged_results(const std::vector<ResultFile>& files) {
  std::vector<Result> merged;
  std::map<std::string, std::string> file_of;
  for (const ResultFile& file : files) {
    if (file.run.environment.fingerprint != files.front().run.environment.fingerprint) {
      fail(ErrorKind::kUsage,
           "{} and {} are of different machines: expected parts of one run, to be written as one "
           "file",
           files.front().path, file.path);
    }
    for (const Result& result : file.results) {
      const auto [first, is_new] = file_of.emplace(result.id, file.path);
      if (!is_new) {
        fail(ErrorKind::kUsage,
             "{} is in both {} and {}: expected parts of one run, to be written as one file",
             result.id, first->second, file.path);
      }
      merged.push_back(result);
    }
  }
  return merged;
}

/// The files that `run` writes beside those of its formats.
void write_more_files(const ReportCommand& command, const RunInfo& run,
                      const std::vector<Result>& results) {
  if (!command.summary.empty()) {
    std::ostringstream text;
    SummaryOptions options;
    options.links = command.links;
    write_summary(text, run, results, nullptr, options);
    write_text(command.summary, text.str());
  }
  if (!command.trace_json.empty()) {
    std::ostringstream text;
    // Workloads are those beside the scenarios of the run, where these are still there.
    write_trace_records(text, run, results,
                        trace_names_beside({run.command.begin(), run.command.end()}));
    write_text(command.trace_json, text.str());
  }
}

/// Shares of the speed of light, and scores against a backend of the first file: with several files
/// the later ones are scored against the earliest.
void write_sol_tables(const ReportCommand& command, const std::vector<ResultFile>& files,
                      const Console& console) {
  const std::map<std::string, double> baseline =
      baseline_times(files.front().results, command.sol_baseline);
  if (!command.sol_baseline.empty() && baseline.empty()) {
    fail(ErrorKind::kUsage, "--sol-baseline: no timed result of {} in {}", command.sol_baseline,
         files.front().path);
  }
  for (const ResultFile& file : files) {
    if (files.size() > 1) console.out << (&file == &files.front() ? "" : "\n") << file.path << "\n";
    write_sol_table(console.out, file.results, baseline);
  }
}

int run_report(const ReportCommand& command, const Console& console) {
  std::vector<InputPath> inputs;
  for (const std::string& path : command.files) inputs.push_back({"RESULTS", path});
  const OutputPlan plan = plan_outputs(command.formats);
  std::vector<OutputPath> outputs = output_paths(plan);
  outputs.push_back({"--output", command.output});
  outputs.push_back({"--summary", command.summary});
  outputs.push_back({"--trace-json", command.trace_json});
  check_output_paths(inputs, outputs);
  std::vector<ResultFile> files;
  for (const std::string& path : command.files) {
    files.push_back(read_results(path, command.console.quiet ? nullptr : &console.err));
  }
  for (ResultFile& file : files) {
    const int count = disbelieve(file);
    if (count == 0) continue;
    print_notice(
        console.err,
        fmt::format("{}: {} cannot be believed, since numbers contradict each other; shown as {}",
                    file.path, count == 1 ? "1 result" : fmt::format("{} results", count),
                    count == 1 ? "an error" : "errors"));
  }
  const std::size_t num_read = num_results(files);
  for (ResultFile& file : files) keep_selected(command.selection, file.results);
  const bool writes_files =
      !plan.files.empty() || !command.summary.empty() || !command.trace_json.empty();
  if (writes_files) {
    const std::vector<Result> results = merged_results(files);
    plan.write(files.front().run, results);
    write_more_files(command, files.front().run, results);
  }
  if (command.sol) {
    write_sol_tables(command, files, console);
  } else if (!command.output.empty()) {
    write_page_file(command, files, console);
  } else if (!writes_files) {
    write_tables(command, files, console);
  }
  const bool selected_none = num_read > 0 && num_results(files) == 0;
  if (selected_none) print_error(console.err, why_none_selected(command.selection));
  return selected_none ? kExitNothingRan : kExitPassed;
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
  add_format_options(options, command->formats, &OutputFormat::help);
  options.add({.names = "--summary",
               .value = "FILE",
               .help = "Write a Markdown summary for a pull request",
               .group = kOutputs,
               .target = &command->summary});
  add_link_option(options, command->links);
  options.add({.names = "--trace-json",
               .value = "FILE",
               .help = "Write FlashInfer-Trace records, one per line",
               .group = kOutputs,
               .target = &command->trace_json});
  options.add({.names = "--sol",
               .help =
                   "Show each result's share of the speed of light, from the measured ceilings, "
                   "and the score of SOL-ExecBench",
               .target = &command->sol,
               .excludes = "--output"});
  options.add({.names = "--sol-baseline",
               .value = "BACKEND",
               .help = "Score against this backend of the first file (default: the fastest of each "
                       "case)",
               .target = &command->sol_baseline,
               .needs = "--sol"});
  add_result_selection(options, command->selection.filter, command->selection.backends);
  add_console_options(options, command->console);
  return [command](const Console& console) { return run_report(*command, console); };
}

}  // namespace attnbench
