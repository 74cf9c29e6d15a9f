// In the order of use: does the screening agree with the reference, which rows are suspicious, the
// verdict with them, and the figures of all rows.
#include "bench/judge/screened_judgement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/system/parallel.h"
#include "metrics/compare.h"
#include "metrics/row_rule.h"

namespace attnbench {
namespace {

/// Of a float64 sum against another one; grows with the scores, whose own rounding it has.
constexpr double kAgreement = 1e-9;
/// What suspicious rows may cost beside the sample, and how many are looked at whatever they cost.
constexpr double kRecheckFlops = 20e9;
constexpr std::size_t kLeastRechecked = 8;
constexpr std::size_t kMostRechecked = 64;
constexpr std::size_t kMostEmulatedAgain = 256;
constexpr std::size_t kMostOtherCodes = 16;

ScreenedOutput output_of(const ScreenedTrial& trial) {
  return screened_output(trial.problem, trial.output.output);
}

/// Index of `row` in ascending rows, or nothing.
std::optional<std::size_t> place_of(const std::vector<std::int32_t>& rows, std::int32_t row) {
  const auto found = std::lower_bound(rows.begin(), rows.end(), row);
  if (found == rows.end() || *found != row) return std::nullopt;
  return static_cast<std::size_t>(found - rows.begin());
}

/// body(a, b, token, head) for the rows that both tables have.
template <typename Body>
void for_common_rows(const ScreenTable& a, const ScreenTable& b, const Body& body) {
  for (std::size_t i = 0; i < b.rows.size(); ++i) {
    const std::optional<std::size_t> place = place_of(a.rows, b.rows[i]);
    if (!place) continue;
    for (std::int64_t head = 0; head < b.num_heads; ++head) {
      body(a.at(*place, head), b.at(i, head), b.rows[i], head);
    }
  }
}

bool agree(double a, double b, double unit) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::abs(a - b) <= kAgreement * unit;
}

/// How far a table in float32 may be from the truth, by the rows that both have seen: in the size
/// of a row, and of an LSE.
struct Slack {
  double output = 0;
  double lse = 0;

  Slack() = default;  // of a table in float64
  Slack(const ScreenTable& screened, const ScreenTable& reference) {
    constexpr double kFactor = 4;  // rows that only the screening has seen may be worse
    for_common_rows(screened, reference,
                    [&](const ScreenedRow& a, const ScreenedRow& b, std::int32_t, std::int64_t) {
                      if (b.size > 0) raise(output, kFactor * std::abs(a.error - b.error) / b.size);
                      raise(lse, kFactor * std::abs(a.lse - b.lse));
                    });
  }

 private:
  static void raise(double& most, double value) {
    if (std::isfinite(value)) most = std::max(most, value);
  }
};

/// Limits of rows that were not checked: the medians of their request's checked rows, or where it
/// has none the median of all.
class RequestLimits {
 public:
  /// `limits` [rows, H] of the checked rows.
  RequestLimits(const std::vector<double>& limits, const ReferenceOutput& checked,
                const RowBatch& batch, double slack)
      : of_(request_medians(limits, checked.rows, batch, checked.num_heads)) {
    std::vector<double> known;
    for (const double limit : limits) {
      if (std::isfinite(limit)) known.push_back(limit);
    }
    double all = 0;
    if (!known.empty()) {
      const auto middle = known.begin() + static_cast<std::ptrdiff_t>(known.size() / 2);
      std::nth_element(known.begin(), middle, known.end());
      all = *middle;
    }
    for (double& limit : of_) limit = (limit > 0 ? limit : all) + slack;
  }
  double of(std::size_t request) const { return of_[request]; }

