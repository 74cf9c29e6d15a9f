// Each block of 16 columns is independent. The arithmetic is f32 in exactly the order of §9.4: a
// reciprocal more or less changes codes at ties.
#include "reference/quantise/nvfp4.h"

#include "core/error.h"
#include "core/system/parallel.h"
#include "metadata/int_math.h"
#include "metadata/validation.h"
#include "reference/quantise/number_formats.h"

namespace attnbench {
namespace {

constexpr std::int64_t kNvfp4RowsPerTask = 8;

std::size_t scale_offset(std::int64_t row, std::int64_t block, std::int64_t num_columns,
                         bool swizzled) {
  const std::int64_t offset = swizzled ? nvfp4_swizzled_offset(row, block, num_columns)
                                       : row * (num_columns / kNvfp4BlockSize) + block;
  return static_cast<std::size_t>(offset);
}

void check_sizes(std::int64_t rows, std::int64_t num_columns, bool swizzled, std::size_t packed,
                 std::size_t scales) {
  if (num_columns % kNvfp4BlockSize != 0) {
    fail(ErrorKind::kShape, "NVFP4 output columns must be a multiple of 16, got {}", num_columns);
  }
  require_size(packed, rows * (num_columns / 2), "packed NVFP4 output");
  require_size(scales, nvfp4_scale_bytes(rows, num_columns, swizzled), "NVFP4 block scales");
}

/// Writes 8 bytes of codes and returns the code of the block's scale.
std::uint8_t quantise_block(std::span<const float> block, float global_scale,
                            std::uint8_t* packed) {
  const float largest = max_abs(block);
  const std::uint8_t scale_code = rn_e4m3(global_scale * (largest / 6.0f));
  const float scale = e4m3_value(scale_code);
  const float factor = scale == 0.0f ? 0.0f : 1.0f / (scale / global_scale);
  for (std::size_t i = 0; i < block.size(); i += 2) {
    const unsigned even = rn_e2m1(scaled_by(block[i], factor));
    const unsigned odd = rn_e2m1(scaled_by(block[i + 1], factor));
    packed[i / 2] = static_cast<std::uint8_t>(even | (odd << 4));
  }
  return scale_code;
}

}  // namespace

std::int64_t nvfp4_swizzled_offset(std::int64_t row, std::int64_t block, std::int64_t num_columns) {
  const std::int64_t tiles_across = ceil_div(num_columns, 64);
  const std::int64_t tile = row / 128 * tiles_across + block / 4;
  return tile * 512 + row % 32 * 16 + row / 32 % 4 * 4 + block % 4;
}

std::int64_t nvfp4_scale_bytes(std::int64_t rows, std::int64_t num_columns, bool swizzled) {
  const std::int64_t blocks = num_columns / kNvfp4BlockSize;
  return swizzled ? round_up(rows, 128) * round_up(blocks, 4) : rows * blocks;
}

void quantise_nvfp4(const Tensor& x, float global_scale, bool swizzled,
                    std::span<std::uint8_t> packed, std::span<std::uint8_t> scales) {
  require_activation(x.dtype(), "x");
  require_rank(x, 2, "x");
  check_scale(global_scale, "output_scale");
  const std::int64_t num_columns = x.dim(1);
  check_sizes(x.dim(0), num_columns, swizzled, packed.size(), scales.size());
  for_each_chunk(x.dim(0), kNvfp4RowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::vector<float> values = load_row(x, row * num_columns, num_columns);
      for (std::int64_t first = 0; first < num_columns; first += kNvfp4BlockSize) {
        const std::span<const float> block(values.data() + first, kNvfp4BlockSize);
        scales[scale_offset(row, first / kNvfp4BlockSize, num_columns, swizzled)] =
            quantise_block(block, global_scale, packed.data() + (row * num_columns + first) / 2);
      }
    }
  });
}

Tensor dequantise_nvfp4(std::span<const std::uint8_t> packed, std::span<const std::uint8_t> scales,
                        float global_scale, bool swizzled, std::int64_t rows,
                        std::int64_t num_columns) {
  check_scale(global_scale, "output_scale");
  check_sizes(rows, num_columns, swizzled, packed.size(), scales.size());
  Tensor x(Dtype::kF32, {rows, num_columns});
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < num_columns; ++column) {
      const std::int64_t index = row * num_columns + column;
      const int pair = packed[static_cast<std::size_t>(index / 2)];
      const auto code = static_cast<std::uint8_t>(column % 2 == 0 ? pair & 0xF : pair >> 4);
      const std::size_t at = scale_offset(row, column / kNvfp4BlockSize, num_columns, swizzled);
      const float scale = e4m3_value(scales[at]);
      x.data<float>()[index] = e2m1_value(code) * scale / global_scale;
    }
  }
  return x;
}

}  // namespace attnbench
