// Errors and limits of all rows first, then the verdict: the worst row is the one that exceeds its
// limit by the largest factor, which need not be the one with the largest error.
#include "metrics/row_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "core/error.h"
#include "core/system/parallel.h"
#include "metrics/error_totals.h"

namespace attnbench {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kRowsPerTask = 64;

/// The floor of rows whose output, or P, is stored in this type (docs/verdicts.md).
double row_floor(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return 7.5e-4;
    case Dtype::kBF16:
      return 6e-3;
    case Dtype::kE4M3:
      return 6.5e-2;
    default:
      return 1e-6;
  }
}

/// Of MLA, whose kernels also round what they project queries, latents and outputs to.
constexpr double kMlaRoundings = 5.0 / 3;

/// What sums of e4m3 products in a tensor core move an LSE by, which no kernel can mend.
constexpr double kFp8Products = 2.5e-3;

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

/// How codes of an output are read: values v of the output, codes of v / scale.
class E4m3Output {
 public:
  explicit E4m3Output(double scale) : scale_(scale) {}

  /// Of the values that are stored as `stored`, the least distance to `expected`.
  double least_error(double stored, double expected) const {
    const int code = signed_e4m3_code(static_cast<float>(stored));
    const double value = e4m3_of_signed_code(code);
    const double below = code <= -0x7E ? -kInfinity : middle(value, e4m3_of_signed_code(code - 1));
    const double above = code >= 0x7E ? kInfinity : middle(value, e4m3_of_signed_code(code + 1));
    return std::max({0.0, below * scale_ - expected, expected - above * scale_});
  }

  /// Steps by which the code of `stored` is outside of those of [expected - limit, expected +
  /// limit].
  int steps_outside(double stored, double expected, double limit) const {
    const int code = signed_e4m3_code(static_cast<float>(stored));
    return std::max({code_of(expected - limit) - code, code - code_of(expected + limit), 0});
  }

  /// e4m3 has no infinity: one is stored as the largest value.
  double storable(double expected) const {
    return std::isinf(expected) ? std::copysign(kE4m3Max * scale_, expected) : expected;
  }

 private:
  static double middle(double a, double b) { return (a + b) / 2; }
  int code_of(double value) const {
    const float inverse = 1.0f / static_cast<float>(scale_);
    return signed_e4m3_code(static_cast<float>(value) * inverse);
  }

  double scale_;
};

bool specials_match(Dtype dtype, double actual, double expected) {
  if (std::isnan(actual) || std::isnan(expected)) return std::isnan(actual) && std::isnan(expected);
  if (!std::isinf(actual)) return false;
  return actual == static_cast<double>(round_to(dtype, static_cast<float>(expected)));
}

void check_size(const char* what, std::size_t size, std::int64_t expected) {
  if (static_cast<std::int64_t>(size) == expected) return;
  fail(ErrorKind::kShape, "{}: expected {} values, got {}", what, expected, size);
}

void check_rows(std::span<const std::int32_t> rows, std::int64_t num_tokens,
                const RowBatch& batch) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool ascending = i == 0 || rows[i - 1] < rows[i];
    if (rows[i] < 0 || rows[i] >= num_tokens || !ascending) {
      fail(ErrorKind::kShape, "row {} of {} is to be checked, rows ascending", rows[i], num_tokens);
    }
  }
  check_size("query_start_loc", batch.query_start_loc.size(),
             static_cast<std::int64_t>(batch.seq_lens.size()) + 1);
  if (!rows.empty() && rows.back() >= batch.query_start_loc.back()) {
    fail(ErrorKind::kShape, "row {} belongs to none of the {} requests", rows.back(),
         batch.seq_lens.size());
  }
}