 private:
  std::vector<double> of_;
};

std::vector<double> output_limits(const ScreenedTrial& trial, const RowBatch& batch) {
  const ReferenceOutput& r = *trial.checked.reference;
  const RowComparison rows{&trial.output.output,
                           r.output,
                           trial.checked.emulation->output,
                           r.row_size,
                           r.output_loss,
                           r.rows,
                           batch};
  return row_limits(rows, output_row_limits(tolerance_query(trial.problem, trial.numerics)));
}

std::vector<double> lse_limits(const ScreenedTrial& trial, const RowBatch& batch) {
  const ReferenceOutput& r = *trial.checked.reference;
  const LseComparison rows{&*trial.output.lse, r.lse,  trial.checked.emulation->lse,
                           r.lse_loss,         r.rows, batch};
  const AttentionSpec& a = trial.problem.attention;
  const bool mla = a.type == AttentionType::kMla;
  return lse_errors(rows, lse_row_limits(a.dtype, mla, trial.numerics.quantised_query)).limits;
}

/// By how much of its LSE a row may be off that no emulation has seen, beside its request's limit.
/// The error of sums of e4m3 products grows with the products, and so does an LSE, more or less: as
/// far as twice the emulation's error of a checked row, in proportion, a row is nothing unusual.
double lse_growth(const ScreenedTrial& trial) {
  constexpr double kFactor = 2;
  if (!has_e4m3_products(trial.problem, trial.numerics)) return 0;
  const std::vector<double>& expected = trial.checked.reference->lse;
  const std::vector<double>& emulated = trial.checked.emulation->lse;
  double most = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(emulated[i] - expected[i]) / std::max(1.0, std::abs(expected[i]));
    if (std::isfinite(error)) most = std::max(most, error);
  }
  return kFactor * most;
}

/// How far beyond its limit the worst head of a token row is: above 1 is suspicious.
struct Suspicion {
  std::int32_t row = 0;
  std::size_t request = 0;
  double excess = 0;
};

double lse_at(const PipelineOutput& output, std::int64_t head, std::int32_t row) {
  return output.lse->at(head * output.lse->dim(1) + row);
}

/// Every suspicious token row that was not checked, the worst first.
class Suspects {
 public:
  /// `reference`: the table of the checked rows.
  Suspects(const ScreenedTrial& trial, const ScreenTable& table, const ScreenTable& reference)
      : trial_(trial),
        tokens_(trial.problem),
        slack_(table.is_float64 ? Slack() : Slack(table, reference)),
        output_limits_(output_limits(trial, tokens_.batch()), *trial.checked.reference,
                       tokens_.batch(), slack_.output) {
    if (trial.output.lse) {
      lse_limits_.emplace(lse_limits(trial, tokens_.batch()), *trial.checked.reference,
                          tokens_.batch(), slack_.lse);
      lse_growth_ = lse_growth(trial);
    }
    std::vector<Suspicion> unchecked;
    unchecked.reserve(table.rows.size());
    std::vector<std::size_t> places;  // of these in the table
    places.reserve(table.rows.size());
    std::size_t request = 0;
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
      const std::int32_t row = table.rows[i];
      while (row >= tokens_.query_start_loc[request + 1]) ++request;
      if (place_of(reference.rows, row)) continue;
      unchecked.push_back({row, request, 0});
      places.push_back(i);
    }
    for_each_chunk(std::ssize(unchecked), 256, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        unchecked[i].excess = excess_of(table, places[i], unchecked[i].request);
      }
    });
    for (const Suspicion& suspicion : unchecked) {
      if (!(suspicion.excess <= 1)) found_.push_back(suspicion);
    }
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Suspicion& a, const Suspicion& b) { return a.excess > b.excess; });
  }

  const std::vector<Suspicion>& found() const { return found_; }

  /// As many as are affordable, ascending.
  std::vector<std::int32_t> to_check() const {
    const AttentionSpec& a = trial_.problem.attention;
    std::vector<std::int32_t> rows;
    double flops = 0;
    for (const Suspicion& suspicion : found_) {
      flops +=
          2.0 * a.num_heads * (a.head_size + a.v_head_size) * tokens_.seq_lens[suspicion.request];
      const bool affordable = flops <= kRecheckFlops || rows.size() < kLeastRechecked;
      if (!affordable || rows.size() >= kMostRechecked) break;
      rows.push_back(suspicion.row);
    }
    std::sort(rows.begin(), rows.end());
    return rows;
  }

 private:
  double excess_of(const ScreenTable& table, std::size_t place, std::size_t request) const {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const auto columns = static_cast<double>(trial_.output.output.dim(2));
    double most = 0;
    for (std::int64_t head = 0; head < table.num_heads; ++head) {
      const ScreenedRow& row = table.at(place, head);
      if (row.misplaced > 0) return kInfinity;
      const double limit = output_limits_.of(request);
      const double error = row.size > 0 ? row.error / row.size : row.error;
      // An element may be eight times as far out as the elements of a row at its limit are.
      const double element = row.size > 0 ? row.largest / row.size * std::sqrt(columns) / 8 : 0;
      most = std::max(most, excess(std::max(error, element), limit));
      if (lse_limits_) {
        const double actual = lse_at(trial_.output, head, table.rows[place]);
        const bool same = actual == row.lse || (std::isnan(actual) && std::isnan(row.lse));
        const double limit_of_lse =
            std::max(lse_limits_->of(request), lse_growth_ * std::abs(row.lse));
        if (!same) most = std::max(most, excess(std::abs(actual - row.lse), limit_of_lse));
      }
      if (std::isnan(most)) return kInfinity;
    }
    return most;
  }
  static double excess(double error, double limit) {
    if (!std::isfinite(error)) return std::numeric_limits<double>::infinity();
    if (limit > 0) return error / limit;
    return error > 0 ? std::numeric_limits<double>::infinity() : 0;
  }

  const ScreenedTrial& trial_;
  RowsOfBatch tokens_;
  Slack slack_;
  RequestLimits output_limits_;
  std::optional<RequestLimits> lse_limits_;
  double lse_growth_ = 0;
  std::vector<Suspicion> found_;
};

