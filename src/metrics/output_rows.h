// The rows of an output beside their reference, and what is wrong with one of them: its error in
// its own size, and its elements (semantics §14.2). The verdict on all of them is row_rule.h.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/numbers/dtype.h"
#include "metrics/row_rule.h"

namespace attnbench {

/// What sums in float32 lose may be exceeded by this factor, of an output and of an LSE.
inline constexpr double kLossFactor = 4;

/// By what factor an error is beyond its limit, above 1 = outside. Infinite for an error that is no
/// number, and for any error where nothing is allowed.
double excess_of(double error, double limit);

/// NaN in the same place, or an infinity of the same sign; one that `expected` becomes when it is
/// rounded to `dtype` counts.
bool special_values_match(Dtype dtype, double actual, double expected);

/// Errors: E-SHAPE naming `what`.
void expect_values(std::string_view what, std::size_t size, std::int64_t expected);
/// Errors: E-SHAPE unless `rows` ascend and are tokens of the batch, of which there are
/// `num_tokens`.
void expect_rows(std::span<const std::int32_t> rows, std::int64_t num_tokens,
                 const RowBatch& batch);

/// What has been found about an element, the worst of all first.
struct Offender {
  double excess = 0;  // of 1: by what factor it is beyond its limit
  std::int64_t element = 0;
  double actual = 0, expected = 0, limit = 0;
  int steps = 0;
};

/// One row of a head and the verdict on it.
struct JudgedRow {
  double error = 0;
  double limit = 0;
  std::int64_t matched = 0;         // elements inside
  std::optional<Offender> special;  // the first NaN or infinity out of place
  std::optional<Offender> element;  // the worst outside of its limit
  Offender furthest;                // of all that are finite, in units of the output
  bool outside() const { return !(error <= limit) || special || element; }
  double excess() const;
};

/// How codes of an output are read: values v of the output, codes of v / scale.
class E4m3Output {
 public:
  explicit E4m3Output(double scale) : scale_(scale) {}

  /// Of the values that are stored as `stored`, the least distance to `expected`.
  double least_error(double stored, double expected) const;
  /// Steps by which the code of `stored` is outside of those of [expected - limit, expected +
  /// limit].
  int steps_outside(double stored, double expected, double limit) const;
  /// e4m3 has no infinity: one is stored as the largest value.
  double storable(double expected) const;

 private:
  int code_of(double value) const;

  double scale_;
};

/// Loads rows of a head and measures them. Rows of heads are counted [rows, H].
class OutputRows {
 public:
  /// Borrows both. Errors: E-SHAPE when sizes do not fit each other.
  OutputRows(const RowComparison& comparison, const RowLimits& limits);

  std::int64_t num_heads() const { return num_heads_; }
  std::int64_t width() const { return width_; }
  std::int64_t count() const { return static_cast<std::int64_t>(c_.rows.size()) * num_heads_; }
  bool quantised() const { return limits_.e4m3_scale > 0; }

  /// Of the emulation, in the size of the row; its NaN and infinities say nothing of an error.
  double emulated_error(std::int64_t at) const;
  /// What float32 loses on the row, in its size; 0 where that is not known to be finite.
  double loss(std::int64_t at) const;
  /// `values` is scratch memory of the caller's.
  JudgedRow judge(std::int64_t at, double limit, std::vector<float>& values) const;

 private:
  Dtype dtype() const { return c_.actual->dtype(); }
  double scale() const { return quantised() ? limits_.e4m3_scale : 1; }
  double expected(std::int64_t at, std::int64_t element) const;
  /// 0 where the row has no size that is a number: then only an error of 0 is inside.
  double size(std::int64_t at) const;
  double relative(double square, std::int64_t at) const;
  double error_of(std::int64_t at, const std::vector<float>& values) const;
  /// NaN where either is not finite.
  double element_error(double stored, double expected) const;
  /// Stored values of a row of a head, [Dv].
  void load(std::int64_t at, std::vector<float>& values) const;
  void judge_element(std::int64_t at, std::int64_t i, double stored, double limit,
                     JudgedRow& row) const;

  const RowComparison& c_;
  const RowLimits& limits_;
  E4m3Output codes_;
  std::int64_t num_heads_ = 0;
  std::int64_t width_ = 0;
};

}  // namespace attnbench
