// Launches of kernels/quantise/scales.cuh. amax has one result in any order, so atomics do not harm
// its repeatability; a first launch sets it to the least value.
#include <algorithm>

#include "ops/cuda/operations.h"
#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {
namespace {
constexpr const char* kSource = "quantise/scales.cuh";
}  // namespace

void amax(Launcher& launcher, const attn::AmaxParams& p) {
  // Measured on one NVIDIA H200, 2026-11-21, 131072 x 16 heads of 80: 3716 GB/s; 8 CTAs and four
  // items 3638, 4 CTAs 3151. One CTA for each tile: 3203, held up by its atomics.
  constexpr int kThreads = 256;
  constexpr int kItems = 2;
  constexpr int kCtasOfSm = 16;
  launch(launcher, simple_spec(kSource, "start_amax", {}, "amax: start"), simple_shape(1), p);
  VectorSide source{p.element, {}};
  source.alignment.pointer(p.source)
      .stride(p.token_stride, p.element)
      .stride(p.head_stride, p.element);
  const int vector = widest_vector(16 / size_of_element(p.element), {p.head_size}, {source});
  const std::int64_t head_pieces = p.head_size / vector;
  const std::int64_t row_pieces = p.num_heads * head_pieces;
  KernelSpec spec;
  spec.source = kSource;
  spec.function = "attn::amax";
  spec.constants = {{"attn::Element kElement", spec_name(p.element)},
                    {"int kVector", std::to_string(vector)},
                    {"int kItems", std::to_string(kItems)},
                    {"int kHeadPieces", std::to_string(head_pieces)},
                    {"int kRowPieces", std::to_string(row_pieces)},
                    {"bool kSigned", spec_flag(p.is_signed != 0)},
                    {"int kThreads", std::to_string(kThreads)}};
  spec.name = "amax " + short_name(p.element) + " x" + std::to_string(vector) + " of " +
              std::to_string(p.num_heads) + " x " + std::to_string(p.head_size);
  LaunchShape shape;
  shape.grid_x = std::min<std::int64_t>(ceil_quotient(p.num_tokens * row_pieces, kThreads * kItems),
                                        std::int64_t{launcher.target().num_sms} * kCtasOfSm);
  shape.threads = kThreads;
  launch(launcher, spec, shape, p);
}

void update_amax_history(Launcher& launcher, const attn::AmaxHistoryParams& p) {
  launch(launcher, simple_spec(kSource, "update_amax_history", {}, "update_amax_history"),
         simple_shape(p.num_tensors), p);
}

void calc_kv_scales(Launcher& launcher, const attn::KvScaleParams& p) {
  launch(launcher, simple_spec(kSource, "calc_kv_scales", {}, "calc_kv_scales"), simple_shape(1),
         p);
}

}  // namespace attnbench::cuda
