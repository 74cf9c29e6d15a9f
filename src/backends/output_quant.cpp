#include "backends/output_quant.h"

#include "core/error.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

constexpr int kNvfp4Block = 16;

std::int64_t round_up_to(std::int64_t value, std::int64_t multiple) {
  return ceil_div(value, multiple) * multiple;
}

bool is_fp8_group(OutputQuantType type) {
  return type == OutputQuantType::kFp8Group128 || type == OutputQuantType::kFp8Group64;
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

}  // namespace attnbench
