#include "report/tables/verdicts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/system/printable.h"
#include "report/format.h"

namespace attnbench {
namespace {

constexpr const char* kRed = "\x1b[31m";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kGreen = "\x1b[32m";
constexpr std::size_t kKindWidth = 13;  // LESS_ACCURATE
constexpr std::size_t kLeastId = 20;

const char* color_of(const Verdict& verdict) {
  if (verdict.fails) return kRed;
  if (verdict.known == Known::kYes || verdict.kind <= VerdictKind::kNew) return kYellow;
  return kGreen;
}

/// "12.34 us -> 13.00 us  +5.3%", or the one time that there is.
std::string times_of(const Verdict& verdict) {
  const bool has_old = std::isfinite(verdict.old_us);
  const bool has_new = std::isfinite(verdict.new_us);
  if (has_old && has_new) {
    return fmt::format("{} -> {} {:>+8.1f}%", format_time(verdict.old_us),
                       format_time(verdict.new_us), 100 * (verdict.new_us / verdict.old_us - 1));
  }
  return has_new ? format_time(verdict.new_us) : has_old ? format_time(verdict.old_us) : "";
}

void write_verdict(std::ostream& out, const Verdict& verdict, const TableOptions& options) {
  const std::string kind = fmt::format("{:<{}}", to_string(verdict.kind), kKindWidth);
  const std::string times = times_of(verdict);
  const std::size_t width = static_cast<std::size_t>(std::max(options.width, 40));
  const std::size_t taken = kKindWidth + 4 + times.size();
  const std::size_t room = std::max(kLeastId, width > taken ? width - taken : 0);
  std::string id = shorten_middle(printable(verdict.id), std::min<std::size_t>(room, 160));
  const std::size_t columns = options.width > 200 ? display_width(id) : room;
  id.append(columns > display_width(id) ? columns - display_width(id) : 0, ' ');
  std::string line = painted(kind, color_of(verdict), options.color) + "  " + id + "  " + times;
  out << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
  std::string rule = verdict.rule;
  if (verdict.known == Known::kYes) rule += "; known: " + verdict.known_text;
  if (verdict.known == Known::kExpired) rule += "; known, but expired: " + verdict.known_text;
  out << painted(wrap_text(printable_lines(rule), width, "    "), kDim, options.color);
}

void write_next(std::ostream& out, const GateReport& report) {
  const auto worst = std::find_if(report.verdicts.begin(), report.verdicts.end(),
                                  [](const Verdict& verdict) { return verdict.fails; });
  if (worst == report.verdicts.end()) {
    const bool doubtful = report.counts()[static_cast<std::size_t>(VerdictKind::kAmbiguous)] > 0;
    if (doubtful) out << "AMBIGUOUS cases need more samples or a quieter machine\n";
    return;
  }
  if (worst->kind == VerdictKind::kMissing) {
    out << "missing cases: run them, record a new baseline, or add --lenient\n";
  } else if (!worst->repro.empty()) {
    out << "reproduce: " << printable(worst->repro) << "\n";
  }
}

// ---- Agreement of two devices.

constexpr std::size_t kShown = 20;
constexpr std::size_t kNumCells = 8;
constexpr std::size_t kNumTexts = 2;  // the columns before the numbers
using Cells = std::array<std::string, kNumCells>;

Cells titles(const AgreementReport& report) {
  const std::string& a = report.first_device;
  const std::string& b = report.second_device;
  return {"result",    "status",    "err_ratio " + a, "err_ratio " + b,
          "NMSE " + a, "NMSE " + b, "factor",         "of"};
}

Cells cells_of(const Agreement& agreement) {
  const AgreementSide& a = agreement.first;
  const AgreementSide& b = agreement.second;
  const std::string status = a.status == b.status
                                 ? to_string(a.status)
                                 : fmt::format("{} / {}", to_string(a.status), to_string(b.status));
  const bool has_errors = std::isfinite(a.nmse) && std::isfinite(b.nmse);
  return {printable(agreement.id),
          status,
          format_ratio(a.err_ratio),
          format_ratio(b.err_ratio),
          format_error(a.nmse),
          format_error(b.nmse),
          has_errors ? fmt::format("{:.2f}", agreement.factor) : "-",
          agreement.figure.empty() ? "-" : agreement.figure};
}

void write_agreements(std::ostream& out, const std::vector<Cells>& rows,
                      std::size_t terminal_width) {
  std::array<std::size_t, kNumCells> widths{};
  std::size_t others = 0;
  for (std::size_t c = 0; c < kNumCells; ++c) {
    for (const Cells& row : rows) widths[c] = std::max(widths[c], display_width(row[c]));
    if (c > 0) others += widths[c] + 2;
  }
  const std::size_t room = terminal_width > others ? terminal_width - others : 0;
  widths[0] = std::min(widths[0], std::max(kLeastId, room));
  for (const Cells& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < kNumCells; ++c) {
      const std::string text = shorten_middle(row[c], widths[c]);
      const std::string fill(widths[c] - display_width(text), ' ');
      line += (c == 0 ? "" : "  ") + (c < kNumTexts ? text + fill : fill + text);
    }
    out << line << "\n";
  }
}

std::string agreement_line(const AgreementReport& report) {
  std::size_t same_status = 0;
  std::size_t with_errors = 0;
  double largest = 1;
  for (const Agreement& agreement : report.cases) {
    same_status += agreement.first.status == agreement.second.status;
    with_errors += std::isfinite(agreement.first.nmse) && std::isfinite(agreement.second.nmse);
    largest = std::max(largest, agreement.factor);
  }
  return fmt::format(
      "{} cases in both files: {} of the same status, {} with errors on both sides, at most {:.2f} "
      "times apart (allowed {:.3g}); {} in one file only",
      report.cases.size(), same_status, with_errors, largest, report.allowed_factor,
      report.lone.size());
}

}  // namespace

