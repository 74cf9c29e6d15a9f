// Reasons in the words of semantics §13 only, for tests of which rows a backend gives.
#pragma once

#include <string>
#include <vector>

namespace attnbench {

/// Without "(found ...; expected ...)", which stands behind the words.
inline std::vector<std::string> bare_reasons(std::vector<std::string> reasons) {
  for (std::string& reason : reasons) reason = reason.substr(0, reason.find(" (found "));
  return reasons;
}

}  // namespace attnbench
