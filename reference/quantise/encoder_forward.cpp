#include "reference/quantise/encoder_forward.h"

#include "core/parallel.h"
#include "reference/quantise/encoder.h"

namespace attnbench {
namespace {

constexpr std::int64_t kRowsPerTask = 1024;

/// The first `head_size` columns of codes [T, heads, padded], as values.
Tensor dequantise(const Tensor& codes, std::int64_t head_size, float scale) {
  const std::int64_t padded = codes.dim(2);
  Tensor values(Dtype::kF32, {codes.dim(0), codes.dim(1), head_size});
  for_each_chunk(codes.dim(0) * codes.dim(1), kRowsPerTask, [&](auto begin, auto end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* of_row = values.data<float>() + row * head_size;
      load_floats(Dtype::kE4M3, codes.bytes() + row * padded, head_size, of_row);
      for (std::int64_t d = 0; d < head_size; ++d) of_row[d] *= scale;
    }
  });
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
