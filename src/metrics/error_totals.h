// The sums behind a comparison: one pass over the elements of output (or LSE) and reference.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "metrics/compare.h"

namespace attnbench {

inline constexpr double kE4m3Max = 448;
/// Code of the nearest e4m3 value as a signed number: codes of one sign are ordered like their
/// values, so differences count steps.
int signed_e4m3_code(float value);

/// Position of an element: a line of checked values (a token row of all heads, or a head of an LSE)
/// and the place in it.
struct Place {
  std::int64_t line = 0;
  std::int64_t element = 0;
};

/// The tensors of a comparison as lines of equal length, in the order of `expected`.
class Lines {
 public:
  /// Errors: E-SHAPE when ranks, sizes or rows do not fit each other.
  explicit Lines(const Comparison& comparison);

  const char* name() const { return comparison_.is_lse ? "lse" : "output"; }
  std::int64_t count() const { return count_; }
  std::int64_t length() const { return length_; }
  std::int64_t total_rows() const { return comparison_.actual->dim(token_axis_); }

  /// Loads the actual values of a line for actual().
  void load(std::int64_t line);
  double actual(std::int64_t element) const {
    const auto index = static_cast<std::size_t>(element);
    return comparison_.is_lse ? values_[static_cast<std::size_t>(comparison_.rows[index])]
                              : values_[index];
  }
  double expected(const Place& place) const { return comparison_.expected[flat(place)]; }
  /// NaN without an emulation.
  double emulated(const Place& place) const {
    return comparison_.emulated.empty() ? std::numeric_limits<double>::quiet_NaN()
                                        : comparison_.emulated[flat(place)];
  }

  /// [token, head, element], or [head, token] of an LSE.
  std::vector<std::int64_t> index_of(const Place& place) const;

 private:
  std::size_t flat(const Place& place) const {
    return static_cast<std::size_t>(place.line * length_ + place.element);
  }
  void check_size(const char* what, std::size_t size) const;

  const Comparison& comparison_;
  int token_axis_ = 0;
  std::int64_t count_ = 0;
  std::int64_t length_ = 0;
  std::vector<float> values_;
};

/// Sums over a comparison. Lines are summed in double and added up in long double, so that 1 -
/// cosine keeps its digits over 1e8 elements.
struct Totals {
  long double error2 = 0, expected2 = 0, actual2 = 0, product = 0, abs_error = 0;
  std::int64_t elements = 0, finite = 0, outside = 0, misplaced = 0, nan = 0, inf = 0;
  int max_steps = 0;  // e4m3 only
  double max_abs = 0, max_emulated = 0;
  double worst_excess = -std::numeric_limits<double>::infinity();
  Place worst, worst_outside, first_misplaced;
};

/// On several threads. `atol` is absolute, also where the tolerance's is relative to the largest
/// magnitude.
Totals accumulate(const Lines& lines, const Tolerance& tolerance, Dtype actual_dtype, double atol);

}  // namespace attnbench
