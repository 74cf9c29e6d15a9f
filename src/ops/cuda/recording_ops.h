// What kernels would do on a device that is only described: which ones an operation would launch,
// and for which problems there is none. So kernels can be compiled, and their choice explained, on
// a machine without a GPU; and a case without a kernel is refused before a suite runs, with the
// reason, where a launch would fail in the middle of it.
//
// "attnbench compile" and "explain" run whole pipelines on it, case after case, and compile or list
// what was recorded. Tests compile what they recorded and then run the same operations on a device.
//
// It holds because launchers choose by arguments and target only, never by the contents of device
// memory. A download gives zeros, so a pipeline must not let results decide which operation comes
// next.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/problem/problem.h"
#include "jit/kernel_spec.h"
#include "ops/cuda/attention/candidates.h"
#include "ops/cuda/launcher.h"
#include "ops/ops.h"

namespace attnbench {

/// Runs nothing: every operation adds the specs that it would launch on `target` to `specs`, each
/// once; where `decisions` is not null, also how it chose the kernel of each attention operation.
/// Buffers take no memory and must not be touched. `specs` and `decisions` must outlive it. Where
/// there is no kernel, or a launch that no device of the target could take, the operation throws
/// the error that it would throw on the device; what came before stays recorded.
std::unique_ptr<Ops> make_recording_ops(const cuda::Target& target, std::vector<KernelSpec>& specs,
                                        std::vector<cuda::AttendDecision>* decisions = nullptr);

/// Forms of attention in `problem` that have no kernel on `target`, as reasons to refuse it before
/// it is run: "attend of head_size 1024 needs 172800 bytes of shared memory of 101376". Empty when
/// everything is there. It is about attention, whose kernels have limits of head size, element
/// types and shared memory; what backends refuse on every device is not repeated here.
std::vector<std::string> cuda_lacks(const Problem& problem, const cuda::Target& target);

}  // namespace attnbench
