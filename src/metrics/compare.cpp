// The verdict on one comparison from its sums, and its reasons in words. Sums are error_totals.h's.
#include "metrics/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "metrics/error_totals.h"

namespace attnbench {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// The largest of 10^5 normal values in their standard deviations, about.
constexpr double kLargestOfMany = 4.5;

/// The absolute part of the limit in the units of the output. Of few outputs the largest is drawn
/// too small to measure errors by: P in e4m3 by itself loses 2.5 % RMS over long contexts, and the
/// worst error is outside of a limit by their largest in one draw of 25 of 128 outputs and one of
/// 100 of 4096. Hence at least the largest that many outputs of the same RMS would have.
double absolute_limit(const Comparison& comparison, const Tolerance& tolerance) {
  if (!tolerance.relative_to_max) return tolerance.atol;
  double largest = 0;
  double squares = 0;
  double count = 0;
  for (const double value : comparison.expected) {
    if (!std::isfinite(value)) continue;
    largest = std::max(largest, std::abs(value));
    squares += value * value;
    ++count;
  }
  const double rms = count > 0 ? std::sqrt(squares / count) : 0;
  return tolerance.atol * std::max(largest, kLargestOfMany * rms);
}

std::string limit_text(const Tolerance& tolerance, double atol) {
  std::string text = tolerance.e4m3_scale > 0
                         ? fmt::format(
                               "at most 1 e4m3 step from |a-r| <= {:.3g} + {:.3g}*|r|, in "
                               "at most 1 % of the elements",
                               atol, tolerance.rtol)
                         : fmt::format("|a-r| <= {:.3g} + {:.3g}*|r|", atol, tolerance.rtol);
  if (tolerance.min_cosine > -1) {
    text += fmt::format(", cosine >= 1-{:.3g}", 1 - tolerance.min_cosine);
  }
  if (std::isfinite(tolerance.max_err_ratio)) {
    text += fmt::format(", err_ratio <= {:.3g}", tolerance.max_err_ratio);
    if (tolerance.e4m3_scale <= 0) text += fmt::format(" or max_abs <= {:.3g}", atol / 10);
  }
  return text;
}

/// |a-r| / |r|; 0 / 0 is 0 because equal vectors have no error.
double relative_rms(const Totals& totals) {
  if (totals.finite == 0) return kNaN;
  if (totals.expected2 > 0) return static_cast<double>(sqrtl(totals.error2 / totals.expected2));
  return totals.error2 > 0 ? kNaN : 0;
}

double cosine_of(const Totals& totals) {
  if (totals.finite == 0) return kNaN;
  const long double norms = sqrtl(totals.actual2) * sqrtl(totals.expected2);
  if (norms > 0) return static_cast<double>(std::min(1.0L, totals.product / norms));
  return totals.actual2 > 0 || totals.expected2 > 0 ? kNaN : 1;
}

ErrorStats to_stats(const Totals& totals, const Lines& lines, const Comparison& comparison) {
  ErrorStats stats;
  const bool any = totals.finite > 0;
  stats.max_abs = any ? totals.max_abs : kNaN;
  stats.mean_abs =
      any ? static_cast<double>(totals.abs_error) / static_cast<double>(totals.finite) : kNaN;
  stats.rms_rel = relative_rms(totals);
  stats.nmse = stats.rms_rel * stats.rms_rel;
  stats.cosine = cosine_of(totals);
  stats.err_ratio = any && totals.max_emulated > 0 ? totals.max_abs / totals.max_emulated : kNaN;
  stats.matched_pct = totals.elements == 0
                          ? 100
                          : 100.0 * static_cast<double>(totals.elements - totals.outside) /
                                static_cast<double>(totals.elements);
  stats.nan_count = totals.nan;
  stats.inf_count = totals.inf;
  stats.checked_rows = static_cast<std::int64_t>(comparison.rows.size());
  stats.total_rows = lines.total_rows();
  return stats;
}

void describe_worst(ErrorStats& stats, const Place& place, Lines& lines, double actual_scale) {
  lines.load(place.line);
  stats.worst_index = lines.index_of(place);
  stats.worst_actual = lines.actual(place.element) * actual_scale;
  stats.worst_expected = lines.expected(place);
}

std::string at(const char* name, const ErrorStats& stats) {
  return fmt::format("{}[{}] is {:.6g}, reference {:.6g}", name, fmt::join(stats.worst_index, ", "),
                     stats.worst_actual, stats.worst_expected);
}

/// The elementwise half of the rule; the worst offender is named, not the largest error.
void judge_elements(const Totals& totals, Lines& lines, const Tolerance& tolerance, double scale,
                    Verdict& verdict) {
  const std::int64_t differing = totals.outside - totals.misplaced;
  const bool failed = tolerance.e4m3_scale > 0
                          ? totals.max_steps > 1 || differing * 100 > totals.elements
                          : differing > 0;
  if (!failed) return;
  ErrorStats worst;
  describe_worst(worst, totals.worst_outside, lines, scale);
  const std::string detail =
      tolerance.e4m3_scale > 0
          ? fmt::format("up to {} e4m3 steps apart", totals.max_steps)
          : fmt::format("|a-r| = {:.3g}", std::abs(worst.worst_actual - worst.worst_expected));
  verdict.reasons.push_back(fmt::format("{}: {}; {} of {} elements outside the limit",
                                        at(lines.name(), worst), detail, differing,
                                        totals.elements));
}

void judge_cosine(const Tolerance& tolerance, const Lines& lines, Verdict& verdict) {
  // An undefined cosine (a zero vector) decides nothing; the elements have been judged.
  if (tolerance.min_cosine <= -1 || !(verdict.stats.cosine < tolerance.min_cosine)) return;
  verdict.reasons.push_back(fmt::format("{}: 1 - cosine = {:.2g}, limit {:.2g}", lines.name(),
                                        1 - verdict.stats.cosine, 1 - tolerance.min_cosine));
}

void judge_err_ratio(const Totals& totals, const Tolerance& tolerance, double atol,
                     const Lines& lines, Verdict& verdict) {
  if (std::isinf(tolerance.max_err_ratio) || totals.max_abs <= atol / 10) return;
  const double ratio = verdict.stats.err_ratio;
  if (ratio <= tolerance.max_err_ratio) return;
  verdict.reasons.push_back(
      std::isnan(ratio)
          ? fmt::format("{}: max_abs is {:.3g}, the same maths in storage precision has no error",
                        lines.name(), totals.max_abs)
          : fmt::format("{}: err_ratio {:.3g} is over {:.3g} (max_abs {:.3g}, the same maths in "
                        "storage precision {:.3g})",
                        lines.name(), ratio, tolerance.max_err_ratio, totals.max_abs,
                        totals.max_emulated));
}

}  // namespace

