// The operations of operations.def as kernel launches, one function each; KernelOps wraps them. A
// file below this folder defines the functions of some rows, one kernel file each.
//
// What holds for each of them:
//   - it chooses source, constants and grid by the parameters and by launcher.target(), and queues
//   the
//     launches in order. It neither waits nor looks at device memory, so the same calls give the
//     same specs without a device (recording_ops.h);
//   - addresses and strides count only by what they are multiples of (vector_choice.h);
//   - no work, an extent of 0, launches nothing;
//   - the name of a spec says what was chosen, since results and messages give it.
#pragma once

#include "ops/cuda/launcher.h"
#include "ops/operation_table.h"

namespace attnbench::cuda {

// CacheWriteParams::quantise, as far as launchers tell its values apart.
inline constexpr int kPerTokenHead = 2;
inline constexpr int kInt4 = 3;
inline constexpr int kSlots = 5;

/// void attend(Launcher& launcher, const attn::AttendParams& params), and so on. attend*, combine*
/// and reduce_segments are by the tiled kernels where they fit, else by the general one. What a
/// kernel does not do yet throws an Error of kind kUnsupported that says so.
#define ATTNBENCH_OPERATION(name, parameters, arguments) \
  void name(Launcher& launcher, ATTNBENCH_LIST parameters);
#include "ops/operations.def"

}  // namespace attnbench::cuda
