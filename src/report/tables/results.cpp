#include "report/tables/results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "core/system/printable.h"
#include "report/format.h"
#include "report/tables/cascade.h"
#include "report/tables/peers.h"
#include "report/tables/trace_steps.h"

namespace attnbench {
namespace {

enum TableColumn {
  kCase,
  kBackend,
  kStatus,
  kMaxAbs,
  kErrRatio,
  kTime,
  kRate,
  kRoof,
  kNoise,
  kNumColumns
};
constexpr std::array<const char*, kNumColumns> kTitles{
    "case", "backend", "status", "max_abs", "err_ratio", "time", "rate", "roof", "noise"};
constexpr std::size_t kWideGap = 2;
constexpr std::size_t kReadableCase = 15;  // columns are dropped before a case gets narrower
constexpr std::size_t kLeastCase = 8;

using Row = std::array<std::string, kNumColumns>;

const char* color_of(Status status) {
  switch (status) {
    case Status::kPassed:
      return "\x1b[32m";
    case Status::kIncorrect:
    case Status::kImplausible:
    case Status::kError:
      return "\x1b[31m";
    case Status::kUnverified:
    case Status::kUnsupported:
    case Status::kSkipped:
      return "\x1b[33m";
  }
  return "";
}

Row make_row(const Result& result, bool with_scenario) {
  Row row;
  row[kCase] =
      printable(with_scenario ? result.scenario + "/" + result.case_name : result.case_name);
  row[kBackend] = printable(result.backend);
  row[kStatus] = to_string(result.status);
  if (result.error) {
    row[kMaxAbs] = format_error(result.error->max_abs);
    row[kErrRatio] = format_ratio(result.error->err_ratio);
  }
  if (result.timing) {
    row[kTime] = format_time(result.timing->median_us);
    row[kNoise] = format_noise(result.timing->noise);
  }
  if (result.throughput) {
    row[kRate] = format_rate(*result.throughput);
    row[kRoof] = format_roofline(*result.throughput);
  }
  return row;
}

/// Column widths that fit into the terminal; 0 = left out.
struct Layout {
  std::array<std::size_t, kNumColumns> widths{};
  std::size_t gap = kWideGap;

  Layout(const std::vector<Row>& rows, std::size_t terminal_width) {
    for (std::size_t c = 0; c < kNumColumns; ++c) {
      for (const Row& row : rows) widths[c] = std::max(widths[c], display_width(row[c]));
      if (widths[c] > 0) widths[c] = std::max(widths[c], display_width(kTitles[c]));
    }
    const auto is_too_wide = [&] {
      return total() - widths[kCase] + std::min(widths[kCase], kReadableCase) > terminal_width;
    };
    if (is_too_wide()) gap = 1;
    for (const TableColumn column : {kRoof, kNoise, kErrRatio, kRate}) {
      if (is_too_wide()) widths[column] = 0;
    }
    const std::size_t excess = total() > terminal_width ? total() - terminal_width : 0;
    const std::size_t least = std::min(widths[kCase], kLeastCase);
    widths[kCase] = std::max(least, widths[kCase] - std::min(excess, widths[kCase]));
  }