std::size_t request_of(const RowBatch& batch, std::int32_t token) {
  const auto& starts = batch.query_start_loc;
  const auto next = std::upper_bound(starts.begin(), starts.end(), token);
  return static_cast<std::size_t>(next - starts.begin()) - 1;
}

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
  std::int64_t matched = 0;  // elements inside
  std::int64_t misplaced = 0;
  std::optional<Offender> special;  // the first NaN or infinity out of place
  std::optional<Offender> element;  // the worst outside of its limit
  Offender furthest;                // of all that are finite, in units of the output
  bool outside() const { return !(error <= limit) || special || element; }
  double excess() const {
    if (special || !std::isfinite(error)) return kInfinity;
    const double by_row = limit > 0 ? error / limit : (error > 0 ? kInfinity : 0);
    return element ? std::max(by_row, element->excess) : by_row;
  }
};

/// Loads rows of a head and measures them.
class OutputRows {
 public:
  OutputRows(const RowComparison& comparison, const RowLimits& limits)
      : c_(comparison), limits_(limits), codes_(limits.e4m3_scale) {
    if (c_.actual->shape().size() != 3) {
      fail(ErrorKind::kShape, "output must have 3 dimensions, has {}", c_.actual->shape().size());
    }
    num_heads_ = c_.actual->dim(1);
    width_ = c_.actual->dim(2);
    check_rows(c_.rows, c_.actual->dim(0), c_.batch);
    const std::int64_t row_heads = count();
    check_size("expected", c_.expected.size(), row_heads * width_);
    check_size("row_size", c_.row_size.size(), row_heads);
    if (!c_.emulated.empty()) check_size("emulated", c_.emulated.size(), row_heads * width_);
    if (!c_.output_loss.empty()) check_size("output_loss", c_.output_loss.size(), row_heads);
  }

  std::int64_t num_heads() const { return num_heads_; }
  std::int64_t width() const { return width_; }
  std::int64_t count() const { return static_cast<std::int64_t>(c_.rows.size()) * num_heads_; }
  bool quantised() const { return limits_.e4m3_scale > 0; }

  /// Stored values of a row of a head, [Dv].
  void load(std::int64_t at, std::vector<float>& values) const {
    const std::int64_t token = c_.rows[static_cast<std::size_t>(at / num_heads_)];
    const std::int64_t first = (token * num_heads_ + at % num_heads_) * width_;
    values.resize(static_cast<std::size_t>(width_));
    load_floats(c_.actual->dtype(),
                c_.actual->bytes() + static_cast<std::size_t>(first) * dtype_size(dtype()), width_,
                values.data());
  }

  double error_of(std::int64_t at, const std::vector<float>& values) const {
    double square = 0;
    for (std::int64_t i = 0; i < width_; ++i) {
      const double error = element_error(values[static_cast<std::size_t>(i)], expected(at, i));
      if (std::isfinite(error)) square += error * error;
    }
    return relative(square, at);
  }

  /// NaN and infinity of the emulation say nothing of an error.
  double emulated_error(std::int64_t at) const {
    if (c_.emulated.empty()) return 0;
    double square = 0;
    for (std::int64_t i = 0; i < width_; ++i) {
      double emulated = c_.emulated[static_cast<std::size_t>(at * width_ + i)];
      double error = std::abs(emulated - expected(at, i));
      if (std::isfinite(error)) square += error * error;
    }
    const double error = relative(square, at);
    return std::isfinite(error) ? error : 0;
  }

  double loss(std::int64_t at) const {
    const auto place = static_cast<std::size_t>(at);
    if (c_.output_loss.empty() || !(c_.row_size[place] > 0)) return 0;
    return kLossFactor * c_.output_loss[place] / c_.row_size[place];
  }

  JudgedRow judge(std::int64_t at, double limit, std::vector<float>& values) const {
    load(at, values);
    JudgedRow row;
    row.limit = limit;
    row.error = error_of(at, values);
    const double element_limit = limits_.element_factor * limit *
                                 c_.row_size[static_cast<std::size_t>(at)] /
                                 std::sqrt(static_cast<double>(width_));
    for (std::int64_t i = 0; i < width_; ++i) {
      judge_element(at, i, values[static_cast<std::size_t>(i)], element_limit, row);
    }
    return row;
  }

  double expected(std::int64_t at, std::int64_t element) const {
    const double value = c_.expected[static_cast<std::size_t>(at * width_ + element)];
    return quantised() ? codes_.storable(value) : value;
  }

