// The small files of a gate: thresholds by pattern, and known failures.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/parsing.h"
#include "core/value.h"

namespace attnbench {

/// A regular expression that is searched in result ids, as --filter does.
struct IdPattern {
  std::string text;
  Pattern pattern;
  bool matches(const std::string& id) const;
};

/// Limits of the cases that a pattern matches; what is not given stays as it was.
struct ThresholdRule {
  IdPattern id;
  std::optional<double> threshold;  // relative
  std::optional<double> floor_us;
  std::optional<double> accuracy_threshold;  // relative
};

struct KnownFailure {
  IdPattern id;
  std::string reason;
  std::string expires;  // the last day on which it holds, "2026-12-31"
};

/// "0.03", "3%" and, from 1 up, "3" are 3 %. Errors: kUsage naming `what`.
double parse_threshold(const std::string& text, const std::string& what);

/// From a list of {id, threshold, floor_us, accuracy_threshold}; later entries win. Errors:
/// E-FORMAT with file and line for an unknown or missing key or a value of the wrong type, E-VALUE
/// for a bad pattern or number.
std::vector<ThresholdRule> threshold_rules(const Value& list);

/// From a list of {id, reason, expires}, all of them required. Errors: as above, and for a date
/// that is not one.
std::vector<KnownFailure> known_failures(const Value& list);

/// The first entry that matches and holds on `today` ("2026-12-31"), else the first that matches;
/// null when there is none.
const KnownFailure* find_known(const std::vector<KnownFailure>& known, const std::string& id,
                               const std::string& today);
bool has_expired(const KnownFailure& known, const std::string& today);

}  // namespace attnbench
