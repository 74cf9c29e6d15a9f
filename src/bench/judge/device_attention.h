// Attention of tensors in float32 by the operations of a device, for reports that compare it with
// float64 (RowScreen): what scales of a quantised model cost is a hundredth, what float32 adds a
// millionth.
#pragma once

#include "core/tensor.h"
#include "metadata/mask/attention_math.h"
#include "ops/ops.h"
#include "reference/attention.h"

namespace attnbench {

/// Output f32 [T, H, Dv] of queries [T, H, D] over the keys of their requests, as
/// reference_attention() has it. Tensors of any floating type become float32. Errors: E-UNSUPPORTED
/// for ranges of a multimodal prefix and chunks, and for what the device's kernels do not take.
Tensor attend_in_float32(Ops& ops, const AttentionMath& math, const ReferenceInputs& inputs);

}  // namespace attnbench