 private:
  static constexpr double kLossFactor = 4;

  Dtype dtype() const { return c_.actual->dtype(); }
  double scale() const { return quantised() ? limits_.e4m3_scale : 1; }

  double relative(double square, std::int64_t at) const {
    if (square == 0) return 0;
    const double size = c_.row_size[static_cast<std::size_t>(at)];
    return size > 0 ? std::sqrt(square) / size : kInfinity;
  }

  /// NaN where either is not finite.
  double element_error(double stored, double expected) const {
    if (!std::isfinite(stored) || !std::isfinite(expected)) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    return quantised() ? codes_.least_error(stored, expected) : std::abs(stored - expected);
  }

  void judge_element(std::int64_t at, std::int64_t i, double stored, double limit,
                     JudgedRow& row) const {
    const double expected = this->expected(at, i);
    const double actual = stored * scale();
    if (!std::isfinite(actual) || !std::isfinite(expected)) {
      if (specials_match(dtype(), actual, expected)) {
        ++row.matched;
        return;
      }
      ++row.misplaced;
      if (!row.special) row.special = Offender{kInfinity, i, actual, expected, 0, 0};
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
    } else if (const double excess = error / allowed;
               !row.element || excess > row.element->excess) {
      row.element = Offender{excess, i, actual, expected, allowed, steps};
    }
  }

  const RowComparison& c_;
  const RowLimits& limits_;
  E4m3Output codes_;
  std::int64_t num_heads_ = 0;
  std::int64_t width_ = 0;
};

/// Limits of rows from what each row allows by itself, and from the emulation's errors.
std::vector<double> limits_of(const std::vector<double>& own, const std::vector<double>& emulated,
                              double factor, std::span<const std::int32_t> rows,
                              const RowBatch& batch, std::int64_t num_heads) {
  const std::vector<double> medians = request_medians(emulated, rows, batch, num_heads);
  std::vector<double> limits(own.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    const std::int32_t token = rows[i / static_cast<std::size_t>(num_heads)];
    const double median = medians[request_of(batch, token)];
    limits[i] = std::max({own[i], factor * emulated[i], factor * median});
  }
  return limits;
}

std::vector<double> output_limits(const OutputRows& rows, const RowComparison& comparison,
                                  const RowLimits& limits) {
  const auto count = static_cast<std::size_t>(rows.count());
  std::vector<double> own(count);
  std::vector<double> emulated(count);
  for_each_chunk(rows.count(), kRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      own[static_cast<std::size_t>(at)] = std::max(limits.floor, rows.loss(at));
      emulated[static_cast<std::size_t>(at)] = rows.emulated_error(at);
    }
  });
  return limits_of(own, emulated, limits.emulation_factor, comparison.rows, comparison.batch,
                   rows.num_heads());
}

/// Rows that are outside, counted, and the worst of all rows.
class Tally {
 public:
  Tally(std::span<const std::int32_t> rows, const RowBatch& batch, std::int64_t num_heads)
      : rows_(rows), batch_(batch), num_heads_(num_heads), wrong_(batch.seq_lens.size()) {}

  void add(std::int64_t at, double excess, bool outside) {
    if (worst_ < 0 || excess > worst_excess_) {
      worst_ = at;
      worst_excess_ = excess;
    }
    if (!outside) return;
    ++outside_;
    wrong_[static_cast<std::size_t>(place(at).request)] = true;
  }

  std::int64_t worst() const { return worst_; }
  std::int64_t outside() const { return outside_; }
  std::int64_t requests() const { return std::count(wrong_.begin(), wrong_.end(), true); }

  RowPlace place(std::int64_t at) const {
    RowPlace place;
    const std::int32_t token = rows_[static_cast<std::size_t>(at / num_heads_)];
    const std::size_t request = request_of(batch_, token);
    place.request = static_cast<std::int64_t>(request);
    place.token = token;
    place.position = token - batch_.query_start_loc[request + 1] + batch_.seq_lens[request];
    place.head = at % num_heads_;
    return place;
  }

  void fill(ErrorStats& stats) const {
    stats.rows_outside = outside_;
    stats.requests_outside = requests();
    if (worst_ >= 0) stats.worst_row = place(worst_);
  }

