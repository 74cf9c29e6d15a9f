// Only shapes are worked out here; the codes come from the reference, which shares no code with the
// kernels that it judges.
#include "backends/output_quant.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "core/error.h"
#include "metadata/int_math.h"
#include "reference/quantise/nvfp4.h"
#include "reference/quantise/output_quant.h"

namespace attnbench {
namespace {

constexpr int kNvfp4Block = 16;

std::int64_t round_up_to(std::int64_t value, std::int64_t multiple) {
  return ceil_div(value, multiple) * multiple;
}

bool is_fp8_group(OutputQuantType type) {
  return type == OutputQuantType::kFp8Group128 || type == OutputQuantType::kFp8Group64;
}

std::span<std::uint8_t> bytes_of(Tensor& tensor) {
  return {reinterpret_cast<std::uint8_t*>(tensor.bytes()), tensor.size_bytes()};
}

/// [T, N, V] as [T, N * V].
Tensor as_rows(const Tensor& output) {
  Tensor rows(output.dtype(), {output.dim(0), output.dim(1) * output.dim(2)});
  if (!rows.empty()) std::memcpy(rows.bytes(), output.bytes(), rows.size_bytes());
  return rows;
}

ScaleLayout scale_layout(const OutputQuantSpec& spec) {
  if (spec.tma_aligned) return ScaleLayout::kTmaAligned;
  return spec.column_major ? ScaleLayout::kColumnMajor : ScaleLayout::kRowMajor;
}

}  // namespace

int output_quant_group(OutputQuantType type) {
  switch (type) {
    case OutputQuantType::kFp8Group128:
      return 128;
    case OutputQuantType::kFp8Group64:
      return 64;
    case OutputQuantType::kNvfp4:
      return kNvfp4Block;
    case OutputQuantType::kNone:
    case OutputQuantType::kFp8Static:
      break;
  }
  fail(ErrorKind::kInternal, "output_quant {} has no groups", to_string(type));
}

OutputQuantLayout output_quant_layout(const Problem& problem) {
  const OutputQuantSpec& spec = problem.output_quant;
  const std::int64_t tokens = problem.num_tokens();
  const std::int64_t heads = problem.attention.num_heads;
  const std::int64_t width = problem.attention.v_head_size;
  OutputQuantLayout layout;
  layout.code_shape = {tokens, heads, width};
  layout.scale_shape = {1};
  if (is_fp8_group(spec.type)) {
    const std::int64_t groups = heads * width / output_quant_group(spec.type);
    if (spec.tma_aligned) {
      layout.scale_shape = {groups, round_up_to(tokens, 4)};
    } else if (spec.column_major) {
      layout.scale_shape = {groups, tokens};
    } else {
      layout.scale_shape = {tokens, groups};
    }
  } else if (spec.type == OutputQuantType::kNvfp4) {
    const std::int64_t blocks = heads * width / kNvfp4Block;
    layout.code_dtype = Dtype::kU8;
    layout.code_shape = {tokens, heads * width / 2};
    layout.scale_dtype = Dtype::kE4M3;
    layout.scale_shape = spec.swizzle
                             ? std::vector{round_up_to(tokens, 128), round_up_to(blocks, 4)}
                             : std::vector{tokens, blocks};
  }
  return layout;
}

OutputQuantTensors quantise_output(const Problem& problem, const Tensor& output) {
  const OutputQuantSpec& spec = problem.output_quant;
  const OutputQuantLayout layout = output_quant_layout(problem);
  const auto scale = static_cast<float>(spec.scale);
  OutputQuantTensors expected{Tensor(layout.code_dtype, layout.code_shape),
                              Tensor(layout.scale_dtype, layout.scale_shape)};
  // Scales of no row keep their poison; swizzled NVFP4 scales begin as zeros.
  const bool zeroed = spec.type == OutputQuantType::kNvfp4 && spec.swizzle;
  std::fill_n(expected.scales.bytes(), expected.scales.size_bytes(), std::byte(zeroed ? 0 : 0xFF));
  const Tensor rows = as_rows(output);
  switch (spec.type) {
    case OutputQuantType::kFp8Static:
      quantise_fp8_static(rows, scale, bytes_of(expected.codes));
      expected.scales.set(0, scale);
      break;
    case OutputQuantType::kFp8Group128:
    case OutputQuantType::kFp8Group64: {
      GroupFp8Rule rule;
      rule.group_size = output_quant_group(spec.type);
      rule.quant_group_size = rule.group_size;
      rule.ue8m0 = spec.ue8m0;
      rule.layout = scale_layout(spec);
      rule.scale_rows = rows.dim(0);
      quantise_fp8_groups(rows, rule, bytes_of(expected.codes),
                          {expected.scales.data<float>(),
                           static_cast<std::size_t>(expected.scales.num_elements())});
      break;
    }
    case OutputQuantType::kNvfp4:
      quantise_nvfp4(rows, scale, spec.swizzle, bytes_of(expected.codes),
                     bytes_of(expected.scales));
      break;
    case OutputQuantType::kNone:
      break;
  }
  return expected;
}

}  // namespace attnbench
