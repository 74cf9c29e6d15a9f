// Scales are outputs of their own, so their layout is judged byte for byte like the codes.
#include "backends/op/output_steps.h"

#include "backends/op/quant_steps.h"
#include "inputs/cache/poison.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

using attn::i64;

void queue_static_output(OpPipeline& op) {
  const Problem& problem = op.problem();
  const AttentionSpec& a = problem.attention;
  attn::StaticQuantiseParams p{};
  p.source_element = element_of(a.dtype);
  p.source = op.operand("input");
  p.source_row_stride = p.code_row_stride = p.num_columns = i64{a.num_heads} * a.v_head_size;
  p.num_rows = problem.num_tokens();
  p.codes = static_cast<unsigned char*>(
      op.output("output", poisoned_tensor(Dtype::kE4M3, {p.num_rows, a.num_heads, a.v_head_size})));
  p.scale = op.scale_operand("output_scale", {static_cast<float>(problem.output_quant.scale)});
  p.num_saturated = static_cast<i64*>(zeroed_counter(op, "num_saturated"));
  queue_reset(op, p.num_saturated);
  op.add_step([&op, p] { op.ops().quantise_fp8(p); });
}

void queue_group_output(OpPipeline& op) {
  const Problem& problem = op.problem();
  const AttentionSpec& a = problem.attention;
  const OutputScaleLayout layout = output_scale_layout(problem);
  attn::GroupQuantiseParams p{};
  p.source_element = element_of(a.dtype);
  p.source = op.operand("input");
  p.source_row_stride = p.code_row_stride = p.num_columns = i64{a.num_heads} * a.v_head_size;
  p.num_rows = problem.num_tokens();
  p.group_size = problem.output_quant.type == OutputQuantType::kFp8Group128 ? 128 : 64;
  p.ue8m0 = problem.output_quant.ue8m0 ? 1 : 0;
  p.codes = static_cast<unsigned char*>(
      op.output("output", poisoned_tensor(Dtype::kE4M3, {p.num_rows, a.num_heads, a.v_head_size})));
  p.scales =
      static_cast<float*>(op.output("output_scales", poisoned_tensor(Dtype::kF32, layout.shape)));
  p.scale_row_stride = layout.row_stride;
  p.scale_group_stride = layout.group_stride;
  op.add_step([&op, p] { op.ops().quantise_fp8_groups(p); });
}

void queue_nvfp4_output(OpPipeline& op) {
  const Problem& problem = op.problem();
  const AttentionSpec& a = problem.attention;
  const bool swizzled = problem.output_quant.swizzle;
  attn::Nvfp4QuantiseParams p{};
  p.source_element = element_of(a.dtype);
  p.source = op.operand("input");
  p.source_row_stride = p.num_columns = i64{a.num_heads} * a.v_head_size;
  p.num_rows = problem.num_tokens();
  p.packed_row_stride = p.num_columns / 2;
  p.packed = static_cast<unsigned char*>(
      op.output("output", poisoned_tensor(Dtype::kU8, {p.num_rows, p.packed_row_stride})));
  // Swizzled: the padding is zero from the start (§9.4), what must be written is poison.
  const OutputScaleLayout layout = output_scale_layout(problem);
  Tensor scales =
      swizzled ? Tensor(Dtype::kE4M3, layout.shape) : poisoned_tensor(Dtype::kE4M3, layout.shape);
  for (i64 row = 0; swizzled && row < p.num_rows; ++row) {
    for (i64 block = 0; block < p.num_columns / attn::kNvfp4Block; ++block) {
      scales.data<std::uint8_t>()[attn::nvfp4_swizzled_offset(row, block,
                                                              ceil_div(p.num_columns, 64))] = 0xFF;
    }
  }
  p.scales = static_cast<unsigned char*>(op.output("output_scales", std::move(scales)));
  p.swizzled = swizzled ? 1 : 0;
  p.global_scale =
      op.scale_operand("output_scale", {static_cast<float>(problem.output_quant.scale)});
  op.add_step([&op, p] { op.ops().quantise_nvfp4(p); });
}

}  // namespace

OutputScaleLayout output_scale_layout(const Problem& problem) {
  const OutputQuantSpec& quant = problem.output_quant;
  const std::int64_t rows = problem.num_tokens();
  const std::int64_t columns =
      std::int64_t{problem.attention.num_heads} * problem.attention.v_head_size;
  if (quant.type == OutputQuantType::kNvfp4) {
    const std::int64_t blocks = columns / attn::kNvfp4Block;
    if (!quant.swizzle) return {{rows, blocks}, blocks, 1};
    return {{round_up(rows, 128), round_up(blocks, 4)}, 0, 0};
  }
  const std::int64_t groups = columns / (quant.type == OutputQuantType::kFp8Group128 ? 128 : 64);
  if (!quant.column_major && !quant.tma_aligned) return {{rows, groups}, groups, 1};
  const std::int64_t stride = quant.tma_aligned ? round_up(rows, 4) : rows;
  return {{groups, stride}, 1, stride};
}

void queue_output_quant(OpPipeline& op) {
  switch (op.problem().output_quant.type) {
    case OutputQuantType::kFp8Static:
      return queue_static_output(op);
    case OutputQuantType::kFp8Group128:
    case OutputQuantType::kFp8Group64:
      return queue_group_output(op);
    case OutputQuantType::kNvfp4:
      return queue_nvfp4_output(op);
    case OutputQuantType::kNone:
      break;
  }
  fail(ErrorKind::kInternal, "op output_quant without a quantisation");
}

}  // namespace attnbench
