// What cuDNN's attention does not do, as far as its documentation says so; the rest it says itself
// when a plan is made.
#pragma once

#include <string>
#include <vector>

#include "backends/backend.h"

namespace attnbench {

/// All reasons against the problem, those of semantics §13 in its words; `missing` are those of the
/// library. Limits of cuDNN 9.13 to 9.19 by its frontend's documentation of attention and, where
/// it says nothing, by what was seen on an H200.
std::vector<std::string> cudnn_refusals(const Problem& problem, const DeviceFacts& device,
                                        const std::vector<std::string>& missing);

}  // namespace attnbench
