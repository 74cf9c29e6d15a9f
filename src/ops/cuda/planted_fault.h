// Faults of kernels, launched on purpose.
#pragma once

#include "ops/cuda/launcher.h"
#include "ops/ops.h"

namespace attnbench::cuda {

enum class Fault {
  kHang,     // a kernel that never ends
  kCrash,    // a write to an address without memory: a sticky device error
  kOverrun,  // a write behind the end of a buffer
};

KernelSpec fault_spec(Fault fault);

/// Queues the kernel of `fault`. `buffer` has at least 4 bytes of poison and must outlive the
/// kernel; an overrun goes past its end.
void launch_fault(Launcher& launcher, Fault fault, Buffer& buffer);

}  // namespace attnbench::cuda
