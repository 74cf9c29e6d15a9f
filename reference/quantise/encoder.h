// fp8 quantisation of the multimodal encoder's Q, K and V with the head dimension padded to 16
// (semantics §10.5). Q, K and V may be views into one interleaved buffer, so they come with
// strides; the codes are dense. Whether an element is divided by the scale or multiplied by its
// reciprocal changes its code in rare cases, and upstream does both: it divides only where it has
// to pad.
#pragma once

#include <array>
#include <cstdint>

#include "reference/quantise/strided_tensor.h"

namespace attnbench {

struct MmQuantised {
  Tensor codes;                // e4m3, contiguous [(B,) S, H, D rounded up to 16]; padding 0
  std::int64_t saturated = 0;  // elements lost to saturation
};

/// x [(B,) S, H, D] of any strides. D mod 16 != 0: rn_e4m3(x / scale); else rn_e4m3(x * (1/scale));
/// skip_scale leaves the scale out. E-SHAPE for a rank other than 3 or 4, E-VALUE for a bad scale.
MmQuantised quantise_fp8_maybe_pad_head_dim(const StridedTensor& x, float scale, bool skip_scale);

// One fp8 forward of the multimodal encoder as the reference sees it: codes of Q, K and V, and the
// values that attention reads from them (semantics §10.5, §15.1).

/// Of Q, K and V. `skip` leaves a scale out; only a loaded scale of exactly 1.0 does that.
struct MmScales {
  std::array<float, 3> scale{1, 1, 1};
  std::array<bool, 3> skip{};
};

struct MmForward {
  std::array<Tensor, 3> codes;              // e4m3 [T, heads, D rounded up to 16]
  std::array<Tensor, 3> dequantized;        // f32 [T, heads, D]: value of the code * scale
  std::array<std::int64_t, 3> saturated{};  // elements lost to saturation
};

/// Errors: as quantise_fp8_maybe_pad_head_dim.
MmForward quantise_mm_forward(const std::array<StridedTensor, 3>& sources, const MmScales& scales);

}  // namespace attnbench
