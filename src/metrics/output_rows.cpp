// Numbers of single elements first, then those of a row.
#include "metrics/output_rows.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "metrics/error_totals.h"

namespace attnbench {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

/// Distance between neighbouring values of a type around |value|, subnormal ones included.
double unit_in_last_place(Dtype dtype, double value) {
  struct Format {
    int mantissa_bits = 0;
    int least_exponent = 0;
  };
  const auto format = [&]() -> Format {
    switch (dtype) {
      case Dtype::kF16:
        return {10, -14};
      case Dtype::kBF16:
        return {7, -126};
      default:
        return {23, -126};
    }
  }();
  int exponent = format.least_exponent;
  if (value != 0 && std::isfinite(value)) {
    exponent = std::max(exponent, std::ilogb(std::abs(value)));
  }
  return std::ldexp(1.0, exponent - format.mantissa_bits);
}

double e4m3_of_signed_code(int code) {
  const auto magnitude = static_cast<std::uint8_t>(std::min(std::abs(code), 0x7E));
  const double value = load_float(Dtype::kE4M3, &magnitude, 0);
  return code < 0 ? -value : value;
}

double middle(double a, double b) { return (a + b) / 2; }

}  // namespace

double excess_of(double error, double limit) {
  if (!std::isfinite(error)) return kUnbounded;
  if (limit > 0) return error / limit;
  return error > 0 ? kUnbounded : 0;
}

bool special_values_match(Dtype dtype, double actual, double expected) {
  if (std::isnan(actual) || std::isnan(expected)) return std::isnan(actual) && std::isnan(expected);
  if (!std::isinf(actual)) return false;
  return actual == static_cast<double>(round_to(dtype, static_cast<float>(expected)));
}

void expect_values(std::string_view what, std::size_t size, std::int64_t expected) {
  if (static_cast<std::int64_t>(size) == expected) return;
  fail(ErrorKind::kShape, "{}: expected {} values, got {}", what, expected, size);
}

void expect_rows(std::span<const std::int32_t> rows, std::int64_t num_tokens,
                 const RowBatch& batch) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || rows[i] >= num_tokens) {
      fail(ErrorKind::kShape, "rows[{}] is {}, but the output has {} rows", i, rows[i], num_tokens);
    }
    if (i > 0 && rows[i - 1] >= rows[i]) {
      fail(ErrorKind::kShape, "rows[{}] is {} after {}: rows must ascend", i, rows[i], rows[i - 1]);
    }
  }
  expect_values("query_start_loc", batch.query_start_loc.size(),
                static_cast<std::int64_t>(batch.seq_lens.size()) + 1);
  if (!rows.empty() && rows.back() >= batch.query_start_loc.back()) {
    fail(ErrorKind::kShape, "row {} belongs to none of the {} requests", rows.back(),
         batch.seq_lens.size());
  }
}

double JudgedRow::excess() const {
  if (special) return kUnbounded;
  const double by_row = excess_of(error, limit);
  return element ? std::max(by_row, element->excess) : by_row;
}

double E4m3Output::least_error(double stored, double expected) const {
  const int code = signed_e4m3_code(static_cast<float>(stored));
  const double value = e4m3_of_signed_code(code);
  const double below = code <= -0x7E ? -kUnbounded : middle(value, e4m3_of_signed_code(code - 1));
  const double above = code >= 0x7E ? kUnbounded : middle(value, e4m3_of_signed_code(code + 1));
  return std::max({0.0, below * scale_ - expected, expected - above * scale_});
}

int E4m3Output::steps_outside(double stored, double expected, double limit) const {
  const int code = signed_e4m3_code(static_cast<float>(stored));
  return std::max({code_of(expected - limit) - code, code - code_of(expected + limit), 0});
}

double E4m3Output::storable(double expected) const {
  return std::isinf(expected) ? std::copysign(kE4m3Max * scale_, expected) : expected;
}

int E4m3Output::code_of(double value) const {
  const float inverse = 1.0f / static_cast<float>(scale_);
  return signed_e4m3_code(static_cast<float>(value) * inverse);
}

