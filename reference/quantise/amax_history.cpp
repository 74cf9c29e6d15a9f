// NaN is sticky in every maximum here, other than in CUDA's fmaxf: PyTorch's amax, which defines
// this history, returns NaN, and a scale made from garbage must show.
#include "reference/quantise/amax_history.h"

#include <cmath>
#include <limits>

#include "reference/quantise/number_formats.h"

namespace attnbench {
namespace {

/// The larger one, or NaN if either is.
float nan_max(float a, float b) { return std::isnan(a) || a > b ? a : b; }

}  // namespace

float tensor_amax(const StridedTensor& x, AmaxKind kind) {
  bool is_empty = true;
  float largest = -std::numeric_limits<float>::infinity();
  for_each_row(x, [&](std::int64_t, const float* values, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      largest = nan_max(largest, kind == AmaxKind::kAbs ? std::fabs(values[i]) : values[i]);
      is_empty = false;
    }
  });
  return is_empty ? 0.0f : largest;
}

AmaxRing::AmaxRing(int length) : values_(static_cast<std::size_t>(length), 0.0f) {}

void AmaxRing::record(float amax) {
  values_[position_] = amax;
  position_ = (position_ + 1) % values_.size();
}

float AmaxRing::largest() const {
  float largest = std::numeric_limits<float>::min();  // 2^-126, the smallest normal
  for (const float amax : values_) largest = nan_max(largest, amax);
  return largest;
}

AmaxHistory::Update AmaxHistory::update(const std::array<float, 3>& amax) {
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    rings_[i].record(amax[i]);
    scales_[i] = rings_[i].largest() / kE4m3Max;
  }
  position_ = (position_ + 1) % kAmaxHistoryLength;
  Update result;
  result.wrapped = position_ == 0;
  result.first_wrap = result.wrapped && !has_wrapped_;
  has_wrapped_ = has_wrapped_ || result.wrapped;
  return result;
}

}  // namespace attnbench
