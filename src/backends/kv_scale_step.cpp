// Three reductions, one small kernel that makes the scales, two copies that spread them over the
// heads. Nothing goes through the host, so the step can be captured in a CUDA graph as an engine
// would do it.
#include "backends/kv_scale_step.h"

#include <fmt/format.h>

#include <array>

#include "backends/kernel_params.h"

namespace attnbench {
namespace {

constexpr std::array<const char*, 3> kScaleNames{"q_scale", "k_scale", "v_scale"};

}  // namespace

KvScaleStep::KvScaleStep(DeviceBuffers& memory, const KvScaleConstants& constants,
                         const ScaledRows& query, const ScaledRows& key, const ScaledRows& value,
                         int num_kv_heads)
    : memory_(memory),
      constants_(constants),
      rows_{query, key, value},
      num_kv_heads_(num_kv_heads),
      amax_(memory.workspace_of<float>(3, "amax")),
      scales_(memory.workspace_of<float>(3, "kv_scales")),
      per_head_(memory.workspace_of<float>(2 * num_kv_heads, "k_scale and v_scale")) {}

double KvScaleStep::bytes() const {
  double total = 0;
  for (const ScaledRows& rows : rows_) {
    total += static_cast<double>(rows.num_tokens) * rows.num_heads * rows.head_size *
             static_cast<double>(element_size(rows.element));
  }
  return total;
}

void KvScaleStep::amax(const ScaledRows& rows, int index) {
  attn::AmaxParams params{};
  params.element = rows.element;
  params.source = rows.data;
  params.head_stride = rows.head_size;
  params.token_stride = std::int64_t{rows.num_heads} * rows.head_size;
  params.num_tokens = rows.num_tokens;
  params.num_heads = rows.num_heads;
  params.head_size = rows.head_size;
  params.amax = amax_ + index;
  memory_.ops().amax(params);
}

void KvScaleStep::expand(int index, float* per_head) {
  memory_.ops().copy(repeated_copy(attn::Element::kF32, scales_ + index, per_head, num_kv_heads_));
}

void KvScaleStep::run() {
  for (int i = 0; i < 3; ++i) amax(rows_[i], i);
  memory_.ops().calc_kv_scales(
      {amax_, scales_, {constants_.query, constants_.key, constants_.value}});
  expand(1, per_head_);
  expand(2, per_head_ + num_kv_heads_);
}

/// Compared exactly: both sides divide the same largest value by the same constant, so any
/// difference is an error of the step and no rounding.
std::string KvScaleStep::defect(const Problem& problem) {
  const Tensor found = memory_.read(scales_, Dtype::kF32, {3});
  const Tensor wanted = kv_scales_of(problem);
  for (std::int64_t i = 0; i < found.num_elements(); ++i) {
    if (found.at(i) == wanted.at(i)) continue;
    return fmt::format("calc_kv_scales: {} is {}, expected {}",
                       kScaleNames[static_cast<std::size_t>(i)], found.at(i), wanted.at(i));
  }
  return "";
}

}  // namespace attnbench
