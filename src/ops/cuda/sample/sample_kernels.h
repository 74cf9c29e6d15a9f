// Launches of the kernels around a timed sample (kernels/measure/sample.cuh). They are no operation
// of attention: a measurement queues them in front of a pipeline and behind it, on its stream.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params_measure.h"
#include "ops/cuda/launcher.h"

namespace attnbench::cuda {

/// Queues the redraw of elements of 1, 2 or 4 bytes. Source and target begin on 16 bytes.
void launch_redraw(Launcher& launcher, int element_bytes, const attn::RedrawParams& params);

/// Queues `count` moves of a table on the device, none longer than `longest` bytes.
void launch_moves(Launcher& launcher, const attn::BlockMove* table, std::int64_t count,
                  std::int64_t longest);

/// Queues the sums over the bytes of an output, which are added to *params.sums.
void launch_digest(Launcher& launcher, const attn::DigestParams& params);

/// All that these may launch, to be compiled ahead.
std::vector<KernelSpec> sample_specs();

}  // namespace attnbench::cuda