  /// "output of request 31, row 0 (position 4000), head 5".
  std::string name(const char* what, std::int64_t at) const {
    const RowPlace at_place = place(at);
    const auto start = batch_.query_start_loc[static_cast<std::size_t>(at_place.request)];
    return fmt::format("{} of request {}, row {} (position {}), head {}", what, at_place.request,
                       at_place.token - start, at_place.position, at_place.head);
  }

  std::string outside_text() const {
    return fmt::format("{} row{} of {} request{} {} outside", outside_, outside_ == 1 ? "" : "s",
                       requests(), requests() == 1 ? "" : "s", outside_ == 1 ? "is" : "are");
  }

 private:
  std::span<const std::int32_t> rows_;
  RowBatch batch_;
  std::int64_t num_heads_;
  std::vector<bool> wrong_;  // by request
  std::int64_t worst_ = -1;
  double worst_excess_ = 0;
  std::int64_t outside_ = 0;
};

std::string row_text(const JudgedRow& row, bool quantised) {
  if (row.special) return "NaN or infinity in different places";
  if (!(row.error <= row.limit)) {
    return fmt::format("error {:.3g} of the row's size, limit {:.2g}", row.error, row.limit);
  }
  const Offender& element = *row.element;
  if (quantised) {
    return fmt::format("element {} is {} e4m3 steps off", element.element, element.steps);
  }
  return fmt::format("element {} is off by {:.3g}, limit {:.3g}", element.element,
                     std::abs(element.actual - element.expected), element.limit);
}

/// The element that shows the fault of a row best.
std::string element_text(const JudgedRow& row, const RowPlace& place) {
  const Offender& shown = row.special              ? *row.special
                          : row.error <= row.limit ? *row.element
                                                   : row.furthest;
  return fmt::format("output[{}, {}, {}] is {:.6g}, reference {:.6g}", place.token, place.head,
                     shown.element, shown.actual, shown.expected);
}

std::string limit_text(const RowLimits& limits) {
  std::string text = fmt::format(
      "of each row's size: {:.3g}, or {:.3g} times what rounding costs there; an element {:.3g} "
      "times its share of that",
      limits.floor, limits.emulation_factor, limits.element_factor);
  return text + (limits.e4m3_scale > 0 ? " and an e4m3 step" : " and a unit in the last place");
}

struct LseRows {
  const LseComparison& c;
  std::int64_t num_heads;

  explicit LseRows(const LseComparison& comparison)
      : c(comparison), num_heads(comparison.actual->dim(0)) {
    if (c.actual->shape().size() != 2) {
      fail(ErrorKind::kShape, "lse must have 2 dimensions, has {}", c.actual->shape().size());
    }
    check_rows(c.rows, c.actual->dim(1), c.batch);
    check_size("expected", c.expected.size(), count());
    if (!c.emulated.empty()) check_size("emulated", c.emulated.size(), count());
    if (!c.lse_loss.empty()) check_size("lse_loss", c.lse_loss.size(), count());
  }

  std::int64_t count() const { return static_cast<std::int64_t>(c.rows.size()) * num_heads; }
  /// Place of row `at` [rows, H] in [H, rows].
  std::size_t flat(std::int64_t at) const {
    const auto num_rows = static_cast<std::int64_t>(c.rows.size());
    return static_cast<std::size_t>(at % num_heads * num_rows + at / num_heads);
  }
  double actual(std::int64_t at) const {
    const std::int64_t token = c.rows[static_cast<std::size_t>(at / num_heads)];
    return c.actual->at(at % num_heads * c.actual->dim(1) + token);
  }
  double error(std::int64_t at, double value) const {
    const double expected = c.expected[flat(at)];
    if (std::isfinite(value) && std::isfinite(expected)) return std::abs(value - expected);
    return specials_match(Dtype::kF32, value, expected) ? 0 : kInfinity;
  }
  double emulated_error(std::int64_t at) const {
    if (c.emulated.empty()) return 0;
    const double value = error(at, c.emulated[flat(at)]);
    return std::isfinite(value) ? value : 0;
  }
};