std::string unchecked_suspects(const std::vector<Suspicion>& found, std::size_t checked) {
  if (found.size() <= checked) return "";
  std::set<std::size_t> requests;
  for (const Suspicion& suspicion : found) requests.insert(suspicion.request);
  return fmt::format(
      "screening finds {} rows of {} requests as suspicious, of which {} were judged", found.size(),
      requests.size(), checked);
}

/// The results of some of the rows.
ReferenceOutput rows_of(const ReferenceOutput& all, const std::vector<std::int32_t>& rows) {
  ReferenceOutput part;
  part.rows = rows;
  part.num_heads = all.num_heads;
  part.v_head_size = all.v_head_size;
  const auto width =
      static_cast<std::size_t>(all.num_heads) * static_cast<std::size_t>(all.v_head_size);
  for (const std::int32_t row : rows) {
    const auto first = static_cast<std::ptrdiff_t>(*place_of(all.rows, row) * width);
    part.output.insert(part.output.end(), all.output.begin() + first,
                       all.output.begin() + first + static_cast<std::ptrdiff_t>(width));
  }
  for (std::size_t head = 0; head < static_cast<std::size_t>(all.num_heads); ++head) {
    for (const std::int32_t row : rows) {
      part.lse.push_back(all.lse[head * all.rows.size() + *place_of(all.rows, row)]);
    }
  }
  return part;
}

/// err_ratio of rows that do not depend on the draw.
void set_err_ratio(const ScreenedTrial& trial, Judgement& judgement) {
  if (trial.sample.repeated.size() == trial.sample.rows.size()) return;
  const ReferenceOutput reference = rows_of(*trial.checked.reference, trial.sample.repeated);
  const ReferenceOutput emulation = rows_of(*trial.checked.emulation, trial.sample.repeated);
  const Tolerance output = output_tolerance(tolerance_query(trial.problem, trial.numerics));
  judgement.error.err_ratio =
      compare({&trial.output.output, reference.output, emulation.output, reference.rows, false},
              output)
          .stats.err_ratio;
  if (!judgement.lse_error) return;
  const Tolerance lse = lse_tolerance(trial.problem.attention.dtype,
                                      trial.problem.attention.type == AttentionType::kMla);
  judgement.lse_error->err_ratio =
      compare({&*trial.output.lse, reference.lse, emulation.lse, reference.rows, true}, lse)
          .stats.err_ratio;
}

/// What the whole batch has lost, where a table has all of it.
void set_totals(const ScreenedTrial& trial, const ScreenTable& table, Judgement& judgement) {
  double errors = 0;
  double expected = 0;
  for (const ScreenedRow& row : table.of) {
    errors += row.error * row.error;
    expected += row.expected * row.expected;
  }
  // In float32 the table's own error would be seen in that of a float32 output.
  const bool is_exact = table.is_float64 || trial.output.output.dtype() != Dtype::kF32;
  const bool is_quantised = trial.output.output.dtype() == Dtype::kE4M3;
  if (is_exact && !is_quantised && expected > 0) {
    judgement.error.nmse = errors / expected;
    judgement.error.rms_rel = std::sqrt(judgement.error.nmse);
  }
  if (!judgement.lse_error || !table.is_float64) return;
  errors = expected = 0;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    for (std::int64_t head = 0; head < table.num_heads; ++head) {
      const double r = table.at(i, head).lse;
      const double a = lse_at(trial.output, head, table.rows[i]);
      if (!std::isfinite(r) || !std::isfinite(a)) continue;
      errors += (a - r) * (a - r);
      expected += r * r;
    }
  }
  if (expected <= 0) return;
  judgement.lse_error->nmse = errors / expected;
  judgement.lse_error->rms_rel = std::sqrt(judgement.lse_error->nmse);
}

