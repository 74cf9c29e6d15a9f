// Rows along the head dimension are independent, so threads take runs of them.
#include "reference/quantise/encoder.h"

#include <atomic>
#include <vector>

#include "core/error.h"
#include "core/system/parallel.h"
#include "metadata/int_math.h"
#include "metadata/validation.h"
#include "reference/quantise/number_formats.h"

namespace attnbench {
namespace {

constexpr std::int64_t kEncoderRowsPerTask = 1024;

/// The first `head_size` columns of codes [T, heads, padded], as values.
Tensor dequantise(const Tensor& codes, std::int64_t head_size, float scale) {
  const std::int64_t padded = codes.dim(2);
  Tensor values(Dtype::kF32, {codes.dim(0), codes.dim(1), head_size});
  for_each_chunk(codes.dim(0) * codes.dim(1), kEncoderRowsPerTask, [&](auto begin, auto end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* of_row = values.data<float>() + row * head_size;
      load_floats(Dtype::kE4M3, codes.bytes() + row * padded, head_size, of_row);
      for (std::int64_t d = 0; d < head_size; ++d) of_row[d] *= scale;
    }
  });
  return values;
}

}  // namespace

MmQuantised quantise_fp8_maybe_pad_head_dim(const StridedTensor& x, float scale, bool skip_scale) {
  if (x.shape.size() != 3 && x.shape.size() != 4) {
    fail(ErrorKind::kShape, "x must have rank 3 or 4, got {}", x.shape.size());
  }
  require_activation(x.dtype, "x");
  if (!skip_scale) check_scale(scale, "scale");

  const std::int64_t head_size = x.shape.back();
  const std::int64_t padded_head_size = round_up(head_size, 16);
  const bool divides = padded_head_size != head_size;
  const float factor = 1.0f / scale;
  const auto unscaled = [&](float value) {
    if (skip_scale) return value;
    return divides ? value / scale : scaled_by(value, factor);
  };

  std::vector<std::int64_t> shape = x.shape;
  shape.back() = padded_head_size;
  MmQuantised result{Tensor(Dtype::kE4M3, shape)};
  check_view(x);
  std::atomic<std::int64_t> saturated{0};
  for_each_chunk(num_rows(x), kEncoderRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t count_of_chunk = 0;
    std::vector<float> scaled(static_cast<std::size_t>(head_size));
    for_each_row(x, begin, end, [&](std::int64_t row, const float* values, std::int64_t count) {
      for (std::int64_t d = 0; d < count; ++d) {
        const float y = unscaled(values[d]);
        count_of_chunk += saturates_e4m3(y) ? 1 : 0;
        scaled[static_cast<std::size_t>(d)] = y;
      }
      store_floats(Dtype::kE4M3, scaled.data(), count,
                   result.codes.bytes() + row * padded_head_size);
    });
    saturated += count_of_chunk;
  });
  result.saturated = saturated;
  return result;
}

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
