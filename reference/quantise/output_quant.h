// Quantisation of the attention output to fp8: which scheme the arguments select, one static scale,
// or a scale per group of columns in one of three layouts (semantics §9.1 to §9.3).
//
// The judge quantises the float64 reference output by these and compares codes and scales of a
// backend with the result. T rows, K = N * V columns, G groups of a row.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/problem/problem.h"
#include "core/tensor.h"

namespace attnbench {

/// What a caller hands over beside the attention output.
struct OutputQuantArguments {
  bool has_output_scale = false;
  std::optional<std::array<std::int64_t, 2>> output_block_scale;  // logical shape [T, G]
  Dtype output_dtype = Dtype::kBF16;
  std::int64_t output_dim = 0;  // N * V
};

/// The table of §9.1. E-CONFIG for a group size other than 128 and 64, for block fp8 with an
/// output_scale, and for MXFP4; E-DTYPE for an output type that fits no row.
OutputQuantType detect_output_quant(const OutputQuantArguments& arguments);

/// "kFp8StaticTensorSym", "kFp8Dynamic128Sym", ...; "none".
std::string_view output_quant_key(OutputQuantType type);

/// codes[t, c] = rn_e4m3(x * (1 / scale)) for x [T, K]; codes [>= T, K], later rows are not
/// written. Returns how many elements saturated. E-VALUE for a bad scale.
std::int64_t quantise_fp8_static(const Tensor& x, float scale, std::span<std::uint8_t> codes);

enum class ScaleLayout { kRowMajor, kColumnMajor, kTmaAligned };

/// Where the scale of (row, group) lies: row * row_stride + group * group_stride.
struct ScaleStrides {
  std::int64_t row = 0;
  std::int64_t group = 0;
  std::int64_t size = 0;  // elements of the whole buffer
};
/// [rows, groups] with strides (groups, 1), (1, rows), or (1, rows rounded up to 4).
ScaleStrides scale_strides(ScaleLayout layout, std::int64_t rows, std::int64_t groups);

struct GroupFp8Rule {
  std::optional<int> quant_group_size;  // must be given
  int group_size = 128;                 // of the key; 128 or 64
  bool ue8m0 = false;
  ScaleLayout layout = ScaleLayout::kRowMajor;
  std::int64_t scale_rows = 0;  // rows of the scale buffer, >= T
};

/// Per row and group of x [T, K]: a = max(1e-10, max|x|), s = a / 448 (rounded up to a power of two
/// with ue8m0), code = rn_e4m3(x / s). codes [>= T, K] and scales (scale_strides(...).size f32):
/// rows from T on are not written. Returns how many elements saturated.
/// E-CONFIG when quant_group_size is missing or differs from group_size, or that is not 128 or 64;
/// E-SHAPE when it does not divide K or a buffer is too small.
std::int64_t quantise_fp8_groups(const Tensor& x, const GroupFp8Rule& rule,
                                 std::span<std::uint8_t> codes, std::span<float> scales);

}  // namespace attnbench
