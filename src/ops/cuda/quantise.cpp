// Launches of kernels/quantise/fp8.cuh and nvfp4.cuh.
#include <algorithm>

#include "core/error.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {
namespace {

template <typename Params>
VectorSide source_rows(const Params& p) {
  VectorSide side{p.source_element, {}};
  side.alignment.pointer(p.source).stride(p.source_row_stride, p.source_element);
  return side;
}

VectorSide code_rows(const void* codes, std::int64_t stride_bytes) {
  VectorSide side{attn::Element::kU8, {}};
  side.alignment.pointer(codes).bytes(stride_bytes);
  return side;
}

std::string suffix(attn::Element source, int vector) {
  return short_name(source) + " x" + std::to_string(vector);
}

}  // namespace

void quantise_fp8(Launcher& launcher, const attn::StaticQuantiseParams& p) {
  const int vector = widest_vector(16 / size_of_element(p.source_element), {p.num_columns},
                                   {source_rows(p), code_rows(p.codes, p.code_row_stride)});
  launch(launcher,
         simple_spec("quantise/fp8.cuh", "quantise_fp8",
                     {{"attn::Element kSource", spec_name(p.source_element)},
                      {"int kVector", std::to_string(vector)}},
                     "quantise_fp8 " + suffix(p.source_element, vector)),
         simple_shape(p.num_rows * (p.num_columns / vector)), p);
}

void quantise_fp8_groups(Launcher& launcher, const attn::GroupQuantiseParams& p) {
  if (p.group_size != 128 && p.group_size != 64) {
    fail(ErrorKind::kUnsupported, "quantise_fp8_groups on CUDA expects groups of 64 or 128, got {}",
         p.group_size);
  }
  const int vector = widest_vector(16 / size_of_element(p.source_element), {},
                                   {source_rows(p), code_rows(p.codes, p.code_row_stride)});
  launch(launcher,
         simple_spec("quantise/fp8.cuh", "quantise_fp8_groups",
                     {{"attn::Element kSource", spec_name(p.source_element)},
                      {"int kVector", std::to_string(vector)},
                      {"int kGroup", std::to_string(p.group_size)}},
                     "quantise_fp8_groups of " + std::to_string(p.group_size) + " " +
                         suffix(p.source_element, vector)),
         simple_shape(p.num_rows * (p.num_columns / 8)), p);
}

void quantise_nvfp4(Launcher& launcher, const attn::Nvfp4QuantiseParams& p) {
  const int vector = widest_vector(16 / size_of_element(p.source_element), {}, {source_rows(p)});
  const int store_bytes = widest_vector(8, {}, {code_rows(p.packed, p.packed_row_stride)});
  launch(launcher,
         simple_spec("quantise/nvfp4.cuh", "quantise_nvfp4",
                     {{"attn::Element kSource", spec_name(p.source_element)},
                      {"int kVector", std::to_string(vector)},
                      {"int kStoreBytes", std::to_string(store_bytes)}},
                     "quantise_nvfp4 " + suffix(p.source_element, vector)),
         simple_shape(p.num_rows * (p.num_columns / attn::kNvfp4Block)), p);
}

void quantise_pad_fp8(Launcher& launcher, const attn::PadQuantiseParams& p) {
  VectorSide source{p.source_element, {}};
  source.alignment.pointer(p.source)
      .stride(p.source_token_stride, p.source_element)
      .stride(p.source_head_stride, p.source_element);
  const int vector =
      widest_vector(16 / size_of_element(p.source_element), {p.head_size, p.padded_head_size},
                    {source, code_rows(p.codes, p.padded_head_size)});
  launch(launcher,
         simple_spec("quantise/fp8.cuh", "quantise_pad_fp8",
                     {{"attn::Element kSource", spec_name(p.source_element)},
                      {"int kVector", std::to_string(vector)}},
                     "quantise_pad_fp8 " + suffix(p.source_element, vector)),
         simple_shape(p.num_tokens * p.num_heads * (p.padded_head_size / vector)), p);
}

}  // namespace attnbench::cuda
