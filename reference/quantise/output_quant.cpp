// Static scales multiply by a reciprocal, group scales divide: the definitions do, and codes are
// compared byte for byte. Elements lost to saturation are counted on the way.
#include "reference/quantise/output_quant.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "core/error.h"
#include "core/system/parallel.h"
#include "metadata/int_math.h"
#include "metadata/validation.h"
#include "reference/quantise/number_formats.h"

namespace attnbench {
namespace {

constexpr std::int64_t kElementsPerTask = 1 << 16;
constexpr std::int64_t kOutputRowsPerTask = 8;

OutputQuantType detect_group(const OutputQuantArguments& arguments) {
  const std::int64_t groups = (*arguments.output_block_scale)[1];
  for (const auto& [size, type] : {std::pair{std::int64_t{128}, OutputQuantType::kFp8Group128},
                                   std::pair{std::int64_t{64}, OutputQuantType::kFp8Group64}}) {
    if (groups > 0 && groups * size == arguments.output_dim) return type;
  }
  const std::int64_t group_size = groups > 0 ? arguments.output_dim / groups : 0;
  fail(ErrorKind::kConfig,
       "Unsupported group FP8 group_size={}; Only group_size 128 and 64 are supported. "
       "(output_dim {} over {} groups)",
       group_size, arguments.output_dim, groups);
}

[[noreturn]] void reject_dtype(const OutputQuantArguments& arguments, std::string_view expected) {
  fail(ErrorKind::kDtype, "quantised output must be {}, got {}", expected,
       dtype_name(arguments.output_dtype));
}

void check_group_rule(const GroupFp8Rule& rule, std::int64_t num_rows, std::int64_t num_columns) {
  if (rule.group_size != 128 && rule.group_size != 64) {
    fail(ErrorKind::kConfig,
         "Unsupported group FP8 group_size={}; Only group_size 128 and 64 are supported.",
         rule.group_size);
  }
  if (!rule.quant_group_size) fail(ErrorKind::kConfig, "quant_group_size must be given");
  if (*rule.quant_group_size != rule.group_size) {
    fail(ErrorKind::kConfig, "quant_group_size must be {}, got {}", rule.group_size,
         *rule.quant_group_size);
  }
  if (num_columns % rule.group_size != 0) {
    fail(ErrorKind::kShape, "output columns must be a multiple of {}, got {}", rule.group_size,
         num_columns);
  }
  if (rule.scale_rows < num_rows) {
    fail(ErrorKind::kShape, "block scales need at least {} rows, got {}", num_rows,
         rule.scale_rows);
  }
}

float group_scale(std::span<const float> group, bool ue8m0) {
  const float amax = std::max(1e-10f, max_abs(group));
  const float scale = amax / kE4m3Max;
  return ue8m0 ? ue8m0_scale(scale) : scale;
}

/// codes[i] = rn_e4m3(values[i] / scale); returns how many saturated.
std::int64_t divide_and_round(std::span<const float> values, float scale, std::uint8_t* codes) {
  std::vector<float> scaled(values.begin(), values.end());
  for (float& value : scaled) value /= scale;
  return round_row_to_e4m3(scaled, codes);
}

}  // namespace

OutputQuantType detect_output_quant(const OutputQuantArguments& arguments) {
  const bool is_e4m3 = arguments.output_dtype == Dtype::kE4M3;
  if (!arguments.output_block_scale) {
    if (!arguments.has_output_scale) return OutputQuantType::kNone;
    if (!is_e4m3) reject_dtype(arguments, "fp8_e4m3 with output_scale alone");
    return OutputQuantType::kFp8Static;
  }
  if (is_e4m3) {
    if (!arguments.has_output_scale) return detect_group(arguments);
    fail(ErrorKind::kConfig, "block FP8 output must not carry output_scale");
  }
  if (arguments.output_dtype != Dtype::kU8) {
    reject_dtype(arguments, "fp8_e4m3 or uint8 with output_block_scale");
  }
  if (arguments.has_output_scale) return OutputQuantType::kNvfp4;
  fail(ErrorKind::kConfig, "MXFP4 output (uint8 with output_block_scale and no output_scale)");
}

std::string_view output_quant_key(OutputQuantType type) {
  switch (type) {
    case OutputQuantType::kNone:
      return "none";
    case OutputQuantType::kFp8Static:
      return "kFp8StaticTensorSym";
    case OutputQuantType::kFp8Group128:
      return "kFp8Dynamic128Sym";
    case OutputQuantType::kFp8Group64:
      return "kFp8Dynamic64Sym";
    case OutputQuantType::kNvfp4:
      return "kNvfp4Dynamic";
  }
  return "none";
}

std::int64_t quantise_fp8_static(const Tensor& x, float scale, std::span<std::uint8_t> codes) {
  require_activation(x.dtype(), "x");
  check_scale(scale, "output_scale");
  require_size(codes.size(), x.num_elements(), "quantised output");
  const float factor = 1.0f / scale;
  std::atomic<std::int64_t> saturated{0};
  for_each_chunk(x.num_elements(), kElementsPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values = load_row(x, begin, end - begin);
    for (float& value : values) value = scaled_by(value, factor);
    saturated += round_row_to_e4m3(values, codes.data() + begin);
  });
  return saturated;
}

ScaleStrides scale_strides(ScaleLayout layout, std::int64_t rows, std::int64_t groups) {
  switch (layout) {
    case ScaleLayout::kRowMajor:
      return {groups, 1, rows * groups};
    case ScaleLayout::kColumnMajor:
      return {1, rows, rows * groups};
    case ScaleLayout::kTmaAligned: {
      // Why: TMA wants columns to start on 16 bytes, which is 4 f32.
      const std::int64_t column = round_up(rows, 4);
      return {1, column, column * groups};
    }
  }
  return {};
}

std::int64_t quantise_fp8_groups(const Tensor& x, const GroupFp8Rule& rule,
                                 std::span<std::uint8_t> codes, std::span<float> scales) {
  require_activation(x.dtype(), "x");
  require_rank(x, 2, "x");
  const std::int64_t num_rows = x.dim(0);
  const std::int64_t num_columns = x.dim(1);
  check_group_rule(rule, num_rows, num_columns);
  const std::int64_t num_groups = num_columns / rule.group_size;
  const ScaleStrides strides = scale_strides(rule.layout, rule.scale_rows, num_groups);
  require_size(codes.size(), num_rows * num_columns, "quantised output");
  require_size(scales.size(), strides.size, "block scales");

  const auto group_size = static_cast<std::size_t>(rule.group_size);
  std::atomic<std::int64_t> saturated{0};
  for_each_chunk(num_rows, kOutputRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t saturated_here = 0;
    for (std::int64_t row = begin; row < end; ++row) {
      const std::vector<float> values = load_row(x, row * num_columns, num_columns);
      for (std::int64_t group = 0; group < num_groups; ++group) {
        const auto first = static_cast<std::size_t>(group) * group_size;
        const std::span<const float> members(values.data() + first, group_size);
        const float scale = group_scale(members, rule.ue8m0);
        scales[static_cast<std::size_t>(row * strides.row + group * strides.group)] = scale;
        saturated_here += divide_and_round(
            members, scale, codes.data() + static_cast<std::size_t>(row * num_columns) + first);
      }
    }
    saturated += saturated_here;
  });
  return saturated;
}

}  // namespace attnbench
