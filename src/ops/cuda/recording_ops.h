// Operations on the description of a device: nothing runs, and every kernel that would be launched
// is noted. So kernels can be compiled, and their choice explained, on a machine without a GPU;
// compile, explain and the tests of specs run whole pipelines on it.
//
// It holds because launchers choose by arguments and target only, never by the contents of device
// memory. Pipelines see downloads full of zeros, so what they make of results must not decide which
// operation comes next.
#pragma once

#include <memory>
#include <vector>

#include "jit/kernel_spec.h"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/launcher.h"
#include "ops/ops.h"

namespace attnbench {

/// Runs nothing: every operation adds the specs that it would launch on `target` to `specs`, each
/// once; where `decisions` is not null, also how it chose the kernel of each attention operation.
/// Buffers take no memory and must not be touched. `specs` and `decisions` must outlive it.
std::unique_ptr<Ops> make_recording_ops(const cuda::Target& target, std::vector<KernelSpec>& specs,
                                        std::vector<cuda::AttendDecision>* decisions = nullptr);

}  // namespace attnbench
