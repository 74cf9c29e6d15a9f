// Reductions of a row in independent lanes, because one running value does not vectorise.
#pragma once

#include <array>

#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

/// fold(running, value) over values [count] in no particular order, beginning with `start`; lanes
/// are folded into each other at the end.
template <typename Fold>
float reduce_lanes(const float* values, int count, float start, const Fold& fold) {
  std::array<float, kLanes> lanes;
  lanes.fill(start);
  const int whole = count / kLanes * kLanes;
  for (int d = 0; d < whole; d += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l)
      lanes[l] = fold(lanes[l], values[d + static_cast<int>(l)]);
  }
  for (int d = whole; d < count; ++d) lanes[0] = fold(lanes[0], values[d]);
  for (std::size_t l = 1; l < kLanes; ++l) lanes[0] = fold(lanes[0], lanes[l]);
  return lanes[0];
}

}  // namespace attnbench::cpu
