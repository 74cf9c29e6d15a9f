// What the metadata of a result of `run --save-tensors` say of its attention (contract section 5).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "calibrate/observations.h"
#include "inputs/safetensors.h"

namespace attnbench {

/// Nothing where the metadata do not tell.
struct SavedProblem {
  std::string layer = kUnnamedLayer;
  std::optional<bool> causal;
  std::optional<double> scale;
  std::optional<std::int64_t> sliding_window;
  double logits_soft_cap = 0;
  AlibiKind alibi = AlibiKind::kNone;
};

/// Defaults for a file without such metadata.
SavedProblem saved_problem(const SafetensorsReader& reader);

}  // namespace attnbench