constexpr double kLseLossFactor = 4;

}  // namespace

RowLimits output_row_limits(const ToleranceQuery& query) {
  RowLimits limits;
  Dtype output = query.output;
  if (query.static_fp8_scale > 0) {
    limits.e4m3_scale = query.static_fp8_scale;
    output = query.computed.value_or(Dtype::kF32);
  }
  const Dtype probability = query.probability.value_or(output);
  limits.floor = std::max(row_floor(output), row_floor(probability));
  if (query.mla) limits.floor = std::max(limits.floor, kMlaRoundings * row_floor(output));
  limits.rule = fmt::format("semantics 14.2 rows, output {}, P {}", dtype_name(output),
                            dtype_name(probability));
  if (query.mla) limits.rule += ", MLA";
  if (query.fp8_query) {
    limits.rule += ", fp8 Q K V";
  } else if (query.quantised_kv) {
    limits.rule += ", quantised K and V";
  }
  if (query.static_fp8_scale > 0) limits.rule += ", static fp8 output";
  return limits;
}

LseLimits lse_row_limits(Dtype input, bool mla, bool fp8_products) {
  LseLimits limits;
  limits.floor = input == Dtype::kF32 ? 4e-6 : 2e-5;
  limits.rule = fmt::format("semantics 14.2 rows, LSE, inputs {}", dtype_name(input));
  if (fp8_products) {
    limits.floor = std::max(limits.floor, kFp8Products);
    limits.rule += ", fp8 Q K";
  }
  if (!mla) return limits;
  limits.rule += ", MLA";
  // The latent query is rounded, which moves scores of ordinary size by as much.
  if (input != Dtype::kF32) limits.floor = std::max(limits.floor, row_floor(input) * 2 / 3);
  return limits;
}

double row_error(std::span<const double> actual, std::span<const double> expected,
                 double row_size) {
  double square = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = actual[i] - expected[i];
    if (std::isfinite(error)) square += error * error;
  }
  if (square == 0) return 0;
  return row_size > 0 ? std::sqrt(square) / row_size : kInfinity;
}

std::vector<double> request_medians(std::span<const double> values,
                                    std::span<const std::int32_t> rows, const RowBatch& batch,
                                    std::int64_t num_heads) {
  std::vector<double> medians(batch.seq_lens.size(), 0.0);
  std::vector<double> of_request;
  std::size_t first = 0;
  while (first < rows.size()) {
    const std::size_t request = request_of(batch, rows[first]);
    std::size_t last = first;
    while (last < rows.size() && request_of(batch, rows[last]) == request) ++last;
    const auto heads = static_cast<std::size_t>(num_heads);
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first * heads);
    of_request.assign(begin, values.begin() + static_cast<std::ptrdiff_t>(last * heads));
    if (!of_request.empty()) {
      const auto middle = of_request.begin() + static_cast<std::ptrdiff_t>(of_request.size() / 2);
      std::nth_element(of_request.begin(), middle, of_request.end());
      medians[request] = *middle;
    }
    first = last;
  }
  return medians;
}

RowErrors row_errors(const RowComparison& comparison, const RowLimits& limits) {
  const OutputRows rows(comparison, limits);
  RowErrors result;
  result.limits = output_limits(rows, comparison, limits);
  result.errors.resize(result.limits.size());
  for_each_chunk(rows.count(), kRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values;
    for (std::int64_t at = begin; at < end; ++at) {
      const auto place = static_cast<std::size_t>(at);
      const JudgedRow row = rows.judge(at, result.limits[place], values);
      result.errors[place] = row.special ? kInfinity : row.error;
    }
  });
  return result;
}

std::vector<double> row_limits(const RowComparison& comparison, const RowLimits& limits) {
  return output_limits(OutputRows(comparison, limits), comparison, limits);
}

