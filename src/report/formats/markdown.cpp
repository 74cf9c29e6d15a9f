#include "report/formats/markdown.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/system/printable.h"
#include "report/case_columns.h"
#include "report/format.h"
#include "report/marks.h"
#include "report/tables/cascade.h"
#include "report/tables/peers.h"
#include "report/tables/trace_steps.h"

namespace attnbench {
namespace {

/// Cells of a result behind those of its case; "-" for the cost of quantising where other results
/// have one.
std::string row(const Result& result, const std::string& case_cells, bool any_quantised,
                const std::string& unit) {
  const bool exact = any_quantised && result.error && !result.quantization_error;
  return fmt::format("| {}/{} | {}{} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
                     markdown_cell(result.scenario), markdown_cell(result.case_name), case_cells,
                     markdown_cell(result.backend), to_string(result.status),
                     result.error ? format_error(result.error->max_abs) : "",
                     result.error ? format_ratio(result.error->err_ratio) : "",
                     exact ? "-" : marked_quant(result), marked_time(result),
                     result.throughput ? format_gbps(*result.throughput) : "",
                     result.throughput ? format_flops(*result.throughput, unit) : "",
                     result.throughput ? format_roofline(*result.throughput) : "",
                     result.throughput ? format_peak(*result.throughput) : "", marked_noise(result),
                     markdown_cell(fmt::format("{}", fmt::join(result.reasons, "; "))));
}

void write_result_table(std::ostream& out, const std::vector<Result>& results) {
  const std::vector<CaseColumn> of_cases = case_columns(results);
  std::string titles;
  std::string lines;
  for (const CaseColumn& column : of_cases) {
    titles += column.key + " | ";
    lines += "---|";
  }
  const std::string unit = flop_unit(results);
  out << "| case | " << titles << "backend | status | max_abs | err_ratio | quant | time | GB/s | "
      << unit << " | roof | peak | noise | reasons |\n"
      << "|---|" << lines << "---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n";
  const bool any_quantised = std::any_of(results.begin(), results.end(), [](const Result& result) {
    return result.quantization_error.has_value();
  });
  for (std::size_t i = 0; i < results.size(); ++i) {
    std::string cells;
    for (const CaseColumn& column : of_cases) cells += markdown_cell(column.values[i]) + " | ";
    out << row(results[i], cells, any_quantised, unit);
  }
  out << "\n";
}

// ---- The summary for a pull request.

constexpr std::size_t kMaxCell = 300;

std::string cell(const std::string& text) {
  return markdown_cell(shorten_middle(printable_lines(text), kMaxCell));
}

/// A table of which the first rows show and as many again are folded away; the rest is counted.
void write_rows(std::ostream& out, const std::string& titles, const std::vector<std::string>& rows,
                std::size_t max_rows) {
  if (rows.empty()) return;
  const auto write = [&](std::size_t begin, std::size_t end) {
    out << "\n" << titles;
    for (std::size_t i = begin; i < end; ++i) out << rows[i];
  };
  const std::size_t shown = std::min(rows.size(), max_rows);
  write(0, shown);
  if (shown == rows.size()) return;
  const std::size_t folded = std::min(rows.size(), 2 * max_rows);
  out << fmt::format("\n<details><summary>{} more</summary>\n", rows.size() - shown);
  write(shown, folded);
  if (folded < rows.size()) {
    out << fmt::format("\n{} more are in the result file.\n", rows.size() - folded);
  }
  out << "\n</details>\n";
}

std::string time_cell(double time_us) { return std::isfinite(time_us) ? format_time(time_us) : ""; }

std::string verdict_row(const Verdict& verdict) {
  const double change = 100 * (verdict.new_us / verdict.old_us - 1);
  std::string rule = verdict.rule;
  if (verdict.known != Known::kNo) rule += "; known: " + verdict.known_text;
  return fmt::format("| {}{} | `{}` | {} | {} | {} | {} |\n", verdict.fails ? "**" : "",
                     std::string(to_string(verdict.kind)) + (verdict.fails ? "**" : ""),
                     cell(verdict.id), time_cell(verdict.old_us), time_cell(verdict.new_us),
                     std::isfinite(change) ? fmt::format("{:+.1f}%", change) : "", cell(rule));
}

void write_verdicts(std::ostream& out, const GateReport& report, std::size_t max_rows) {
  out << (report.passed() ? "### attnbench gate: passed\n"
                          : fmt::format("### attnbench gate: failed, {} of {} cases\n",
                                        report.failures(), report.verdicts.size()));
  out << "\n" << summary_line(report) << "\n";
  std::vector<std::string> rows;
  for (const Verdict& verdict : report.verdicts) {
    if (verdict.kind != VerdictKind::kSame || verdict.fails) rows.push_back(verdict_row(verdict));
  }
  write_rows(out,
             "| verdict | case | before | after | change | rule |\n|---|---|---:|---:|---:|---|\n",
             rows, max_rows);
  for (const std::string& notice : report.notices) out << "\nNotice: " << cell(notice) << "\n";
}

/// What is not passed, worst first.
std::vector<const Result*> troubles(const std::vector<Result>& results) {
  std::vector<const Result*> worst;
  for (const Result& result : results) {
    if (badness(result.status) < badness(Status::kUnsupported)) worst.push_back(&result);
  }
  std::stable_sort(worst.begin(), worst.end(), [](const Result* a, const Result* b) {
    return badness(a->status) < badness(b->status);
  });
  return worst;
}

void write_results(std::ostream& out, const std::vector<Result>& results, bool has_gate,
                   std::size_t max_rows) {
  const std::vector<const Result*> worst = troubles(results);
  const std::string counts = summary_line(count_statuses(results));
  if (has_gate) {
    out << "\nResults: " << counts << "\n";
  } else {
    out << fmt::format("### attnbench: {}\n\n{}\n", worst.empty() ? "passed" : "failed", counts);
  }
  std::vector<std::string> rows;
  for (const Result* result : worst) {
    rows.push_back(fmt::format("| **{}** | `{}` | {} | {} |\n", to_string(result->status),
                               cell(result->id),
                               result->error ? format_error(result->error->max_abs) : "",
                               cell(fmt::format("{}", fmt::join(result->reasons, "; ")))));
  }
  write_rows(out, "| status | case | max_abs | reasons |\n|---|---|---:|---|\n", rows, max_rows);
  // Results that scales spoil pass: the errors are against the same scales.
  for (const std::string& sentence : mark_legend(results)) {
    if (sentence.starts_with("quant!")) out << "\n" << cell(sentence) << "\n";
  }
}

const Result* first_failure(const std::vector<Result>& results, const GateReport* report) {
  const std::vector<const Result*> worst = troubles(results);
  if (!worst.empty()) return worst.front();
  if (report == nullptr || report->verdicts.empty() || !report->verdicts.front().fails) {
    return nullptr;
  }
  const auto found = std::find_if(results.begin(), results.end(), [&](const Result& result) {
    return result.id == report->verdicts.front().id;
  });
  return found == results.end() ? nullptr : &*found;
}

}  // namespace

void write_markdown(std::ostream& out, const RunInfo& run, const std::vector<Result>& results) {
  write_result_table(out, results);
  write_cascade_table(out, results, /*markdown=*/true);
  write_peer_markdown(out, results);
  write_trace_steps_table(out, results, /*markdown=*/true);
  for (const std::string& sentence : mark_legend(results)) out << markdown_cell(sentence) << "\n\n";
  out << summary_line(count_statuses(results)) << "\n";
  out << fmt::format("\nattnbench {} ({}), {}, {} cores\n", markdown_cell(run.tool_version),
                     markdown_cell(run.git), markdown_cell(run.environment.cpu.model),
                     run.environment.cpu.cores);
}

void write_summary(std::ostream& out, const RunInfo& run, const std::vector<Result>& results,
                   const GateReport* report, const SummaryOptions& options) {
  if (report != nullptr) write_verdicts(out, *report, options.max_rows);
  write_results(out, results, report != nullptr, options.max_rows);
  const Result* failure = first_failure(results, report);
  if (failure != nullptr && !failure->repro.empty()) {
    out << "\nReproduce the worst:\n```sh\n" << printable(failure->repro) << "\n```\n";
  }
  if (!options.links.empty()) out << "\nArtefacts:";
  for (const std::string& link : options.links) out << " <" << printable(link) << ">";
  if (!options.links.empty()) out << "\n";
  const Environment& environment = run.environment;
  out << fmt::format("\nattnbench {} ({}), {}, {} cores\n", cell(run.tool_version), cell(run.git),
                     cell(environment.cpu.model), environment.cpu.cores);
}

}  // namespace attnbench
