// Seeded small problems over all features of the tool, as a user could write them.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "run_case.h"

namespace attnbench::matrix {

/// A drawn scenario; it may be one that no backend could satisfy.
struct Draw {
  std::string backend;
  std::vector<Setting> settings;
  /// The features that it has, named as in required_features().
  std::set<std::string> features;
};

/// The same draw for the same seed on every machine.
Draw draw_problem(std::uint64_t seed);

/// What a run of many draws must have met at least once.
const std::vector<std::string>& required_features();

}  // namespace attnbench::matrix
