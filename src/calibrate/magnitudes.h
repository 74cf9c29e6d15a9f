// How often each magnitude occurs in a tensor: what percentiles, saturation and the search for a
// scale are computed from, in memory that does not grow with the number of elements.
//
// Scales have no sign, so neither have magnitudes; only the signed maximum is kept beside them, for
// amax as one vLLM kernel takes it (AmaxKind::kSigned).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace attnbench {

/// Elements whose magnitudes |x| agree in their first 11 bits.
struct MagnitudeBin {
  float value = 0;  // the largest of them
  std::int64_t count = 0;
};

/// Magnitudes are told apart by 11 significant bits, which is all of them for every type of 16 bits
/// or fewer; those that agree count as the largest of them. Adding is a matter of integers and
/// maxima, so that the order of the elements and the number of threads change nothing.
class Magnitudes {
 public:
  /// NaN and infinities are only counted.
  void add(std::span<const float> values);
  /// Elements of a type of 16 bits: by counting its 65536 patterns.
  void add(Dtype dtype, std::span<const std::uint16_t> patterns);
  /// The same of elements that were counted: of each pattern [65536].
  void add_counts(Dtype dtype, std::span<const std::int64_t> counts);
  void add(const Magnitudes& other);

  std::int64_t num_elements() const { return num_elements_; }
  std::int64_t num_not_finite() const { return num_not_finite_; }
  std::int64_t num_zeros() const { return num_zeros_; }
  /// Largest |x|, and largest x; of finite elements, 0 and the least float without any.
  float amax() const { return amax_; }
  float signed_max() const { return signed_max_; }
  /// Ascending, of elements that are not 0.
  const std::vector<MagnitudeBin>& bins() const { return bins_; }

  /// The least magnitude that at least `percent` % of the elements do not exceed; (0, 100].
  float percentile(double percent) const;

 private:
  void merge(const std::vector<MagnitudeBin>& more);

  std::vector<MagnitudeBin> bins_;
  std::int64_t num_elements_ = 0;
  std::int64_t num_not_finite_ = 0;
  std::int64_t num_zeros_ = 0;
  float amax_ = 0;
  float signed_max_ = 0;
  bool has_maximum_ = false;
};

/// Which elements of a tensor share a scale.
enum class ScaleGroups { kTensor, kHead, kChannel };

/// One for each group of `tensor`: 1, or for [T, h, D] h or h * D of them.
std::int64_t num_groups(const Tensor& tensor, ScaleGroups groups);

/// Adds the elements of `tensor` to `magnitudes` [num_groups].
void add_magnitudes(const Tensor& tensor, ScaleGroups groups, int num_threads,
                    std::vector<Magnitudes>& magnitudes);

}  // namespace attnbench
