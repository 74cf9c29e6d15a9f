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
#include "metrics/output_rows.h"

namespace attnbench {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kRowsPerTask = 64;

std::size_t request_of(const RowBatch& batch, std::int32_t token) {
  const auto& starts = batch.query_start_loc;
  const auto next = std::upper_bound(starts.begin(), starts.end(), token);
  return static_cast<std::size_t>(next - starts.begin()) - 1;
}

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

std::vector<JudgedRow> judge_all(const OutputRows& rows, const RowComparison& comparison,
                                 const RowLimits& limits) {
  const std::vector<double> allowed = output_limits(rows, comparison, limits);
  std::vector<JudgedRow> judged(allowed.size());
  for_each_chunk(rows.count(), kRowsPerTask, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values;
    for (std::int64_t at = begin; at < end; ++at) {
      const auto place = static_cast<std::size_t>(at);
      judged[place] = rows.judge(at, allowed[place], values);
    }
  });
  return judged;
}

/// Rows that are outside, counted, and the worst of all rows.
class Tally {
 public:
  Tally(std::span<const std::int32_t> rows, const RowBatch& batch, std::int64_t num_heads)
      : rows_(rows), batch_(batch), num_heads_(num_heads), wrong_(batch.seq_lens.size()) {}

  /// `excess`: of excess_of(), and so never NaN.
  void add(std::int64_t at, double excess, bool outside) {
    if (!worst_ || excess > worst_excess_) {
      worst_ = at;
      worst_excess_ = excess;
    }
    if (!outside) return;
    ++outside_;
    wrong_[static_cast<std::size_t>(place(at).request)] = true;
  }

  /// Nothing where no row was added.
  std::optional<std::int64_t> worst() const { return worst_; }
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
    if (worst_) stats.worst_row = place(*worst_);
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
  std::optional<std::int64_t> worst_;
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
  std::int64_t num_heads = 0;

  explicit LseRows(const LseComparison& comparison) : c(comparison) {
    if (c.actual->shape().size() != 2) {
      fail(ErrorKind::kShape, "lse must have 2 dimensions, has {}", c.actual->shape().size());
    }
    num_heads = c.actual->dim(0);
    expect_rows(c.rows, c.actual->dim(1), c.batch);
    expect_values("expected", c.expected.size(), count());
    if (!c.emulated.empty()) expect_values("emulated", c.emulated.size(), count());
    if (!c.lse_loss.empty()) expect_values("lse_loss", c.lse_loss.size(), count());
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
    return special_values_match(Dtype::kF32, value, expected) ? 0 : kInfinity;
  }
  double emulated_error(std::int64_t at) const {
    if (c.emulated.empty()) return 0;
    const double value = error(at, c.emulated[flat(at)]);
    return std::isfinite(value) ? value : 0;
  }
};

}  // namespace

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
    const double loss = comparison.lse_loss.empty() ? 0 : kLossFactor * comparison.lse_loss[place];
    if (std::isfinite(loss)) own[place] = std::max(own[place], loss);
    emulated[place] = rows.emulated_error(at);
    result.errors.push_back(rows.error(at, rows.actual(at)));
  }
  result.limits = limits_of(own, emulated, limits.emulation_factor, comparison.rows,
                            comparison.batch, rows.num_heads);
  return result;
}

std::vector<std::int64_t> rows_outside(const RowComparison& comparison, const RowLimits& limits) {
  const OutputRows rows(comparison, limits);
  const std::vector<JudgedRow> judged = judge_all(rows, comparison, limits);
  std::vector<std::int64_t> places;
  for (std::int64_t at = 0; at < rows.count(); ++at) {
    if (judged[static_cast<std::size_t>(at)].outside()) places.push_back(at);
  }
  return places;
}

std::vector<std::int64_t> lse_rows_outside(const LseComparison& comparison,
                                           const LseLimits& limits) {
  const RowErrors found = lse_errors(comparison, limits);
  std::vector<std::int64_t> places;
  for (std::size_t at = 0; at < found.errors.size(); ++at) {
    if (!(found.errors[at] <= found.limits[at])) places.push_back(static_cast<std::int64_t>(at));
  }
  return places;
}

std::vector<std::string> judge_rows(const RowComparison& comparison, const RowLimits& limits,
                                    ErrorStats& stats) {
  const OutputRows rows(comparison, limits);
  const std::vector<JudgedRow> judged = judge_all(rows, comparison, limits);
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
  if (!tally.worst()) return {};
  const std::int64_t at = *tally.worst();
  const JudgedRow& worst = judged[static_cast<std::size_t>(at)];
  stats.row_error = worst.error;
  stats.row_limit = worst.limit;
  if (tally.outside() == 0) return {};
  return {fmt::format("{}: {}; {}; {}", tally.name("output", at), row_text(worst, rows.quantised()),
                      tally.outside_text(), element_text(worst, stats.worst_row))};
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
    tally.add(at, excess_of(error, limit), outside);
  }
  tally.fill(stats);
  stats.limit = fmt::format("|a-r| of each row: {:.3g}, or {:.3g} times what rounding costs there",
                            limits.floor, limits.emulation_factor);
  stats.rule = limits.rule;
  stats.matched_pct = rows.count() > 0
                          ? 100.0 * static_cast<double>(matched) / static_cast<double>(rows.count())
                          : 100;
  if (!tally.worst()) return {};
  const std::int64_t at = *tally.worst();
  const auto worst = static_cast<std::size_t>(at);
  stats.row_error = found.errors[worst];
  stats.row_limit = found.limits[worst];
  if (tally.outside() == 0) return {};
  const std::string text =
      std::isfinite(stats.row_error)
          ? fmt::format("error {:.3g}, limit {:.2g}", stats.row_error, stats.row_limit)
          : "NaN or infinity in different places";
  return {fmt::format("{}: {}; {}; lse[{}, {}] is {:.6g}, reference {:.6g}", tally.name("lse", at),
                      text, tally.outside_text(), stats.worst_row.head, stats.worst_row.token,
                      rows.actual(at), comparison.expected[rows.flat(at)])};
}

}  // namespace attnbench
