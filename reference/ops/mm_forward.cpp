#include "reference/ops/mm_forward.h"

#include "reference/ops/mm_quant.h"
#include "reference/ops/number_formats.h"

namespace attnbench {
namespace {

/// The first `head_size` columns of codes [T, heads, padded], as values.
Tensor dequantise(const Tensor& codes, std::int64_t head_size, float scale) {
  const std::int64_t padded = codes.dim(2);
  Tensor values(Dtype::kF32, {codes.dim(0), codes.dim(1), head_size});
  for (std::int64_t row = 0; row < codes.dim(0) * codes.dim(1); ++row) {
    for (std::int64_t d = 0; d < head_size; ++d) {
      const std::uint8_t code = codes.data<std::uint8_t>()[row * padded + d];
      values.data<float>()[row * head_size + d] = e4m3_value(code) * scale;
    }
  }
  return values;
}

}  // namespace

MmForward quantise_mm_forward(const std::array<StridedTensor, 3>& sources, const MmScales& scales) {
  MmForward forward;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    MmQuantised quantised =
        quantise_fp8_maybe_pad_head_dim(sources[i], scales.scale[i], scales.skip[i]);
    forward.saturated[i] = quantised.saturated;
    const float factor = scales.skip[i] ? 1.0f : scales.scale[i];
    forward.dequantized[i] = dequantise(quantised.codes, sources[i].shape.back(), factor);
    forward.codes[i] = std::move(quantised.codes);
  }
  return forward;
}

}  // namespace attnbench
