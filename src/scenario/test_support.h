// Shared by the tests of this module.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "core/error.h"
#include "core/test_folder.h"
#include "scenario/scenario.h"

namespace attnbench::testing {

/// A scenario named t at Llama-like dims; `more` is appended as further top-level lines.
inline std::string base_text(const std::string& more) {
  return "name: t\nattention: {num_heads: 8, num_kv_heads: 2, head_size: 64}\n" + more;
}

inline std::vector<Problem> cases_of(const std::string& text, const ScenarioOptions& options = {}) {
  return parse_scenario(text, "s.yaml", options).cases;
}

inline Problem only_case(const std::string& text, const ScenarioOptions& options = {}) {
  const std::vector<Problem> cases = cases_of(text, options);
  REQUIRE(cases.size() == 1);
  return cases.front();
}

/// "E-CONFIG: s.yaml:3: ...", or "accepted".
inline std::string error_of(const std::string& text, const ScenarioOptions& options = {}) {
  try {
    parse_scenario(text, "s.yaml", options);
  } catch (const Error& error) {
    return error.full_message();
  }
  return "accepted";
}

inline std::vector<std::string> names_of(const std::string& text,
                                         const ScenarioOptions& options = {}) {
  std::vector<std::string> names;
  for (const Problem& problem : cases_of(text, options)) names.push_back(problem.case_name);
  return names;
}

using TempFolder = TestFolder;

}  // namespace attnbench::testing
