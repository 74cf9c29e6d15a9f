// One pass over the elements, line by line on several threads; parts are added in the order of
// lines, so that no figure depends on the number of threads.
#include "metrics/error_totals.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/system/parallel.h"

namespace attnbench {
namespace {

class Accumulator {
 public:
  Accumulator(const Lines& lines, const Tolerance& tolerance, Dtype actual_dtype, double atol)
      : lines_(lines), tolerance_(tolerance), dtype_(actual_dtype), atol_(atol) {}

  /// Of lines [begin, end).
  Totals run(std::int64_t begin, std::int64_t end) {
    for (std::int64_t line = begin; line < end; ++line) {
      lines_.load(line);
      LineSums sums;
      for (std::int64_t i = 0; i < lines_.length(); ++i) add({line, i}, sums);
      totals_.error2 += sums.error2;
      totals_.expected2 += sums.expected2;
      totals_.actual2 += sums.actual2;
      totals_.product += sums.product;
      totals_.abs_error += sums.abs_error;
    }
    return totals_;
  }

 private:
  struct LineSums {
    double error2 = 0, expected2 = 0, actual2 = 0, product = 0, abs_error = 0;
  };

  bool quantised() const { return tolerance_.e4m3_scale > 0; }

  /// e4m3 has no infinity: one is stored as the largest value.
  double storable(double expected) const {
    if (!quantised() || !std::isinf(expected)) return expected;
    return std::copysign(kE4m3Max * tolerance_.e4m3_scale, expected);
  }

  bool specials_match(double actual, double expected) const {
    if (std::isnan(actual) || std::isnan(expected))
      return std::isnan(actual) && std::isnan(expected);
    if (!std::isinf(actual)) return false;
    return actual == static_cast<double>(round_to(dtype_, static_cast<float>(expected)));
  }

  float e4m3_value(double value) const {
    const float inverse = 1.0f / static_cast<float>(tolerance_.e4m3_scale);
    return static_cast<float>(value) * inverse;
  }

  void add(const Place& place, LineSums& sums) {
    const double stored = lines_.actual(place.element);
    const double actual = quantised() ? stored * tolerance_.e4m3_scale : stored;
    const double expected = storable(lines_.expected(place));
    ++totals_.elements;
    totals_.nan += std::isnan(actual);
    totals_.inf += std::isinf(actual);
    if (!std::isfinite(actual) || !std::isfinite(expected)) {
      if (specials_match(actual, expected)) return;
      if (totals_.misplaced++ == 0) totals_.first_misplaced = place;
      ++totals_.outside;
      return;
    }
    const double error = std::abs(actual - expected);
    if (totals_.finite++ == 0 || error > totals_.max_abs) {
      totals_.max_abs = error;
      totals_.worst = place;
    }
    sums.abs_error += error;
    sums.error2 += error * error;
    sums.expected2 += expected * expected;
    sums.actual2 += actual * actual;
    sums.product += actual * expected;
    judge(place, stored, expected, error);
    add_emulated(place, expected);
  }

  void judge(const Place& place, double stored, double expected, double error) {
    const double limit = atol_ + tolerance_.rtol * std::abs(expected);
    double excess = error - limit;
    if (quantised()) {
      const int code = signed_e4m3_code(static_cast<float>(stored));
      const int steps = std::max({signed_e4m3_code(e4m3_value(expected - limit)) - code,
                                  code - signed_e4m3_code(e4m3_value(expected + limit)), 0});
      totals_.max_steps = std::max(totals_.max_steps, steps);
      excess = steps;
    }
    totals_.outside += excess > 0;
    if (excess > totals_.worst_excess) {
      totals_.worst_excess = excess;
      totals_.worst_outside = place;
    }
  }

  void add_emulated(const Place& place, double expected) {
    double emulated = lines_.emulated(place);
    if (quantised() && !std::isnan(emulated)) {
      emulated = round_to(Dtype::kE4M3, e4m3_value(emulated)) * tolerance_.e4m3_scale;
    }
    if (std::isfinite(emulated)) {
      totals_.max_emulated = std::max(totals_.max_emulated, std::abs(emulated - expected));
    }
  }

