// What the metadata of a result of `run --save-tensors` say of its attention (contract section 5).
#pragma once

#include <optional>
#include <string>

#include "calibrate/observations.h"
#include "inputs/files/safetensors.h"

namespace attnbench {

struct SavedProblem {
  std::string layer = kUnnamedLayer;
  KernelRules rules;        // of the backend: windows and slopes differ (semantics §3.3, §3.4)
  AttentionSpec attention;  // every field that the metadata have, defaults for the others
};

/// Nothing for a file without metadata `problem`. Errors: E-FORMAT unless type, causal and scale
/// are there; for a field that does not suit, what the scenario loader would say (E-FORMAT,
/// E-CONFIG, E-VALUE), naming file and field; E-VALUE for a backend that `find_rules` does not know
/// and whose rules the file does not state.
std::optional<SavedProblem> saved_problem(const SafetensorsReader& reader,
                                          const FindRules& find_rules);

}  // namespace attnbench