/// Overwrites the rows and heads of `part` where they err more than what is there: the rows of
/// other heads are inside by the emulation that they have been judged by, and stay so.
void replace(const ReferenceOutput& part, const std::vector<int>& heads,
             const ReferenceOutput& reference, ReferenceOutput& whole) {
  const auto distance = [&](const std::vector<double>& values, std::ptrdiff_t from,
                            std::ptrdiff_t at) {
    double square = 0;
    for (std::ptrdiff_t v = 0; v < whole.v_head_size; ++v) {
      const double error = values[static_cast<std::size_t>(from + v)] -
                           reference.output[static_cast<std::size_t>(at + v)];
      square += error * error;
    }
    return square;
  };
  const auto width = static_cast<std::size_t>(whole.v_head_size);
  const auto num_heads = static_cast<std::size_t>(whole.num_heads);
  for (std::size_t i = 0; i < part.rows.size(); ++i) {
    const std::size_t row = place_of(whole.rows, part.rows[i]).value();
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const auto head = static_cast<std::size_t>(heads[h]);
      const auto from = static_cast<std::ptrdiff_t>((i * heads.size() + h) * width);
      const auto to = static_cast<std::ptrdiff_t>((row * num_heads + head) * width);
      if (distance(part.output, from, to) > distance(whole.output, to, to)) {
        std::copy_n(part.output.begin() + from, width, whole.output.begin() + to);
      }
      double& lse = whole.lse[head * whole.rows.size() + row];
      const double expected = reference.lse[head * whole.rows.size() + row];
      const double again = part.lse[h * part.rows.size() + i];
      if (std::abs(again - expected) > std::abs(lse - expected)) lse = again;
    }
  }
}

/// Overwrites a head of a row, both of which `part` has as well, by what it is there.
void take_head(const ReferenceOutput& part, std::int32_t row, int head, ReferenceOutput& whole) {
  const std::size_t from = *place_of(part.rows, row);
  const std::size_t to = *place_of(whole.rows, row);
  const auto h = static_cast<std::size_t>(head);
  const auto heads = static_cast<std::size_t>(whole.num_heads);
  const auto width = static_cast<std::size_t>(whole.v_head_size);
  std::copy_n(part.output.begin() + static_cast<std::ptrdiff_t>((from * heads + h) * width), width,
              whole.output.begin() + static_cast<std::ptrdiff_t>((to * heads + h) * width));
  for (const auto values :
       {&ReferenceOutput::row_size, &ReferenceOutput::output_loss, &ReferenceOutput::lse_loss}) {
    if ((whole.*values).empty()) continue;
    (whole.*values)[to * heads + h] = (part.*values)[from * heads + h];
  }
  whole.lse[h * whole.rows.size() + to] = part.lse[h * part.rows.size() + from];
}

/// How far an output is from what is expected of a head of a row.
double distance(const Tensor& output, const ReferenceOutput& expected, std::int32_t row, int head) {
  const std::int64_t width = expected.v_head_size;
  const auto place = static_cast<std::int64_t>(*place_of(expected.rows, row));
  double square = 0;
  for (std::int64_t v = 0; v < width; ++v) {
    const double error =
        output.at((row * expected.num_heads + head) * width + v) -
        expected.output[static_cast<std::size_t>((place * expected.num_heads + head) * width + v)];
    square += error * error;
  }
  return square;
}

