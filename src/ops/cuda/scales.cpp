// Launches of kernels/quantise/scales.cuh.
#include "ops/cuda/operations.h"
#include "ops/cuda/simple_launch.h"

namespace attnbench::cuda {
namespace {
constexpr const char* kSource = "quantise/scales.cuh";
}  // namespace

void amax(Launcher& launcher, const attn::AmaxParams& p) {
  constexpr int kItems = 8;  // loads of a thread: one atomic a warp must not be what is waited for
  launch(launcher, simple_spec(kSource, "start_amax", {}, "amax: start"), simple_shape(1), p);
  VectorSide source{p.element, {}};
  source.alignment.pointer(p.source)
      .stride(p.token_stride, p.element)
      .stride(p.head_stride, p.element);
  const int vector = widest_vector(16 / size_of_element(p.element), {p.head_size}, {source});
  const std::int64_t vectors = p.num_tokens * p.num_heads * (p.head_size / vector);
  launch(launcher,
         simple_spec(kSource, "amax",
                     {{"attn::Element kElement", spec_name(p.element)},
                      {"int kVector", std::to_string(vector)},
                      {"int kItems", std::to_string(kItems)}},
                     "amax " + short_name(p.element) + " x" + std::to_string(vector)),
         simple_shape(ceil_quotient(vectors, kItems)), p);
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
