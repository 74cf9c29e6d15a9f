// Screening by the float64 kernel of ops/cuda/measure: from the terms of the reference to those of
// the device. Beside it attention in float32 by the operations of a device, for reports that
// compare it with float64: what the scales of a quantised model cost is a hundredth, what float32
// adds a millionth.
#pragma once

#include <memory>

#include "bench/judge/screen.h"
#include "core/tensor.h"
#include "metadata/mask/attention_math.h"
#include "ops/cuda/launcher.h"
#include "ops/ops.h"
#include "reference/attention.h"

namespace attnbench {

/// On what `launcher` launches on, with memory of `ops`; both must outlive it.
std::unique_ptr<RowScreen> make_device_screen(Ops& ops, cuda::Launcher& launcher);

/// Keeps the operations alive, which must be those of a CUDA device (make_cuda_ops): screenings of
/// several cases share their kernels and their stream.
std::unique_ptr<RowScreen> make_device_screen(std::shared_ptr<Ops> ops);

/// Output f32 [T, H, Dv] of queries [T, H, D] over the keys of their requests, as
/// reference_attention() has it. Tensors of any floating type become float32. Errors: E-UNSUPPORTED
/// for ranges of a multimodal prefix and chunks, and for what the device's kernels do not take.
Tensor attend_in_float32(Ops& ops, const AttentionMath& math, const ReferenceInputs& inputs);

}  // namespace attnbench