OutputRows::OutputRows(const RowComparison& comparison, const RowLimits& limits)
    : c_(comparison), limits_(limits), codes_(limits.e4m3_scale) {
  if (c_.actual->shape().size() != 3) {
    fail(ErrorKind::kShape, "output must have 3 dimensions, has {}", c_.actual->shape().size());
  }
  num_heads_ = c_.actual->dim(1);
  width_ = c_.actual->dim(2);
  expect_rows(c_.rows, c_.actual->dim(0), c_.batch);
  const std::int64_t row_heads = count();
  expect_values("expected", c_.expected.size(), row_heads * width_);
  expect_values("row_size", c_.row_size.size(), row_heads);
  if (!c_.emulated.empty()) expect_values("emulated", c_.emulated.size(), row_heads * width_);
  if (!c_.output_loss.empty()) expect_values("output_loss", c_.output_loss.size(), row_heads);
}

void OutputRows::load(std::int64_t at, std::vector<float>& values) const {
  const std::int64_t token = c_.rows[static_cast<std::size_t>(at / num_heads_)];
  const std::int64_t first = (token * num_heads_ + at % num_heads_) * width_;
  values.resize(static_cast<std::size_t>(width_));
  load_floats(c_.actual->dtype(),
              c_.actual->bytes() + static_cast<std::size_t>(first) * dtype_size(dtype()), width_,
              values.data());
}

double OutputRows::expected(std::int64_t at, std::int64_t element) const {
  const double value = c_.expected[static_cast<std::size_t>(at * width_ + element)];
  return quantised() ? codes_.storable(value) : value;
}

double OutputRows::size(std::int64_t at) const {
  const double size = c_.row_size[static_cast<std::size_t>(at)];
  return std::isfinite(size) ? size : 0;
}

double OutputRows::relative(double square, std::int64_t at) const {
  if (square == 0) return 0;
  const double n = size(at);
  return n > 0 ? std::sqrt(square) / n : kUnbounded;
}

double OutputRows::error_of(std::int64_t at, const std::vector<float>& values) const {
  double square = 0;
  for (std::int64_t i = 0; i < width_; ++i) {
    const double error = element_error(values[static_cast<std::size_t>(i)], expected(at, i));
    if (std::isfinite(error)) square += error * error;
  }
  return relative(square, at);
}

double OutputRows::emulated_error(std::int64_t at) const {
  if (c_.emulated.empty()) return 0;
  double square = 0;
  for (std::int64_t i = 0; i < width_; ++i) {
    const double emulated = c_.emulated[static_cast<std::size_t>(at * width_ + i)];
    const double error = std::abs(emulated - expected(at, i));
    if (std::isfinite(error)) square += error * error;
  }
  const double error = relative(square, at);
  return std::isfinite(error) ? error : 0;
}

double OutputRows::loss(std::int64_t at) const {
  if (c_.output_loss.empty() || !(size(at) > 0)) return 0;
  const double loss = kLossFactor * c_.output_loss[static_cast<std::size_t>(at)] / size(at);
  return std::isfinite(loss) ? loss : 0;
}

double OutputRows::element_error(double stored, double expected) const {
  if (!std::isfinite(stored) || !std::isfinite(expected)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return quantised() ? codes_.least_error(stored, expected) : std::abs(stored - expected);
}

JudgedRow OutputRows::judge(std::int64_t at, double limit, std::vector<float>& values) const {
  load(at, values);
  JudgedRow row;
  row.limit = limit;
  row.error = error_of(at, values);
  const double element_limit =
      limits_.element_factor * limit * size(at) / std::sqrt(static_cast<double>(width_));
  for (std::int64_t i = 0; i < width_; ++i) {
    judge_element(at, i, values[static_cast<std::size_t>(i)], element_limit, row);
  }
  return row;
}

void OutputRows::judge_element(std::int64_t at, std::int64_t i, double stored, double limit,
                               JudgedRow& row) const {
  const double expected = this->expected(at, i);
  const double actual = stored * scale();
  if (!std::isfinite(actual) || !std::isfinite(expected)) {
    if (special_values_match(dtype(), actual, expected)) {
      ++row.matched;
    } else if (!row.special) {
      row.special = Offender{kUnbounded, i, actual, expected, 0, 0};
    }
    return;
  }
  double allowed = limit;
  double error = std::abs(actual - expected);
  if (error > row.furthest.excess) row.furthest = {error, i, actual, expected, 0, 0};
  int steps = 0;
  if (quantised()) {
    steps = codes_.steps_outside(stored, expected, limit);
    error = steps;
    allowed = 1;
  } else {
    allowed += unit_in_last_place(dtype(), expected);
  }
  if (error <= allowed) {
    ++row.matched;
  } else if (const double excess = error / allowed; !row.element || excess > row.element->excess) {
    row.element = Offender{excess, i, actual, expected, allowed, steps};
  }
}

}  // namespace attnbench