RowErrors lse_errors(const LseComparison& comparison, const LseLimits& limits) {
  const LseRows rows(comparison);
  const auto count = static_cast<std::size_t>(rows.count());
  RowErrors result;
  std::vector<double> own(count);
  std::vector<double> emulated(count);
  for (std::int64_t at = 0; at < rows.count(); ++at) {
    const auto place = static_cast<std::size_t>(at);
    own[place] = limits.floor;
    if (!comparison.lse_loss.empty()) {
      own[place] = std::max(own[place], kLseLossFactor * comparison.lse_loss[place]);
    }
    emulated[place] = rows.emulated_error(at);
    result.errors.push_back(rows.error(at, rows.actual(at)));
  }
  result.limits = limits_of(own, emulated, limits.emulation_factor, comparison.rows,
                            comparison.batch, rows.num_heads);
  return result;
}

std::vector<std::string> judge_rows(const RowComparison& comparison, const RowLimits& limits,
                                    ErrorStats& stats) {
  const OutputRows rows(comparison, limits);
  const std::vector<double> allowed = output_limits(rows, comparison, limits);
  std::vector<JudgedRow> judged(allowed.size());
  for_each_chunk(rows.count(), kRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values;
    for (std::int64_t at = begin; at < end; ++at) {
      const auto place = static_cast<std::size_t>(at);
      judged[place] = rows.judge(at, allowed[place], values);
    }
  });
  Tally tally(comparison.rows, comparison.batch, rows.num_heads());
  std::int64_t matched = 0;
  for (std::int64_t at = 0; at < rows.count(); ++at) {
    const JudgedRow& row = judged[static_cast<std::size_t>(at)];
    tally.add(at, row.excess(), row.outside());
    matched += row.matched;
  }
  tally.fill(stats);
  stats.limit = limit_text(limits);
  stats.rule = limits.rule;
  const std::int64_t elements = rows.count() * rows.width();
  stats.matched_pct =
      elements > 0 ? 100.0 * static_cast<double>(matched) / static_cast<double>(elements) : 100;
  if (tally.worst() < 0) return {};
  const JudgedRow& worst = judged[static_cast<std::size_t>(tally.worst())];
  stats.row_error = worst.error;
  stats.row_limit = worst.limit;
  if (tally.outside() == 0) return {};
  return {fmt::format("{}: {}; {}; {}", tally.name("output", tally.worst()),
                      row_text(worst, rows.quantised()), tally.outside_text(),
                      element_text(worst, stats.worst_row))};
}

std::vector<std::string> judge_lse_rows(const LseComparison& comparison, const LseLimits& limits,
                                        ErrorStats& stats) {
  const LseRows rows(comparison);
  const RowErrors found = lse_errors(comparison, limits);
  Tally tally(comparison.rows, comparison.batch, rows.num_heads);
  std::int64_t matched = 0;
  for (std::int64_t at = 0; at < rows.count(); ++at) {
    const auto place = static_cast<std::size_t>(at);
    const double error = found.errors[place];
    const double limit = found.limits[place];
    const bool outside = !(error <= limit);
    matched += outside ? 0 : 1;
    tally.add(at, error / limit, outside);
  }
  tally.fill(stats);
  stats.limit = fmt::format("|a-r| of each row: {:.3g}, or {:.3g} times what rounding costs there",
                            limits.floor, limits.emulation_factor);
  stats.rule = limits.rule;
  stats.matched_pct = rows.count() > 0
                          ? 100.0 * static_cast<double>(matched) / static_cast<double>(rows.count())
                          : 100;
  if (tally.worst() < 0) return {};
  const auto worst = static_cast<std::size_t>(tally.worst());
  stats.row_error = found.errors[worst];
  stats.row_limit = found.limits[worst];
  if (tally.outside() == 0) return {};
  const std::string text =
      std::isfinite(stats.row_error)
          ? fmt::format("error {:.3g}, limit {:.2g}", stats.row_error, stats.row_limit)
          : "NaN or infinity in different places";
  return {fmt::format("{}: {}; {}; lse[{}, {}] is {:.6g}, reference {:.6g}",
                      tally.name("lse", tally.worst()), text, tally.outside_text(),
                      stats.worst_row.head, stats.worst_row.token, rows.actual(tally.worst()),
                      comparison.expected[rows.flat(tally.worst())])};
}

}  // namespace attnbench
