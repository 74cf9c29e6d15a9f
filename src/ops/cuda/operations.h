// The operations of operations.def as kernel launches, one function each; KernelOps wraps them.
#pragma once

#include "ops/cuda/launcher.h"
#include "ops/operation_table.h"

namespace attnbench::cuda {

/// void attend(Launcher& launcher, const attn::AttendParams& params), and so on. attend*, combine*
/// and reduce_segments are by the tiled kernels where they fit, else by the general one. What a
/// kernel does not do yet throws an Error of kind kUnsupported that says so.
#define ATTNBENCH_OPERATION(name, parameters, arguments) \
  void name(Launcher& launcher, ATTNBENCH_LIST parameters);
#include "ops/operations.def"

}  // namespace attnbench::cuda