/// judge() once more, with those references by other codes that the output of each row and head is
/// closest to.
std::optional<Judgement> judge_by_other_codes(const ScreenedTrial& trial,
                                              const Yardsticks& yardsticks,
                                              const Judgement& judgement) {
  const OutsideRows outside = outside_rows(trial.problem, trial.numerics, trial.output, yardsticks);
  if (outside.rows.empty() || outside.rows.size() > kMostOtherCodes) return judgement;
  const auto others = trial.other_codes(outside.rows, outside.heads);
  if (!others) return std::nullopt;
  ReferenceOutput reference = *yardsticks.reference;
  ReferenceOutput emulation = *yardsticks.emulation;
  for (const std::int32_t row : outside.rows) {
    for (const int head : outside.heads) {
      const OwnedYardsticks* closest = nullptr;
      double least = distance(trial.output.output, *yardsticks.reference, row, head);
      for (const OwnedYardsticks& other : *others) {
        if (!place_of(other.reference.rows, row)) continue;
        const double error = distance(trial.output.output, other.reference, row, head);
        if (!(error < least)) continue;
        least = error;
        closest = &other;
      }
      if (closest == nullptr) continue;
      take_head(closest->reference, row, head, reference);
      take_head(closest->emulation, row, head, emulation);
    }
  }
  Yardsticks closer = yardsticks;
  closer.reference = &reference;
  closer.emulation = &emulation;
  return judge(trial.problem, trial.numerics, trial.output, closer);
}

/// judge(); what is outside of limits by an emulation in another form than the kernel's is judged
/// by the kernel's own. The errors of two forms are as large on average, but those of a row are
/// independent: where one key has most of the weight, the ratio of the two has no bound. What is
/// still outside is judged by other codes.
std::optional<Judgement> judge_closely(const ScreenedTrial& trial, const Yardsticks& yardsticks) {
  Judgement judgement = judge(trial.problem, trial.numerics, trial.output, yardsticks);
  ReferenceOutput emulation;
  Yardsticks closer = yardsticks;
  if (!judgement.reasons.empty() && trial.emulate_as_run) {
    const OutsideRows outside =
        outside_rows(trial.problem, trial.numerics, trial.output, yardsticks);
    // More are no accident, and expanding their keys takes its time.
    if (outside.rows.empty() || outside.rows.size() > kMostEmulatedAgain) return judgement;
    const std::optional<ReferenceOutput> as_run = trial.emulate_as_run(outside.rows, outside.heads);
    if (!as_run) return std::nullopt;
    if (!as_run->rows.empty()) {
      emulation = *yardsticks.emulation;
      replace(*as_run, outside.heads, *yardsticks.reference, emulation);
      closer.emulation = &emulation;
      judgement = judge(trial.problem, trial.numerics, trial.output, closer);
    }
  }
  if (judgement.reasons.empty() || !trial.other_codes) return judgement;
  return judge_by_other_codes(trial, closer, judgement);
}

std::optional<Judgement> judge_with(const ScreenedTrial& trial,
                                    const std::vector<std::int32_t>& suspects,
                                    const YardsticksOf& yardsticks_of) {
  const std::optional<OwnedYardsticks> more = yardsticks_of(suspects);
  if (!more) return std::nullopt;
  const ReferenceOutput reference = join_rows(*trial.checked.reference, more->reference);
  const ReferenceOutput emulation = join_rows(*trial.checked.emulation, more->emulation);
  Yardsticks all{&reference, &emulation, nullptr};
  ReferenceOutput unquantised;
  if (trial.checked.unquantised != nullptr && more->unquantised) {
    unquantised = join_rows(*trial.checked.unquantised, *more->unquantised);
    all.unquantised = &unquantised;
  }
  return judge_closely(trial, all);
}

}  // namespace

ScreenedOutput screened_output(const Problem& problem, const Tensor& output) {
  return {&output, output.dtype() == Dtype::kE4M3 ? problem.output_quant.scale : 0.0};
}

std::string screening_disagrees(const ScreenTable& screened, const ScreenTable& reference) {
  std::string first;
  for_common_rows(
      screened, reference,
      [&](const ScreenedRow& a, const ScreenedRow& b, std::int32_t row, std::int64_t head) {
        const double scores = 1 + (std::isfinite(b.lse) ? std::abs(b.lse) : 0.0);
        // A row with NaN or infinities is left to the reference as it is.
        const bool same =
            b.misplaced > 0 || (agree(a.error, b.error, scores * (b.size + b.error)) &&
                                agree(a.expected, b.expected, scores * b.size) &&
                                agree(a.lse, b.lse, scores) && a.misplaced == 0);
        if (same || !first.empty()) return;
        first = fmt::format(
            "row {}, head {}: error {} and {}, norm {} and {}, LSE {} and {}, {} elements out of "
            "place",
            row, head, a.error, b.error, a.expected, b.expected, a.lse, b.lse, a.misplaced);
      });
  return first;
}

