// The rows of the edge-case matrix: the checklist of semantics §18.1, entry by entry, and what each
// means for a target.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "crafted_inputs.h"
#include "edge_targets.h"

namespace attnbench::matrix {

/// What a variation demands of the arguments of the operations, beside the verdict.
enum class Demand { kNone, kNegativeSlot, kSharedPage, kPaddingRows, kStridedViews, kFarOffsets };

struct Variation {
  std::string label;
  std::vector<Setting> settings = {};
  std::optional<Scores> scores = {};
  /// What no scenario can say, e.g. a batch without requests.
  std::function<void(Problem&)> edit = {};
  Demand demand = Demand::kNone;
  std::string refusal = {};  // the reason that the backend must give; empty = it must pass
};

struct NotApplicable {
  std::string reason;
};

/// A cell is one or the other; an entry without an answer for a target is a fault of the matrix.
using Cell = std::variant<std::vector<Variation>, NotApplicable>;

struct Entry {
  std::string name;
  std::function<Cell(const Target&)> cell;
};

const std::vector<Entry>& edge_entries();

}  // namespace attnbench::matrix
