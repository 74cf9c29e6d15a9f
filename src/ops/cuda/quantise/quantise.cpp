// Launches of kernels/quantise/fp8.cuh, nvfp4.cuh and rotate_heads.cuh. Codes have half the bytes
// of their source or less: a store of 16 bytes needs several loads, and how many a thread has is
// chosen by that.
#include <algorithm>

#include "core/error.h"
#include "ops/cuda/operations.h"
#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {
namespace {

/// Where rows are read, and where their codes go.
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

/// Adds what quantise_rows() is configured by to `spec`, for rows of `num_heads` times `head_codes`
/// codes, and gives the shape for `num_rows`. `vector` elements are loaded at once; addresses of
/// codes are multiples of `code_bytes`.
LaunchShape deal_out_codes(KernelSpec& spec, std::int64_t num_rows, int num_heads,
                           std::int64_t head_codes, int vector, int code_bytes) {
  // Measured on one NVIDIA H200, 2026-11-21, 131072 x 16 heads of 72: 3949 GB/s; one item 3738,
  // four 3973 (but latent queries 1 % slower); stores of 8 bytes below 3100.
  constexpr int kThreads = 128;
  constexpr int kItems = 2;
  int codes = 16;
  while (codes > vector && (codes > code_bytes || head_codes % codes != 0)) codes /= 2;
  const std::int64_t head_pieces = head_codes / codes;
  const std::int64_t row_pieces = num_heads * head_pieces;
  spec.constants.emplace_back("int kVector", std::to_string(vector));
  spec.constants.emplace_back("int kCodes", std::to_string(codes));
  spec.constants.emplace_back("int kItems", std::to_string(kItems));
  spec.constants.emplace_back("int kHeadPieces", std::to_string(head_pieces));
  spec.constants.emplace_back("int kRowPieces", std::to_string(row_pieces));
  spec.constants.emplace_back("int kThreads", std::to_string(kThreads));
  spec.name += " of " + std::to_string(num_heads) + " x " + std::to_string(head_codes);
  LaunchShape shape;
  shape.grid_x = ceil_quotient(num_rows * row_pieces, kThreads * kItems);
  shape.threads = kThreads;
  return shape;
}

}  // namespace

void quantise_fp8(Launcher& launcher, const attn::StaticQuantiseParams& p) {
  const VectorSide codes = code_rows(p.codes, p.code_row_stride);
  const int vector = widest_vector(16 / size_of_element(p.source_element), {p.num_columns},
                                   {source_rows(p), codes});
  KernelSpec spec;
  spec.source = "quantise/fp8.cuh";
  spec.function = "attn::quantise_fp8";
  spec.constants = {{"attn::Element kSource", spec_name(p.source_element)}};
  spec.name = "quantise_fp8 " + suffix(p.source_element, vector);
  const LaunchShape shape =
      deal_out_codes(spec, p.num_rows, 1, p.num_columns, vector, codes.alignment.common_bytes());
  launch(launcher, spec, shape, p);
}

void quantise_fp8_groups(Launcher& launcher, const attn::GroupQuantiseParams& p) {
  if (p.group_size != 128 && p.group_size != 64) {
    fail(ErrorKind::kUnsupported, "quantise_fp8_groups on CUDA expects groups of 64 or 128, got {}",
         p.group_size);
  }
  const int vector = widest_vector(16 / size_of_element(p.source_element), {}, {source_rows(p)});
  const int store_bytes = widest_vector(16, {}, {code_rows(p.codes, p.code_row_stride)});
  launch(launcher,
         simple_spec("quantise/fp8.cuh", "quantise_fp8_groups",
                     {{"attn::Element kSource", spec_name(p.source_element)},
                      {"int kVector", std::to_string(vector)},
                      {"int kStoreBytes", std::to_string(store_bytes)},
                      {"int kGroup", std::to_string(p.group_size)}},
                     "quantise_fp8_groups of " + std::to_string(p.group_size) + " " +
                         suffix(p.source_element, vector)),
         simple_shape(p.num_rows * (p.num_columns / attn::kGroupPiece)), p);
}

void quantise_nvfp4(Launcher& launcher, const attn::Nvfp4QuantiseParams& p) {
  const int vector = widest_vector(16 / size_of_element(p.source_element), {}, {source_rows(p)});
  const int store_bytes = widest_vector(8, {}, {code_rows(p.packed, p.packed_row_stride)});
  launch(launcher,
         simple_spec("quantise/nvfp4.cuh", "quantise_nvfp4",
                     {{"attn::Element kSource", spec_name(p.source_element)},
                      {"int kVector", std::to_string(vector)},
                      {"int kStoreBytes", std::to_string(store_bytes)},
                      {"int kRowBlocks", std::to_string(p.num_columns / attn::kNvfp4Block)}},
                     "quantise_nvfp4 " + suffix(p.source_element, vector)),
         simple_shape(p.num_rows * (p.num_columns / attn::kNvfp4Block)), p);
}

void quantise_pad_fp8(Launcher& launcher, const attn::PadQuantiseParams& p) {
  VectorSide source{p.source_element, {}};
  source.alignment.pointer(p.source)
      .stride(p.source_token_stride, p.source_element)
      .stride(p.source_head_stride, p.source_element);
  const VectorSide codes = code_rows(p.codes, p.padded_head_size);
  const int vector = widest_vector(16 / size_of_element(p.source_element),
                                   {p.head_size, p.padded_head_size}, {source, codes});
  KernelSpec spec;
  spec.source = "quantise/fp8.cuh";
  spec.function = "attn::quantise_pad_fp8";
  spec.constants = {{"attn::Element kSource", spec_name(p.source_element)}};
  spec.name = "quantise_pad_fp8 " + suffix(p.source_element, vector);
  const LaunchShape shape = deal_out_codes(spec, p.num_tokens, p.num_heads, p.padded_head_size,
                                           vector, codes.alignment.common_bytes());
  launch(launcher, spec, shape, p);
}

/// A thread has 8 columns of a head, or more where a warp would not be enough for it.
void rotate_heads(Launcher& launcher, const attn::RotateHeadsParams& params) {
  const attn::Element element = params.element;
  const int lanes = std::clamp(params.head_size / 8, 1, 32);
  const int bytes = Alignment()
                        .pointer(params.source)
                        .pointer(params.output)
                        .stride(params.source_token_stride, element)
                        .stride(params.source_head_stride, element)
                        .stride(params.output_token_stride, element)
                        .stride(params.output_head_stride, element)
                        .common_bytes();
  const int load = bytes >= 16 ? 16 / size_of_element(element) : 1;
  launch(launcher,
         simple_spec("quantise/rotate_heads.cuh", "rotate_heads",
                     {{"attn::Element kElement", spec_name(element)},
                      {"int kWidth", std::to_string(params.head_size)},
                      {"int kVector", std::to_string(params.head_size / lanes)},
                      {"int kLanes", std::to_string(lanes)},
                      {"int kLoad", std::to_string(load)},
                      {"bool kInverse", spec_flag(params.inverse != 0)}},
                     std::string("rotate_heads ") + (params.inverse != 0 ? "back " : "") +
                         short_name(element) + " d" + std::to_string(params.head_size)),
         simple_shape(params.num_tokens * params.num_heads * lanes), params);
}

}  // namespace attnbench::cuda