void check_agreement(const ScreenTable& screened, const ScreenTable& reference) {
  if (!screened.is_float64) return;
  const std::string wrong = screening_disagrees(screened, reference);
  if (!wrong.empty())
    fail(ErrorKind::kInternal, "screening disagrees with the reference: {}", wrong);
}

std::vector<std::int32_t> suspicious_rows(const ScreenedTrial& trial, const ScreenTable& table) {
  return Suspects(trial, table, ScreenTable{}).to_check();
}

ReferenceOutput join_rows(const ReferenceOutput& a, const ReferenceOutput& b) {
  const std::size_t count = a.rows.size() + b.rows.size();
  std::vector<std::size_t> order(count);  // places in a, then in b, by their rows
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto row_at = [&](std::size_t i) {
    return i < a.rows.size() ? a.rows[i] : b.rows[i - a.rows.size()];
  };
  std::sort(order.begin(), order.end(),
            [&](std::size_t i, std::size_t j) { return row_at(i) < row_at(j); });

  ReferenceOutput joined;
  joined.num_heads = a.num_heads;
  joined.v_head_size = a.v_head_size;
  const auto heads = static_cast<std::size_t>(a.num_heads);
  /// `width` values for each row.
  const auto append = [&](std::vector<double> ReferenceOutput::*values, std::size_t width,
                          std::size_t i) {
    const bool is_first = i < a.rows.size();
    const std::vector<double>& from = is_first ? a.*values : b.*values;
    if (from.empty()) return;
    const auto first = static_cast<std::ptrdiff_t>((is_first ? i : i - a.rows.size()) * width);
    (joined.*values)
        .insert((joined.*values).end(), from.begin() + first,
                from.begin() + first + static_cast<std::ptrdiff_t>(width));
  };
  for (const std::size_t i : order) {
    joined.rows.push_back(row_at(i));
    append(&ReferenceOutput::output, heads * static_cast<std::size_t>(a.v_head_size), i);
    for (const auto values :
         {&ReferenceOutput::row_size, &ReferenceOutput::output_loss, &ReferenceOutput::lse_loss}) {
      append(values, heads, i);
    }
  }
  for (std::size_t head = 0; head < heads; ++head) {
    for (const std::size_t i : order) {
      const bool is_first = i < a.rows.size();
      const ReferenceOutput& from = is_first ? a : b;
      joined.lse.push_back(from.lse[head * from.rows.size() + (is_first ? i : i - a.rows.size())]);
    }
  }
  return joined;
}

std::optional<Judgement> judge_screened(const ScreenedTrial& trial, const ScreenTable* table,
                                        const YardsticksOf& yardsticks_of) {
  std::optional<Suspects> suspects;
  std::vector<std::int32_t> suspicious;
  if (table != nullptr) {
    const ScreenTable reference = screen_by(*trial.checked.reference, output_of(trial));
    check_agreement(*table, reference);
    suspicious = suspects.emplace(trial, *table, reference).to_check();
  }
  std::optional<Judgement> judged = suspicious.empty()
                                        ? judge_closely(trial, trial.checked)
                                        : judge_with(trial, suspicious, yardsticks_of);
  if (!judged) return std::nullopt;
  Judgement judgement = *std::move(judged);
  if (!suspicious.empty()) {
    const std::string more = unchecked_suspects(suspects->found(), suspicious.size());
    if (!judgement.reasons.empty() && !more.empty()) judgement.reasons.push_back(more);
  }
  if (table != nullptr) set_totals(trial, *table, judgement);
  set_err_ratio(trial, judgement);
  // Every row that either has seen.
  std::vector<std::int32_t> seen = trial.sample.rows;
  if (table != nullptr) seen.insert(seen.end(), table->rows.begin(), table->rows.end());
  std::sort(seen.begin(), seen.end());
  judgement.error.screened_rows = std::unique(seen.begin(), seen.end()) - seen.begin();
  return judgement;
}

}  // namespace attnbench