Verdict compare(const Comparison& comparison, const Tolerance& tolerance) {
  Lines lines(comparison);
  const double atol = absolute_limit(comparison, tolerance);
  const double scale = tolerance.e4m3_scale > 0 ? tolerance.e4m3_scale : 1;
  const Totals totals = accumulate(lines, tolerance, comparison.actual->dtype(), atol);

  Verdict verdict;
  verdict.stats = to_stats(totals, lines, comparison);
  verdict.stats.limit = limit_text(tolerance, atol);
  verdict.stats.rule = tolerance.rule;
  if (totals.misplaced > 0) {
    describe_worst(verdict.stats, totals.first_misplaced, lines, scale);
    verdict.reasons.push_back(fmt::format("NaN or infinity in different places: {} ({} element{})",
                                          at(lines.name(), verdict.stats), totals.misplaced,
                                          totals.misplaced == 1 ? "" : "s"));
  } else if (totals.finite > 0) {
    describe_worst(verdict.stats, totals.worst, lines, scale);
  }
  judge_elements(totals, lines, tolerance, scale, verdict);
  judge_cosine(tolerance, lines, verdict);
  judge_err_ratio(totals, tolerance, atol, lines, verdict);
  verdict.passed = verdict.reasons.empty();
  return verdict;
}

std::string diagnose_lse(const Comparison& comparison, const Tolerance& tolerance,
                         const std::optional<LseConvention>& declared) {
  if (compare(comparison, tolerance).passed) return "";
  Tolerance absolute = tolerance;
  // What the maths in storage precision gives says nothing of the mistaken values.
  absolute.max_err_ratio = std::numeric_limits<double>::infinity();
  const LseConvention expected = declared.value_or(LseConvention{});
  const char* const says = declared ? "declared" : "expected";
  // What a natural LSE becomes when it is taken for one of base 2, or the other way round.
  const double factor = expected.base_two ? std::log(2.0) : 1 / std::log(2.0);
  const auto fits = [&](bool other_base, bool other_infinity) {
    std::vector<double> mistaken(comparison.expected.begin(), comparison.expected.end());
    for (double& lse : mistaken) {
      if (std::isinf(lse)) {
        lse = other_infinity ? -lse : lse;
      } else if (other_base) {
        lse *= factor;
      }
    }
    Comparison other = comparison;
    other.expected = mistaken;
    other.emulated = {};
    return compare(other, absolute).passed;
  };
  const std::string base =
      fmt::format("LSE is {}, {} {}", expected.base_two ? "natural" : "in base 2", says,
                  expected.base_two ? "base 2" : "natural");
  const std::string infinity = fmt::format("LSE of rows that see no key is {}, {} {}",
                                           expected.empty_is_plus_inf ? "-inf" : "+inf", says,
                                           expected.empty_is_plus_inf ? "+inf" : "-inf");
  if (fits(false, false)) return "";  // outside of nothing but the ratio to the emulation
  if (fits(true, false)) return base;
  if (fits(false, true)) return infinity;
  return fits(true, true) ? base + "; " + infinity : "";
}

}  // namespace attnbench
