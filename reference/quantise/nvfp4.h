// NVFP4 quantisation of the attention output: e2m1 codes with an e4m3 scale for every 16 columns,
// stored in the tiles that tensor cores read or plainly row by row (semantics §9.4). The swizzled
// layout pads rows to 128 and scales to 4 columns; the bytes of that padding belong to nobody and
// are not compared. T rows, K = num_columns of the output, g the global scale of the whole tensor.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace attnbench {

inline constexpr int kNvfp4BlockSize = 16;

/// Byte of the scale of (row, block of 16 columns) in the swizzled buffer of K = num_columns.
std::int64_t nvfp4_swizzled_offset(std::int64_t row, std::int64_t block, std::int64_t num_columns);

/// Bytes of the scale buffer: rows rounded up to 128, blocks to 4, or exactly [rows, K/16].
std::int64_t nvfp4_scale_bytes(std::int64_t rows, std::int64_t num_columns, bool swizzled);

/// Per 16 columns of x [T, K]: sf = rn_e4m3(g * (max|x| / 6)), m = 0 if sf = 0 else 1 / (sf / g),
/// code = rn_e2m1(x * m), the even column in the low nibble. `packed` [>= T, K/2] and `scales`
/// (nvfp4_scale_bytes of >= T rows, zeroed by the caller): nothing else is written.
/// E-SHAPE when K is not a multiple of 16 or a buffer is too small, E-VALUE for a bad global_scale.
void quantise_nvfp4(const Tensor& x, float global_scale, bool swizzled,
                    std::span<std::uint8_t> packed, std::span<std::uint8_t> scales);

/// f32 [rows, K]: code * sf / g in this order, each operation rounded to f32.
Tensor dequantise_nvfp4(std::span<const std::uint8_t> packed, std::span<const std::uint8_t> scales,
                        float global_scale, bool swizzled, std::int64_t rows,
                        std::int64_t num_columns);

}  // namespace attnbench