  std::size_t total() const {
    std::size_t sum = 0;
    for (const std::size_t width : widths) sum += width == 0 ? 0 : width + (sum == 0 ? 0 : gap);
    return sum;
  }
};

std::string format_row(const Row& row, const Layout& layout, const char* status_color) {
  std::string line;
  for (std::size_t c = 0; c < kNumColumns; ++c) {
    if (layout.widths[c] == 0) continue;
    if (!line.empty()) line.append(layout.gap, ' ');
    const std::string text = shorten_middle(row[c], layout.widths[c]);
    const std::string fill(layout.widths[c] - display_width(text), ' ');
    const std::string shown = c == kStatus ? painted(text, status_color, *status_color != 0) : text;
    line += c <= kStatus ? shown + fill : fill + shown;
  }
  return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

void write_reasons(std::ostream& out, const Result& result, const TableOptions& options) {
  const bool all = options.show_reasons || badness(result.status) <= badness(Status::kError);
  const std::size_t count =
      all ? result.reasons.size() : std::min<std::size_t>(1, result.reasons.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::string prefix = result.status == Status::kUnsupported ? "unsupported: " : "";
    const std::string text = wrap_text(printable_lines(prefix + result.reasons[i]),
                                       static_cast<std::size_t>(options.width), "    ");
    out << painted(text, kDim, options.color);
  }
}

/// What its values would not have shown, for readers who want to know what a verdict means.
void write_blind_spots(std::ostream& out, const Result& result, const TableOptions& options) {
  if (!options.show_reasons || !result.blind_to || result.blind_to->empty()) return;
  const std::string text =
      wrap_text(fmt::format("cannot see: {}", fmt::join(*result.blind_to, ", ")),
                static_cast<std::size_t>(options.width), "    ");
  out << painted(text, kDim, options.color);
}

/// Cycles, clock and share of the peak, for who wants more than the table.
void write_clock(std::ostream& out, const Result& result, const TableOptions& options) {
  const std::string text = options.show_reasons ? format_clock(result) : "";
  if (text.empty()) return;
  const auto width = static_cast<std::size_t>(options.width);
  out << painted(wrap_text(text, width, "    "), kDim, options.color);
}

bool has_hidden_reasons(const std::vector<Result>& results, const TableOptions& options) {
  return !options.show_reasons &&
         std::any_of(results.begin(), results.end(), [](const Result& result) {
           return result.status == Status::kUnsupported && result.reasons.size() > 1;
         });
}

/// How far two runs of the same program were apart, where it was run twice.
void write_noise_floor(std::ostream& out, const RunInfo& run) {
  if (!run.noise_floor) return;
  const NoiseFloor& floor = *run.noise_floor;
  const auto largest =
      std::max_element(floor.cases.begin(), floor.cases.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  out << fmt::format("A/A, {} runs: noise floor {}", floor.runs, format_noise(floor.all_cases));
  if (largest != floor.cases.end()) {
    out << fmt::format(", medians at most {} apart ({})", format_noise(largest->second),
                       printable(largest->first));
  }
  out << "\n";
}

/// What to do next: the command of the worst result, or where to see more.
void write_next(std::ostream& out, const std::vector<Result>& results,
                const TableOptions& options) {
  const auto worst = std::min_element(
      results.begin(), results.end(),
      [](const Result& a, const Result& b) { return badness(a.status) < badness(b.status); });
  if (worst == results.end()) return;
  const bool failed = badness(worst->status) <= badness(Status::kError);
  if (failed && !worst->repro.empty()) out << "reproduce: " << printable(worst->repro) << "\n";
  if (worst->status == Status::kSkipped) out << "skipped results did not run; run again for them\n";
  if (has_hidden_reasons(results, options)) out << "all reasons: add -v\n";
}

}  // namespace

void write_table(std::ostream& out, const RunInfo& run, const std::vector<Result>& results,
                 const TableOptions& options) {
  std::set<std::string> scenarios;
  for (const Result& result : results) scenarios.insert(result.scenario);
  std::vector<Row> rows;
  for (const Result& result : results) rows.push_back(make_row(result, scenarios.size() > 1));
  const Layout layout(rows, static_cast<std::size_t>(std::max(options.width, 40)));

  if (!rows.empty()) {
    Row titles;
    std::copy(kTitles.begin(), kTitles.end(), titles.begin());
    out << format_row(titles, layout, "");
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out << format_row(rows[i], layout, options.color ? color_of(results[i].status) : "");
    write_clock(out, results[i], options);
    write_reasons(out, results[i], options);
    write_blind_spots(out, results[i], options);
  }
  if (!rows.empty()) out << "\n";
  write_cascade_table(out, results, /*markdown=*/false);
  write_peer_table(out, results, static_cast<std::size_t>(std::max(options.width, 40)));
  write_trace_steps_table(out, results, /*markdown=*/false);
  out << summary_line(count_statuses(results)) << "\n";
  write_noise_floor(out, run);
  write_next(out, results, options);
}

}  // namespace attnbench
