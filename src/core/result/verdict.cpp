#include "core/result/verdict.h"

#include <fmt/format.h>

#include <algorithm>

namespace attnbench {

const char* to_string(VerdictKind kind) {
  switch (kind) {
    case VerdictKind::kBroken:
      return "BROKEN";
    case VerdictKind::kLessAccurate:
      return "LESS_ACCURATE";
    case VerdictKind::kSlower:
      return "SLOWER";
    case VerdictKind::kMissing:
      return "MISSING";
    case VerdictKind::kAmbiguous:
      return "AMBIGUOUS";
    case VerdictKind::kNew:
      return "NEW";
    case VerdictKind::kFixed:
      return "FIXED";
    case VerdictKind::kFaster:
      return "FASTER";
    case VerdictKind::kSame:
      return "SAME";
  }
  return "";
}

std::array<int, kNumVerdictKinds> GateReport::counts() const {
  std::array<int, kNumVerdictKinds> counts{};
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
    line += fmt::format("{} {}", counts[i], to_string(static_cast<VerdictKind>(i)));
  }
  if (line.empty()) return "no cases";
  if (report.known() > 0) line += fmt::format(" ({} known)", report.known());
  return line;
}

}  // namespace attnbench
