// Which kernels a case would launch, found without running anything.
#pragma once

#include <vector>

#include "backends/backend.h"
#include "bench/system.h"
#include "jit/kernel_spec.h"
#include "ops/cuda/launcher.h"

namespace attnbench {

/// Each spec once, in the order of launches. Makes the inputs of the case. `backend` supports the
/// problem on `target`.
std::vector<KernelSpec> specs_of_pair(const Problem& problem, const Backend& backend,
                                      const cuda::Target& target);
/// The same with a system that other backends share.
std::vector<KernelSpec> specs_of_system(System& system, const Backend& backend,
                                        const cuda::Target& target);

}  // namespace attnbench
