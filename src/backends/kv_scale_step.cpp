#include "backends/kv_scale_step.h"

#include <fmt/format.h>

#include <array>

#include "backends/repeated_copy.h"
#include "inputs/cache/kv_scales.h"

namespace attnbench {
namespace {

constexpr std::size_t kThree = 3 * sizeof(float);
constexpr std::array<const char*, 3> kNames{"q_scale", "k_scale", "v_scale"};

}  // namespace

KvScaleStep::KvScaleStep(Ops& ops, const ScaledRows& query, const ScaledRows& key,
                         const ScaledRows& value, int num_kv_heads)
    : ops_(ops),
      rows_{query, key, value},
      num_kv_heads_(num_kv_heads),
      amax_(ops.allocate(kThree, "amax")),
      scales_(ops.allocate(kThree, "kv_scales")),
      per_head_(ops.allocate(2 * static_cast<std::size_t>(num_kv_heads) * sizeof(float),
                             "k_scale and v_scale")) {}

double KvScaleStep::bytes() const {
  double total = 0;
  for (const ScaledRows& rows : rows_) {
    total += static_cast<double>(rows.num_tokens) * rows.num_heads * rows.head_size *
             static_cast<double>(dtype_size(static_cast<Dtype>(rows.element)));
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
  params.amax = amax_->as<float>() + index;
  ops_.amax(params);
}

void KvScaleStep::expand(int index, float* per_head) {
  ops_.copy(
      repeated_copy(attn::Element::kF32, scales_->as<float>() + index, per_head, num_kv_heads_));
}

void KvScaleStep::run() {
  for (int i = 0; i < 3; ++i) amax(rows_[i], i);
  ops_.calc_kv_scales({amax_->as<float>(),
                       scales_->as<float>(),
                       {kKvScaleRanges.query, kKvScaleRanges.key, kKvScaleRanges.value}});
  expand(1, per_head_->as<float>());
  expand(2, per_head_->as<float>() + num_kv_heads_);
}

void KvScaleStep::poison() {
  for (Buffer* buffer : {amax_.get(), scales_.get(), per_head_.get()}) ops_.poison(*buffer);
}

std::string KvScaleStep::defect(const Problem& problem) {
  std::array<float, 3> found{};
  ops_.download(found.data(), *scales_, kThree);
  const Tensor wanted = kv_scales_of(problem);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const float expected = wanted.at(static_cast<std::int64_t>(i));
    if (found[i] == expected) continue;
    return fmt::format("calc_kv_scales: {} is {}, expected {}", kNames[i], found[i], expected);
  }
  return "";
}

}  // namespace attnbench
