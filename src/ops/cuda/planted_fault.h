// Faults of kernels, launched on purpose.
#pragma once

#include <span>

#include "core/enum_names.h"
#include "ops/cuda/launcher.h"
#include "ops/ops.h"

namespace attnbench::cuda {

enum class Fault { kHang, kCrash, kOverrun };
std::span<const EnumRow<Fault>> enum_rows(Fault);

KernelSpec fault_spec(Fault fault);

/// Queues the kernel of `fault`. `buffer` has at least 4 bytes of poison and must outlive the
/// kernel; an overrun goes past its end.
void launch_fault(Launcher& launcher, Fault fault, Buffer& buffer);

}  // namespace attnbench::cuda
