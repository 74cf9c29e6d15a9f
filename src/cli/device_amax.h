// Largest values of tensors as a device finds them, for calibrate --device.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "backends/backend.h"
#include "core/problem/problem.h"
#include "core/tensor.h"

namespace attnbench {

/// max|x|, or max x; nothing for what the operation does not take: other types than float32,
/// float16 and bfloat16, other ranks than 3. `ops` is used by one thread at a time.
std::function<std::optional<float>(const Tensor&)> amax_on(std::shared_ptr<Ops> ops, AmaxKind kind);

}  // namespace attnbench
