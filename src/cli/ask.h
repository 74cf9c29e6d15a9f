// Which pairs are refused and why; users' backends are asked in a process of their own.
#pragma once

#include <string>
#include <vector>

#include "cli/device.h"
#include "cli/selection.h"

namespace attnbench {

/// Every reason against each pair, in their order. All users' backends are asked by one child,
/// which may crash, hang, start threads and touch a device. Errors: E-INTERNAL naming the pair at
/// which it came to grief; BackendFailure with the words of a supports() that throws.
std::vector<std::vector<std::string>> ask_all(const std::vector<Pair>& pairs,
                                              const DeviceChoice& device);

}  // namespace attnbench
