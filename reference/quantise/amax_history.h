// Dynamic fp8 scales of the multimodal encoder: the largest values of the last 16 calls (semantics
// §10.6). The rings are the state of one layer between calls; whoever calls keeps one AmaxHistory
// for each layer and updates it once per forward, before quantising.
#pragma once

#include <array>
#include <vector>

#include "core/problem/problem.h"
#include "reference/quantise/strided_tensor.h"

namespace attnbench {

inline constexpr int kAmaxHistoryLength = 16;

/// max x or max |x| over all elements; 0 for an empty tensor. NaN anywhere gives NaN, as in
/// PyTorch's amax.
float tensor_amax(const StridedTensor& x, AmaxKind kind);

/// The largest values of the last `length` calls of one tensor; zeros before the first.
class AmaxRing {
 public:
  explicit AmaxRing(int length = kAmaxHistoryLength);
  void record(float amax);
  /// At least 2^-126; NaN when any of them is.
  float largest() const;

 private:
  std::vector<float> values_;
  std::size_t position_ = 0;
};

/// The rings of Q, K and V of one layer with their common position.
class AmaxHistory {
 public:
  struct Update {
    bool wrapped = false;     // calls 16, 32, ...
    bool first_wrap = false;  // call 16: the scales are worth saving
  };

  /// Records one call's amax of Q, K and V and makes scale = max(largest of 16, 2^-126) / 448 from
  /// them. The new scales hold for the tensors of this very call.
  Update update(const std::array<float, 3>& amax);

  /// Of Q, K and V; 1.0 before the first call. May be subnormal.
  const std::array<float, 3>& scales() const { return scales_; }
  /// Where the next call will record, 0..15.
  int position() const { return position_; }

 private:
  std::array<AmaxRing, 3> rings_;
  std::array<float, 3> scales_{1.0f, 1.0f, 1.0f};
  int position_ = 0;
  bool has_wrapped_ = false;
};

}  // namespace attnbench
