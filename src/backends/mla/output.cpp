#include "backends/mla/output.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

using attn::i64;

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

}  // namespace

MlaOutputQuant::MlaOutputQuant(MlaWork& work) : work_(work) {
  const OutputQuantSpec& spec = work.problem.output_quant;
  if (spec.type == OutputQuantType::kNone) return;
  layout_ = output_quant_layout(work.problem);
  const i64 columns = work.sizes.heads * work.sizes.value;
  const i64 row_bytes = spec.type == OutputQuantType::kNvfp4 ? columns / 2 : columns;
  codes_ = work.memory.workspace(work.num_rows * row_bytes, "quantised output");
  scale_bytes_ =
      elements(layout_.scale_shape) * static_cast<std::int64_t>(dtype_size(layout_.scale_dtype));
  if (spec.type == OutputQuantType::kFp8Static) {
    add_static();
  } else if (spec.type == OutputQuantType::kNvfp4) {
    add_nvfp4();
  } else {
    add_groups();
  }
}

void MlaOutputQuant::add_static() {
  const i64 columns = work_.sizes.heads * work_.sizes.value;
  const auto scale = static_cast<float>(work_.problem.output_quant.scale);
  attn::StaticQuantiseParams quantise{};
  quantise.source_element = work_.element;
  quantise.source = work_.output;
  quantise.source_row_stride = quantise.code_row_stride = columns;
  quantise.codes = static_cast<unsigned char*>(codes_);
  quantise.scale = work_.memory.upload(std::vector<float>{scale}, "output scale");
  quantise.num_rows = work_.num_tokens;
  quantise.num_columns = columns;
  scales_ = const_cast<float*>(quantise.scale);
  work_.add_each("quantise_output", false, &Ops::quantise_fp8, std::vector{quantise});
}

void MlaOutputQuant::add_groups() {
  const OutputQuantSpec& spec = work_.problem.output_quant;
  const i64 columns = work_.sizes.heads * work_.sizes.value;
  scales_ = work_.memory.workspace(scale_bytes_, "output scales");
  attn::GroupQuantiseParams quantise{};
  quantise.source_element = work_.element;
  quantise.source = work_.output;
  quantise.source_row_stride = quantise.code_row_stride = columns;
  quantise.codes = static_cast<unsigned char*>(codes_);
  quantise.scales = static_cast<float*>(scales_);
  const bool by_column = spec.column_major || spec.tma_aligned;
  quantise.scale_row_stride = by_column ? 1 : layout_.scale_shape[1];
  quantise.scale_group_stride = by_column ? layout_.scale_shape[1] : 1;
  quantise.num_rows = work_.num_tokens;
  quantise.num_columns = columns;
  quantise.group_size = output_quant_group(spec.type);
  quantise.ue8m0 = spec.ue8m0 ? 1 : 0;
  work_.add_each("quantise_output", false, &Ops::quantise_fp8_groups, std::vector{quantise});
}

void MlaOutputQuant::add_nvfp4() {
  const OutputQuantSpec& spec = work_.problem.output_quant;
  const i64 columns = work_.sizes.heads * work_.sizes.value;
  scales_ = work_.memory.workspace(scale_bytes_, "output scales");
  if (spec.swizzle) add_zero_scales();
  const std::vector<float> global{static_cast<float>(spec.scale)};
  attn::Nvfp4QuantiseParams quantise{};
  quantise.source_element = work_.element;
  quantise.source = work_.output;
  quantise.source_row_stride = columns;
  quantise.packed = static_cast<unsigned char*>(codes_);
  quantise.packed_row_stride = columns / 2;
  quantise.scales = static_cast<unsigned char*>(scales_);
  quantise.swizzled = spec.swizzle ? 1 : 0;
  quantise.global_scale = work_.memory.upload(global, "global output scale");
  quantise.num_rows = work_.num_tokens;
  quantise.num_columns = columns;
  work_.add_each("quantise_output", false, &Ops::quantise_nvfp4, std::vector{quantise});
}

void MlaOutputQuant::add_zero_scales() {
  attn::ConcatParams zeros{};
  zeros.element = attn::Element::kU8;
  zeros.output = scales_;
  zeros.output_token_stride = layout_.scale_shape[1];
  zeros.num_tokens = layout_.scale_shape[0];
  zeros.num_heads = 1;
  zeros.second_size = checked_int32(layout_.scale_shape[1], "output scales of a row");
  work_.add_each("clear_output_scales", false, &Ops::concat, std::vector{zeros});
}

DeviceBuffers::Rows MlaOutputQuant::read_codes() const {
  return work_.memory.read_rows(codes_, layout_.code_dtype, layout_.code_shape);
}

Tensor MlaOutputQuant::read_scales() const {
  return work_.memory.read(scales_, layout_.scale_dtype, layout_.scale_shape);
}

}  // namespace attnbench
