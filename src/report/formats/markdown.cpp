#include <fmt/format.h>

#include "report/format.h"
#include "report/markdown_text.h"
#include "report/reporter.h"
#include "report/tables/cascade.h"
#include "report/tables/peers.h"

namespace attnbench {
namespace {

std::string row(const Result& result) {
  return fmt::format("| {}/{} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
                     markdown_cell(result.scenario), markdown_cell(result.case_name),
                     markdown_cell(result.backend), to_string(result.status),
                     result.error ? format_error(result.error->max_abs) : "",
                     result.error ? format_ratio(result.error->err_ratio) : "",
                     result.timing ? format_time(result.timing->median_us) : "",
                     result.throughput ? format_rate(*result.throughput) : "",
                     result.throughput ? format_roofline(*result.throughput) : "",
                     result.timing ? format_noise(result.timing->noise) : "",
                     markdown_cell(fmt::format("{}", fmt::join(result.reasons, "; "))));
}

}  // namespace

void write_markdown(std::ostream& out, const RunInfo& run, const std::vector<Result>& results) {
  out << "| case | backend | status | max_abs | err_ratio | time | rate | roof | noise | reasons "
         "|\n"
      << "|---|---|---|---:|---:|---:|---:|---:|---:|---|\n";
  for (const Result& result : results) out << row(result);
  out << "\n";
  write_cascade_table(out, results, /*markdown=*/true);
  write_peer_markdown(out, results);
  out << summary_line(count_statuses(results)) << "\n";
  out << fmt::format("\nattnbench {} ({}), {}, {} cores\n", markdown_cell(run.tool_version),
                     markdown_cell(run.git), markdown_cell(run.environment.cpu.model),
                     run.environment.cpu.cores);
}

}  // namespace attnbench
