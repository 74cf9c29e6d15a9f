// What became of a case since a baseline: the record behind the gate's table, Markdown and JUnit.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/enum_names.h"

namespace attnbench {

/// In the order of badness; meanings and names, "LESS_ACCURATE", are in the table of verdict.cpp.
enum class VerdictKind {
  kBroken,
  kLessAccurate,
  kLessChecked,
  kSlower,
  kMissing,
  kAmbiguous,
  kNew,
  kFixed,
  kFaster,
  kSame
};
std::span<const EnumRow<VerdictKind>> enum_rows(VerdictKind);

/// Whether an entry of the known failures covers a verdict that fails.
enum class Known { kNo, kYes, kExpired };

struct Verdict {
  std::string id;
  VerdictKind kind = VerdictKind::kSame;
  /// Medians; NaN where there is none.
  double old_us = std::numeric_limits<double>::quiet_NaN();
  double new_us = std::numeric_limits<double>::quiet_NaN();
  std::string rule;    // the comparison that decided, with its numbers
  bool fails = false;  // whether the gate fails because of it; false for Known::kYes
  Known known = Known::kNo;
  std::string known_text;  // "reason (until 2026-12-31)"
  std::string repro;       // command that measures the case again
};

struct GateReport {
  std::vector<Verdict> verdicts;     // worst first
  std::vector<std::string> notices;  // e.g. entries of the known failures that match nothing

  /// Verdicts of every kind, indexed by it.
  std::vector<int> counts() const;
  int failures() const;
  int known() const;
  bool passed() const { return failures() == 0; }
  /// Whether any case has a result on both sides.
  bool compared_anything() const;
};

/// "1 SLOWER, 2 AMBIGUOUS, 40 SAME": what is not zero, worst first.
std::string summary_line(const GateReport& report);

}  // namespace attnbench
