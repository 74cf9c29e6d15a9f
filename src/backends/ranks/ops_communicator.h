// Simulated ranks whose buffers lie on the device of an Ops: what they exchange is copied and
// summed by its operations, so that nothing passes through the host.
#pragma once

#include <memory>

#include "backends/ranks/communicator.h"
#include "ops/ops.h"

namespace attnbench {

/// `ops` must outlive it. world_size in [1, attn::kMostSummedRanks], else E-CONFIG.
std::unique_ptr<Communicator> make_ops_communicator(int world_size, Ops& ops);

}  // namespace attnbench
