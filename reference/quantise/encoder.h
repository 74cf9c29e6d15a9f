// fp8 quantisation of the multimodal encoder's Q, K and V with the head dimension padded to 16
// (semantics §10.5).
#pragma once

#include <cstdint>

#include "reference/ops/strided_tensor.h"

namespace attnbench {

struct MmQuantised {
  Tensor codes;                // e4m3, contiguous [(B,) S, H, D rounded up to 16]; padding 0
  std::int64_t saturated = 0;  // elements lost to saturation
};

/// x [(B,) S, H, D] of any strides. D mod 16 != 0: rn_e4m3(x / scale); else rn_e4m3(x * (1/scale));
/// skip_scale leaves the scale out. E-SHAPE for a rank other than 3 or 4, E-VALUE for a bad scale.
MmQuantised quantise_fp8_maybe_pad_head_dim(const StridedTensor& x, float scale, bool skip_scale);

}  // namespace attnbench
