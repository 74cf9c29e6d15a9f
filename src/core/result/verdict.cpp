// The words of the verdicts and what follows from their counts. The order of the rows is the order
// of badness: tables, Markdown and the summary line list verdicts by it.
#include "core/result/verdict.h"

#include <fmt/format.h>

#include <algorithm>

namespace attnbench {

std::span<const EnumRow<VerdictKind>> enum_rows(VerdictKind) {
  using enum VerdictKind;
  static constexpr auto kRows = every_value<EnumRow<VerdictKind>>({
      {kBroken, "BROKEN", "the status got worse"},
      {kLessAccurate, "LESS_ACCURATE", "err_ratio or NMSE grew beyond its threshold"},
      {kLessChecked, "LESS_CHECKED", "less was compared than in the baseline, or more is not seen"},
      {kSlower, "SLOWER", "slower beyond threshold and noise"},
      {kMissing, "MISSING", "in the baseline, or timed there, and not in the results"},
      {kAmbiguous, "AMBIGUOUS", "apart, but not beyond the noise"},
      {kNew, "NEW", "in the results, not in the baseline"},
      {kFixed, "FIXED", "the status got better"},
      {kFaster, "FASTER", "faster beyond threshold and noise"},
      {kSame, "SAME", "no difference that counts"},
  });
  return kRows;
}

std::vector<int> GateReport::counts() const {
  std::vector<int> counts(enum_rows(VerdictKind{}).size());
  for (const Verdict& verdict : verdicts) ++counts[static_cast<std::size_t>(verdict.kind)];
  return counts;
}

int GateReport::failures() const {
  return static_cast<int>(std::count_if(verdicts.begin(), verdicts.end(),
                                        [](const Verdict& verdict) { return verdict.fails; }));
}

int GateReport::known() const {
  return static_cast<int>(
      std::count_if(verdicts.begin(), verdicts.end(),
                    [](const Verdict& verdict) { return verdict.known == Known::kYes; }));
}

bool GateReport::compared_anything() const {
  return std::any_of(verdicts.begin(), verdicts.end(), [](const Verdict& verdict) {
    return verdict.kind != VerdictKind::kMissing && verdict.kind != VerdictKind::kNew;
  });
}

std::string summary_line(const GateReport& report) {
  const auto counts = report.counts();
  std::string line;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    if (!line.empty()) line += ", ";
    line += fmt::format("{} {}", counts[i], enum_rows(VerdictKind{})[i].name);
  }
  if (line.empty()) return "no cases";
  if (report.known() > 0) line += fmt::format(" ({} known)", report.known());
  return line;
}

}  // namespace attnbench