  Lines lines_;  // with a row of its own
  const Tolerance& tolerance_;
  Dtype dtype_;
  double atol_;
  Totals totals_;
};

void add(const Totals& part, Totals& totals) {
  if (totals.misplaced == 0) totals.first_misplaced = part.first_misplaced;
  if (part.finite > 0 && (totals.finite == 0 || part.max_abs > totals.max_abs)) {
    totals.max_abs = part.max_abs;
    totals.worst = part.worst;
  }
  if (part.worst_excess > totals.worst_excess) {
    totals.worst_excess = part.worst_excess;
    totals.worst_outside = part.worst_outside;
  }
  totals.error2 += part.error2;
  totals.expected2 += part.expected2;
  totals.actual2 += part.actual2;
  totals.product += part.product;
  totals.abs_error += part.abs_error;
  totals.elements += part.elements;
  totals.finite += part.finite;
  totals.outside += part.outside;
  totals.misplaced += part.misplaced;
  totals.nan += part.nan;
  totals.inf += part.inf;
  totals.max_steps = std::max(totals.max_steps, part.max_steps);
  totals.max_emulated = std::max(totals.max_emulated, part.max_emulated);
}

}  // namespace

int signed_e4m3_code(float value) {
  std::uint8_t code = 0;
  store_float(Dtype::kE4M3, &code, 0, value);
  return (code & 0x80) != 0 ? -(code & 0x7F) : (code & 0x7F);
}

Lines::Lines(const Comparison& comparison) : comparison_(comparison) {
  const Tensor& actual = *comparison.actual;
  const auto num_rows = static_cast<std::int64_t>(comparison.rows.size());
  const std::size_t rank = comparison.is_lse ? 2 : 3;
  if (actual.shape().size() != rank) {
    fail(ErrorKind::kShape, "{} must have {} dimensions, has {}", name(), rank,
         actual.shape().size());
  }
  token_axis_ = comparison.is_lse ? 1 : 0;
  count_ = comparison.is_lse ? actual.dim(0) : num_rows;
  length_ = comparison.is_lse ? num_rows : actual.dim(1) * actual.dim(2);
  check_size("expected", comparison.expected.size());
  if (!comparison.emulated.empty()) check_size("emulated", comparison.emulated.size());
  for (const std::int32_t row : comparison.rows) {
    if (row < 0 || row >= total_rows()) {
      fail(ErrorKind::kShape, "{} has {} rows, row {} is to be checked", name(), total_rows(), row);
    }
  }
  values_.resize(static_cast<std::size_t>(comparison.is_lse ? total_rows() : length_));
}

void Lines::load(std::int64_t line) {
  const Tensor& actual = *comparison_.actual;
  const auto size = static_cast<std::int64_t>(values_.size());
  const std::int64_t row =
      comparison_.is_lse ? line : comparison_.rows[static_cast<std::size_t>(line)];
  const std::size_t offset = static_cast<std::size_t>(row * size) * dtype_size(actual.dtype());
  load_floats(actual.dtype(), actual.bytes() + offset, size, values_.data());
}

std::vector<std::int64_t> Lines::index_of(const Place& place) const {
  if (comparison_.is_lse) {
    return {place.line, comparison_.rows[static_cast<std::size_t>(place.element)]};
  }
  const std::int64_t v_head_size = comparison_.actual->dim(2);
  return {comparison_.rows[static_cast<std::size_t>(place.line)], place.element / v_head_size,
          place.element % v_head_size};
}

void Lines::check_size(const char* what, std::size_t size) const {
  if (size != static_cast<std::size_t>(count_ * length_)) {
    fail(ErrorKind::kShape, "{} of {}: expected {} values, got {}", what, name(), count_ * length_,
         size);
  }
}

Totals accumulate(const Lines& lines, const Tolerance& tolerance, Dtype actual_dtype, double atol) {
  constexpr std::int64_t kPartElements = 1 << 20;
  const std::int64_t part_lines =
      std::max<std::int64_t>(1, kPartElements / std::max<std::int64_t>(1, lines.length()));
  std::vector<Totals> parts(
      static_cast<std::size_t>((lines.count() + part_lines - 1) / part_lines));
  for_each_chunk(lines.count(), part_lines, [&](std::int64_t begin, std::int64_t end) {
    parts[static_cast<std::size_t>(begin / part_lines)] =
        Accumulator(lines, tolerance, actual_dtype, atol).run(begin, end);
  });
  // Added in their order, so that the sums do not depend on the threads.
  Totals totals;
  for (const Totals& part : parts) add(part, totals);
  return totals;
}

}  // namespace attnbench
