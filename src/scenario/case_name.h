// Names of cases: the second part of every result id (contract section 4).
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/value.h"

namespace attnbench {

/// Gives each case its name and keeps names unique.
class CaseNamer {
 public:
  /// `label`, then ",key=value" per swept key but `batch`, whose value the label is; values are
  /// JSON, texts without quotes. '/' becomes '_'. Over 120 bytes: the first 100 (less, where that
  /// would cut a UTF-8 character), '-' and 8 hex digits of the SHA-256 of the whole. A name that
  /// was given before gets "#2", "#3", ....
  std::string name(std::string_view label,
                   const std::vector<std::pair<std::string, const Value*>>& swept);

 private:
  std::unordered_map<std::string, int> uses_;
};

}  // namespace attnbench
