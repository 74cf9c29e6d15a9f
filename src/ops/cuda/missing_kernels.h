// Which problems no CUDA kernel can do, before they are run: the command line refuses a case by it
// and gives the reason, where a launch would fail in the middle of a suite.
//
// The answer is about attention, whose kernels have limits of head size, element types and shared
// memory. Other operations take every problem that a backend accepts, or refuse when they are
// called. What backends refuse on every device is not repeated here.
#pragma once

#include <string>
#include <vector>

#include "core/problem/problem.h"
#include "ops/cuda/launcher.h"

namespace attnbench {

/// Forms of attention in `problem` that have no kernel on `target`, as reasons to refuse it before
/// it is run: "attend of head_size 1024 needs 172800 bytes of shared memory of 101376". Empty when
/// everything is there.
std::vector<std::string> cuda_lacks(const Problem& problem, const cuda::Target& target);

}  // namespace attnbench
