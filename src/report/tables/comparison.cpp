#include "report/tables/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "core/system/printable.h"
#include "report/format.h"
#include "report/marks.h"
#include "report/row_names.h"

namespace attnbench {
namespace {

constexpr std::size_t kComparedCells = 7;
constexpr std::size_t kLeastCaseWidth = 20;
using ComparedCells = std::array<std::string, kComparedCells>;
using ById = std::map<std::string_view, const Result*>;

ById by_id(const std::vector<Result>& results) {
  ById found;
  for (const Result& result : results) found[result.id] = &result;
  return found;
}

const Result* find(const ById& results, const std::string& id) {
  const auto found = results.find(id);
  return found == results.end() ? nullptr : found->second;
}

bool is_timed(const Result* result) {
  return result != nullptr && is_ranked(*result) && result->timing->median_us > 0;
}

/// The time with its signs, that of the noise too, else why there is none.
std::string time_or_status(const Result* result) {
  if (result == nullptr) return "-";
  return is_timed(result) ? marked_time(*result) + noise_mark(*result) : to_string(result->status);
}

/// Lets the numbers of a column stand below each other, and their signs behind them.
void align_signs(std::vector<ComparedCells>& rows, std::size_t column) {
  const auto signs = [&](const ComparedCells& row) {
    const std::size_t last = row[column].find_last_not_of("*^?!");
    return last == std::string::npos ? 0 : row[column].size() - 1 - last;
  };
  std::size_t most = 0;
  for (const ComparedCells& row : rows) most = std::max(most, signs(row));
  for (ComparedCells& row : rows) row[column].append(most - signs(row), ' ');
}

std::string change_of(double ratio) { return fmt::format("{:+.1f} %", 100 * (ratio - 1)); }

std::string error_of(const Result* result) {
  return result != nullptr && result->error ? format_error(result->error->max_abs) : "-";
}

/// "4.7%", "98.6%!" where scales clip, "-" where nothing is quantised.
std::string quant_of(const Result* result) {
  const std::string text = result == nullptr ? "" : marked_quant(*result);
  return text.empty() ? "-" : text;
}

std::string both(const std::string& before, const std::string& after) {
  return before == after ? before : before + " -> " + after;
}

ComparedCells cells_of(const Verdict& verdict, const Result* before, const Result* after,
                       bool has_quant) {
  return {"",  // its name, for which the others must be known
          time_or_status(before),
          time_or_status(after),
          is_timed(before) && is_timed(after)
              ? change_of(after->timing->median_us / before->timing->median_us)
              : "",
          both(error_of(before), error_of(after)),
          has_quant ? both(quant_of(before), quant_of(after)) : "",
          to_string(verdict.kind)};
}

const char* color_of(VerdictKind kind) {
  if (kind <= VerdictKind::kSlower) return "\x1b[31m";
  return kind <= VerdictKind::kNew ? "\x1b[33m" : "\x1b[32m";
}

using Widths = std::array<std::size_t, kComparedCells>;

/// Widths of the columns; none of that of the case where its text has lines of its own.
Widths widths_of(const std::vector<ComparedCells>& rows, bool own_lines) {
  Widths widths{};
  for (std::size_t c = own_lines ? 1 : 0; c < kComparedCells; ++c) {
    for (const ComparedCells& row : rows) widths[c] = std::max(widths[c], display_width(row[c]));
  }
  return widths;
}

/// Columns that the others leave for the case.
std::size_t room_for_case(const std::vector<ComparedCells>& rows, std::size_t terminal_width) {
  std::size_t others = 0;
  for (const std::size_t width : widths_of(rows, /*own_lines=*/true)) {
    others += width > 0 ? width + 2 : 0;
  }
  return std::max(kLeastCaseWidth, terminal_width > others ? terminal_width - others : 0);
}

/// Columns without a width are left out: no result has what would stand there.
std::string aligned(const ComparedCells& row, const Widths& widths, std::size_t last) {
  std::string line;
  for (std::size_t c = 0; c < last; ++c) {
    if (widths[c] == 0) continue;
    const std::string fill(widths[c] - display_width(row[c]), ' ');
    const bool is_number = c >= 1 && c <= 3;
    line += (c == 0 ? "" : "  ") + (is_number ? fill + row[c] : row[c] + fill);
  }
  return line;
}

void write_means(std::ostream& out, const std::map<std::string, MeanChange>& means) {
  bool is_first = true;
  for (const auto& [backend, mean] : means) {
    out << fmt::format("{:<22} {} {} ({} case{})\n", is_first ? "mean change of time" : "",
                       printable(backend), change_of(mean.ratio), mean.cases,
                       mean.cases == 1 ? "" : "s");
    is_first = false;
  }
}

}  // namespace

std::map<std::string, MeanChange> mean_changes(const std::vector<Result>& before,
                                               const std::vector<Result>& after) {
  std::map<std::string, MeanChange> means;
  const ById old = by_id(before);
  std::map<std::string, double> sums;  // of logarithms
  for (const Result& result : after) {
    const Result* const other = find(old, result.id);
    if (!is_timed(other) || !is_timed(&result)) continue;
    sums[result.backend] += std::log(result.timing->median_us / other->timing->median_us);
    MeanChange& mean = means[result.backend];
    mean.ratio = std::exp(sums[result.backend] / ++mean.cases);
  }
  return means;
}

void write_comparison_table(std::ostream& out, const std::vector<Result>& before,
                            const std::vector<Result>& after, const GateReport& report,
                            const TableOptions& options) {
  const ById old = by_id(before);
  const ById current = by_id(after);
  const auto is_quantised = [](const Result& result) {
    return result.quantization_error.has_value();
  };
  const bool has_quant = std::any_of(before.begin(), before.end(), is_quantised) ||
                         std::any_of(after.begin(), after.end(), is_quantised);
  std::vector<ComparedCells> rows{
      {"", "before", "after", "change", "max_abs", has_quant ? "quant" : "", "verdict"}};
  std::vector<std::string> ids;
  for (const Verdict& verdict : report.verdicts) {
    rows.push_back(cells_of(verdict, find(old, verdict.id), find(current, verdict.id), has_quant));
    ids.push_back(verdict.id);
  }
  for (const std::size_t column : {1, 2}) align_signs(rows, column);
  const auto width = static_cast<std::size_t>(options.width);
  const RowNames::Chosen chosen =
      RowNames({&before, &after}).choose(ids, room_for_case(rows, width));
  rows[0][0] = "case";
  for (std::size_t i = 0; i < ids.size(); ++i) rows[i + 1][0] = chosen.texts[i];
  if (!chosen.shared.empty()) out << wrap_text("every row: " + chosen.shared, width, "");
  const Widths widths = widths_of(rows, chosen.own_lines);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (chosen.own_lines && i > 0) out << wrap_text(rows[i][0], width, "");
    out << aligned(rows[i], widths, kComparedCells - 1) << "  ";
    if (i == 0) {
      out << rows[i].back() << "\n";
      continue;
    }
    const Verdict& verdict = report.verdicts[i - 1];
    out << painted(rows[i].back(), color_of(verdict.kind), options.color) << "\n";
    if (!options.show_reasons) continue;
    out << painted(wrap_text(printable_lines(verdict.rule), width, "    "), kDim, options.color);
  }
  out << "\n";
  std::vector<Result> both_files = before;
  both_files.insert(both_files.end(), after.begin(), after.end());
  write_legend(out, both_files, width, "time");
  write_means(out, mean_changes(before, after));
  out << summary_line(report) << "\n";
}

}  // namespace attnbench
