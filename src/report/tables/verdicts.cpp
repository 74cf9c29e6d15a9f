#include "report/tables/verdicts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/system/printable.h"
#include "report/format.h"

namespace attnbench {
namespace {

constexpr const char* kRed = "\x1b[31m";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kGreen = "\x1b[32m";
constexpr std::size_t kKindWidth = 13;  // LESS_ACCURATE
constexpr std::size_t kLeastId = 20;
constexpr std::size_t kMostId = 160;  // where the terminal is wide, or none

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

std::size_t width_of(const TableOptions& options) {
  return static_cast<std::size_t>(std::max(options.width, 40));
}

/// Columns that the times of a verdict leave for its name.
std::size_t room_of(const Verdict& verdict, const TableOptions& options) {
  const std::size_t taken = kKindWidth + 4 + times_of(verdict).size();
  const std::size_t width = width_of(options);
  return std::max(kLeastId, width > taken ? width - taken : 0);
}

/// `name` of the case; with `own_lines`, the times stand below it.
void write_verdict(std::ostream& out, const Verdict& verdict, const std::string& name,
                   bool own_lines, const TableOptions& options) {
  const std::string kind = fmt::format("{:<{}}", to_string(verdict.kind), kKindWidth);
  const std::string times = times_of(verdict);
  const std::size_t width = width_of(options);
  const std::string indent(kKindWidth + 2, ' ');
  std::string line = painted(kind, color_of(verdict), options.color) + "  ";
  if (own_lines) {
    line += wrap_text(name, width, indent).substr(indent.size());
    if (!times.empty()) line += indent + times;
  } else {
    const std::size_t columns =
        options.width > 200 ? display_width(name) : room_of(verdict, options);
    line += name + std::string(columns - display_width(name) + 2, ' ') + times;
  }
  out << line.substr(0, line.find_last_not_of(" \n") + 1) << "\n";
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

void write_agreements(std::ostream& out, std::vector<Cells> rows,
                      const std::vector<std::string>& ids, const RowNames& names,
                      std::size_t terminal_width) {
  std::array<std::size_t, kNumCells> widths{};
  std::size_t others = 0;
  for (std::size_t c = 0; c < kNumCells; ++c) {
    for (const Cells& row : rows) widths[c] = std::max(widths[c], display_width(row[c]));
    if (c > 0) others += widths[c] + 2;
  }
  const std::size_t room =
      std::max(kLeastId, terminal_width > others ? terminal_width - others : 0);
  const RowNames::Chosen chosen = names.choose(ids, room);
  if (!chosen.shared.empty()) out << wrap_text("every row: " + chosen.shared, terminal_width, "");
  for (std::size_t i = 0; i < chosen.texts.size(); ++i) rows[i + 1][0] = chosen.texts[i];
  widths[0] = 0;
  for (const Cells& row : rows) widths[0] = std::max(widths[0], display_width(row[0]));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const Cells& row = rows[r];
    const bool own_line = chosen.own_lines && r > 0;
    std::string line = own_line ? wrap_text(row[0], terminal_width, "") : "";
    for (std::size_t c = chosen.own_lines ? 1 : 0; c < kNumCells; ++c) {
      const std::string fill(widths[c] - display_width(row[c]), ' ');
      line += (c == 0 ? "" : "  ") + (c < kNumTexts ? row[c] + fill : fill + row[c]);
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

void write_verdict_table(std::ostream& out, const GateReport& report, const RowNames& names,
                         const TableOptions& options) {
  std::vector<const Verdict*> shown;
  std::vector<std::string> ids;
  std::size_t room = kMostId;
  for (const Verdict& verdict : report.verdicts) {
    if (verdict.kind == VerdictKind::kSame && !verdict.fails && !options.show_reasons) continue;
    shown.push_back(&verdict);
    ids.push_back(verdict.id);
    room = std::min(room, room_of(verdict, options));
  }
  const RowNames::Chosen chosen = names.choose(ids, room);
  if (!chosen.shared.empty()) {
    out << wrap_text("every row: " + chosen.shared, width_of(options), "");
  }
  for (std::size_t i = 0; i < shown.size(); ++i) {
    write_verdict(out, *shown[i], chosen.texts[i], chosen.own_lines, options);
  }
  const bool any = !shown.empty();
  if (any) out << "\n";
  out << summary_line(report) << "\n";
  const std::string last_line =
      report.passed() && !report.compared_anything() ? "no case was compared"
      : report.passed()
          ? "gate passed"
          : fmt::format("gate failed: {} of {} case{}", report.failures(), report.verdicts.size(),
                        report.verdicts.size() == 1 ? "" : "s");
  out << painted(last_line, report.passed() && report.compared_anything() ? kGreen : kRed,
                 options.color)
      << "\n";
  for (const std::string& notice : report.notices) out << "notice: " << notice << "\n";
  write_next(out, report);
}

void write_agreement_table(std::ostream& out, const AgreementReport& report, const RowNames& names,
                           const TableOptions& options) {
  std::vector<Cells> rows{titles(report)};
  std::vector<std::string> ids;
  for (const Agreement& agreement : report.cases) {
    const bool fails = !agreement.disagreement.empty();
    if (!fails && !options.show_reasons && rows.size() > kShown) continue;
    rows.push_back(cells_of(agreement));
    ids.push_back(agreement.id);
  }
  write_agreements(out, std::move(rows), ids, names, width_of(options));
  out << "\n";
  for (const Agreement& agreement : report.cases) {
    if (agreement.disagreement.empty()) break;
    out << printable_lines(fmt::format("{}: {}\n", agreement.id, agreement.disagreement));
  }
  for (const std::string& id : report.lone) {
    out << printable_lines(fmt::format("{}: in one file only\n", id));
  }
  out << wrap_text(agreement_line(report), width_of(options), "");
  const int failures = report.failures();
  out << (failures == 0
              ? "the devices agree"
              : fmt::format("the devices disagree: {} case{}", failures, failures == 1 ? "" : "s"))
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
