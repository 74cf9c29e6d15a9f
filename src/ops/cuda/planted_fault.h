// Faults of kernels, launched on purpose: the kernels of a user may hang, crash or write past a
// buffer, and a run has to survive each of them, name the kernel and go on. Tests on a GPU plant
// these to see that it does; no pipeline uses them.
#pragma once

#include <span>

#include "core/enum_names.h"
#include "ops/cuda/launcher.h"
#include "ops/ops.h"

namespace attnbench::cuda {

/// Their names and meanings are in enum_rows().
enum class Fault { kHang, kCrash, kOverrun, kExit };
std::span<const EnumRow<Fault>> enum_rows(Fault);

/// What launch_fault() launches, to be compiled ahead.
KernelSpec fault_spec(Fault fault);

/// Queues the kernel of `fault`, which is not kExit: that is for the host. `buffer` has at least 4
/// bytes of poison and must outlive the kernel; an overrun goes past its end.
void launch_fault(Launcher& launcher, Fault fault, Buffer& buffer);

}  // namespace attnbench::cuda
