// Screening by the float64 kernel of ops/cuda/measure: from the terms of the reference to those of
// the device.
#pragma once

#include <memory>

#include "bench/judge/screen.h"
#include "ops/cuda/launcher.h"
#include "ops/ops.h"

namespace attnbench {

/// On what `launcher` launches on, with memory of `ops`; both must outlive it.
std::unique_ptr<RowScreen> make_device_screen(Ops& ops, cuda::Launcher& launcher);

/// Keeps the operations alive, which must be those of a CUDA device (make_cuda_ops): screenings of
/// several cases share their kernels and their stream.
std::unique_ptr<RowScreen> make_device_screen(std::shared_ptr<Ops> ops);

}  // namespace attnbench
