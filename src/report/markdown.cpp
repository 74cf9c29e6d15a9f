#include <fmt/format.h>

#include "report/cascade_table.h"
#include "report/format.h"
#include "report/reporter.h"

namespace attnbench {
namespace {

/// Text of a table cell: no cell separator, no line break, no tag.
std::string cell(const std::string& text) {
  std::string result;
  for (const char character : text) {
    switch (character) {
      case '|':
        result += "\\|";
        break;
      case '\\':
        result += "\\\\";
        break;
      case '<':
        result += "&lt;";
        break;
      case '\r':
      case '\n':
        result += ' ';
        break;
      default:
        result += character;
    }
  }
  return result;
}

std::string row(const Result& result) {
  return fmt::format("| {}/{} | {} | {} | {} | {} | {} | {} | {} | {} |\n", cell(result.scenario),
                     cell(result.case_name), cell(result.backend), to_string(result.status),
                     result.error ? format_error(result.error->max_abs) : "",
                     result.error ? format_ratio(result.error->err_ratio) : "",
                     result.timing ? format_time(result.timing->median_us) : "",
                     result.throughput ? format_rate(*result.throughput) : "",
                     result.timing ? format_noise(result.timing->noise) : "",
                     cell(fmt::format("{}", fmt::join(result.reasons, "; "))));
}

}  // namespace

void write_markdown(std::ostream& out, const RunInfo& run, const std::vector<Result>& results) {
  out << "| case | backend | status | max_abs | err_ratio | time | rate | noise | reasons |\n"
      << "|---|---|---|---:|---:|---:|---:|---:|---|\n";
  for (const Result& result : results) out << row(result);
  out << "\n";
  write_cascade_table(out, results, /*markdown=*/true);
  out << summary_line(count_statuses(results)) << "\n";
  out << fmt::format("\nattnbench {} ({}), {}, {} cores\n", cell(run.tool_version), cell(run.git),
                     cell(run.environment.cpu.model), run.environment.cpu.cores);
}

}  // namespace attnbench
