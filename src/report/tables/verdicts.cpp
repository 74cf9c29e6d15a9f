#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/system/printable.h"
#include "report/format.h"
#include "report/verdicts.h"

namespace attnbench {
namespace {

constexpr const char* kRed = "\x1b[31m";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kReset = "\x1b[0m";
constexpr std::size_t kKindWidth = 13;  // LESS_ACCURATE
constexpr std::size_t kLeastId = 20;

std::string painted(const std::string& text, const char* color, bool enabled) {
  return enabled ? color + text + kReset : text;
}

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
  const std::string outcome =
      report.passed()
          ? "gate passed"
          : fmt::format("gate failed: {} of {} cases", report.failures(), report.verdicts.size());
  out << painted(outcome, report.passed() ? kGreen : kRed, options.color) << "\n";
  for (const std::string& notice : report.notices) out << "notice: " << notice << "\n";
  write_next(out, report);
}

}  // namespace attnbench