void write_verdict_table(std::ostream& out, const GateReport& report, const TableOptions& options) {
  bool any = false;
  for (const Verdict& verdict : report.verdicts) {
    if (verdict.kind == VerdictKind::kSame && !verdict.fails && !options.show_reasons) continue;
    write_verdict(out, verdict, options);
    any = true;
  }
  if (any) out << "\n";
  out << summary_line(report) << "\n";
  const std::string last_line =
      report.verdicts.empty() ? "no case was compared"
      : report.passed()
          ? "gate passed"
          : fmt::format("gate failed: {} of {} cases", report.failures(), report.verdicts.size());
  out << painted(last_line, report.passed() && !report.verdicts.empty() ? kGreen : kRed,
                 options.color)
      << "\n";
  for (const std::string& notice : report.notices) out << "notice: " << notice << "\n";
  write_next(out, report);
}

void write_agreement_table(std::ostream& out, const AgreementReport& report,
                           const TableOptions& options) {
  std::vector<Cells> rows{titles(report)};
  for (const Agreement& agreement : report.cases) {
    const bool fails = !agreement.disagreement.empty();
    if (fails || options.show_reasons || rows.size() <= kShown) rows.push_back(cells_of(agreement));
  }
  write_agreements(out, rows, static_cast<std::size_t>(std::max(options.width, 40)));
  out << "\n";
  for (const Agreement& agreement : report.cases) {
    if (agreement.disagreement.empty()) break;
    out << printable_lines(fmt::format("{}: {}\n", agreement.id, agreement.disagreement));
  }
  for (const std::string& id : report.lone) {
    out << printable_lines(fmt::format("{}: in one file only\n", id));
  }
  out << agreement_line(report) << "\n";
  const int failures = report.failures();
  out << (failures == 0 ? "the devices agree"
                        : fmt::format("the devices disagree: {} cases", failures))
      << "\n";
}

void write_agreement_markdown(std::ostream& out, const AgreementReport& report) {
  out << fmt::format("| {} |\n|---|---|", fmt::join(titles(report), " | "));
  for (std::size_t c = kNumTexts; c < kNumCells; ++c) out << "---:|";
  out << "\n";
  for (const Agreement& agreement : report.cases) {
    Cells cells = cells_of(agreement);
    cells[0] = markdown_cell(cells[0]);
    out << fmt::format("| {} |\n", fmt::join(cells, " | "));
  }
  out << "\n" << agreement_line(report) << "\n";
}

}  // namespace attnbench
