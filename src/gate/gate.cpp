#include "gate/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>

#include "core/error.h"
#include "gate/belief.h"
#include "gate/foreign.h"
#include "gate/judge_time.h"
#include "gate/statistics.h"

namespace attnbench {
namespace {

constexpr std::size_t kShownReasons = 5;

bool is_wrong(Status status) {
  return status == Status::kIncorrect || status == Status::kImplausible || status == Status::kError;
}

constexpr std::string_view kLse = "LSE ";
/// Rows nearer to zero error than this are not told apart: a quarter of what is allowed.
constexpr double kLeastRowShare = 0.25;
/// Of the rows that were checked in the baseline, where both checked a sample.
constexpr double kSteadyShare = 0.9;

/// Of the row nearest to its limit; NaN where rows were not judged one by one.
double row_share(const ErrorStats& error) {
  return error.row_limit > 0 ? error.row_error / error.row_limit
                             : std::numeric_limits<double>::quiet_NaN();
}

/// Whether both were checked in the same rows: in all of them, or drawn with the same seed.
bool has_same_rows(const Result& before, const Result& after) {
  const auto has_all = [](const Result& result) {
    return !result.error || result.error->checked_rows == result.error->total_rows;
  };
  return (has_all(before) && has_all(after)) || before.sample_seed == after.sample_seed;
}

/// Two threads on one core wait for half of the time, and with six programs a core every sample may
/// wait for this share; beyond it nothing is left that could be called the time of the program.
constexpr double kMostWait = 0.85;

/// The least share of a sample that its threads waited, 0 where that is not known.
double least_wait(const Timing& timing) {
  if (!has_waits(timing)) return 0;
  double least = 1;
  for (std::size_t i = 0; i < timing.waits_us.size(); ++i) {
    least = std::min(least, timing.waits_us[i] / timing.samples_us[i]);
  }
  return least;
}

/// By how much two samples of rows may differ by chance, relative: the error of a row is spread by
/// no more than its mean, and three standard errors are 3 sqrt(2 / rows).
double sampling_chance(const ErrorStats& before, const ErrorStats& after) {
  const auto rows = static_cast<double>(std::min(before.checked_rows, after.checked_rows));
  return rows > 0 ? 3 * std::sqrt(2 / rows) : 0;
}

/// The limit of the row nearest to it may be another row's, which honest rounding costs more: of
/// right kernels it stays below this many times that of another run (docs/gate.md).
constexpr double kWiderLimit = 2;

/// By which other rule it was decided, or how much wider the limit is than a right kernel's can
/// become; "" when neither. A baseline whose rows had no limits was decided by the whole batch.
std::string looser_limit(const std::string& name, const ErrorStats& before,
                         const ErrorStats& after) {
  const bool had_rows = std::isfinite(before.row_limit);
  if (had_rows && !std::isfinite(after.row_limit)) {
    return fmt::format("{}.row_limit is missing in the results", name);
  }
  const bool by_rows_now = !had_rows && std::isfinite(after.row_limit);
  if (!before.rule.empty() && before.rule != after.rule && !by_rows_now) {
    return fmt::format("{}.rule: '{}' in the baseline, '{}' in the results", name, before.rule,
                       after.rule);
  }
  if (had_rows && after.row_limit > kWiderLimit * before.row_limit) {
    return fmt::format("{}.row_limit: {:.3g} in the baseline, {:.3g} in the results", name,
                       before.row_limit, after.row_limit);
  }
  return "";
}

struct Limits {
  TimeLimits time;
  double accuracy;
};

/// Says by how much a metric got worse, when that is more than the threshold; else "".
std::string worsening(const std::string& what, Better better, double before, double after,
                      double threshold, double floor) {
  if (!std::isfinite(before) || !std::isfinite(after)) return "";
  const bool may_grow = better == Better::kMore;
  const double good = may_grow ? after : before;
  const double bad = may_grow ? before : after;
  if (bad <= std::max(good, floor) * (1 + threshold)) return "";
  return fmt::format("{} {:.3g} -> {:.3g} {} past the threshold {:.3g}%", what, before, after,
                     may_grow ? "fell" : "grew", 100 * threshold);
}

/// The first of the rows that the gate judges which got worse; "" when none did or a side has no
/// such part.
template <typename Part>
std::string first_loss(std::string_view of, const std::vector<const MetricRow<Part>*>& gated,
                       const std::optional<Part>& before, const std::optional<Part>& after,
                       double threshold) {
  if (!before || !after) return "";
  for (const MetricRow<Part>* row : gated) {
    const double floor = of.ends_with(kLse) ? row->gate->lse_floor : row->gate->floor;
    std::string text =
        worsening(fmt::format("{}{}", of, row->gate->label), row->better, number_of(*row, *before),
                  number_of(*row, *after), threshold, floor);
    if (!text.empty()) return text;
  }
  return "";
}

class Judge {
 public:
  Judge(const ResultFile& baseline, const ResultFile& results, const GateOptions& options)
      : baseline_(baseline),
        options_(options),
        round_error_(
            std::hypot(usual_round_error(baseline.results), usual_round_error(results.results))) {}

  Verdict compare(const Result& before, const Result& after) const {
    Verdict verdict;
    verdict.id = after.id;
    verdict.repro = after.repro;
    if (before.timing) verdict.old_us = before.timing->median_us;
    if (after.timing) verdict.new_us = after.timing->median_us;
    if (status_rank(before.status) != 0 || status_rank(after.status) != 0) {
      compare_status(before, after, verdict);
    } else {
      compare_figures(before, after, verdict);
    }
    return verdict;
  }

  static Verdict missing(const Result& before, std::string_view why) {
    Verdict verdict;
    verdict.id = before.id;
    verdict.kind = VerdictKind::kMissing;
    if (before.timing) verdict.old_us = before.timing->median_us;
    verdict.rule = why;
    verdict.repro = before.repro;
    return verdict;
  }

  static Verdict added(const Result& after) {
    Verdict verdict;
    verdict.id = after.id;
    verdict.kind = VerdictKind::kNew;
    if (after.timing) verdict.new_us = after.timing->median_us;
    verdict.rule = fmt::format("not in the baseline, {}", describe_status(after));
    verdict.repro = after.repro;
    verdict.fails = is_wrong(after.status);
    return verdict;
  }

 private:
  static std::string describe_status(const Result& result) {
    std::string text = to_string(result.status);
    if (result.status != Status::kPassed && !result.reasons.empty()) {
      text += ": " + result.reasons.front();
    }
    return text;
  }

  static void compare_status(const Result& before, const Result& after, Verdict& verdict) {
    const int old_rank = status_rank(before.status);
    const int new_rank = status_rank(after.status);
    verdict.kind = new_rank > old_rank ? VerdictKind::kBroken
                   : new_rank == 0     ? VerdictKind::kFixed
                                       : VerdictKind::kSame;
    verdict.rule =
        before.status == after.status
            ? fmt::format("{} in both", to_string(after.status))
            : fmt::format("status {} -> {}", to_string(before.status), describe_status(after));
  }

  void compare_figures(const Result& before, const Result& after, Verdict& verdict) const {
    const Limits limits = limits_of(after.id);
    std::string loss = accuracy_loss(before, after, limits.accuracy);
    if (!loss.empty()) {
      verdict.kind = VerdictKind::kLessAccurate;
    } else {
      loss = lost_check(before, after);
      if (!loss.empty()) verdict.kind = VerdictKind::kLessChecked;
    }
    verdict.rule = loss;
    if (!before.timing || !after.timing) {
      if (loss.empty()) compare_untimed(before, after, verdict);
      return;
    }
    for (const auto& [timing, where] :
         {std::pair{&*before.timing, "baseline"}, std::pair{&*after.timing, "results"}}) {
      const double share = least_wait(*timing);
      if (share <= kMostWait || !loss.empty()) continue;
      verdict.kind = options_.lenient ? VerdictKind::kAmbiguous : VerdictKind::kMissing;
      verdict.rule = fmt::format(
          "no time in the {}: waits_us are at least {:.0f}% of every sample, which leaves nothing "
          "to "
          "judge",
          where, 100 * share);
      return;
    }
    const bool same_l2 = before.timing->l2.empty() || before.timing->l2 == after.timing->l2;
    if (loss.empty() && !same_l2 && !options_.ignore_environment) {  // warm, and now cold
      verdict.kind = VerdictKind::kAmbiguous;
      verdict.rule = other_l2(*before.timing, *after.timing) + ": not compared";
      return;
    }
    TimeVerdict time =
        judge_time_and_cycles(*before.timing, *after.timing, is_compute_bound(after), limits.time);
    if (time.kind != VerdictKind::kSlower) {
      std::string cost = cost_loss(before, after, limits.time.threshold);
      if (!cost.empty()) time = {VerdictKind::kSlower, std::move(cost)};
    }
    if (loss.empty()) {
      verdict.kind = time.kind;
      verdict.rule = std::move(time.rule);
    } else if (time.kind == VerdictKind::kSlower) {
      verdict.rule += "; also SLOWER: " + time.rule;
    }
  }

  void compare_untimed(const Result& before, const Result& after, Verdict& verdict) const {
    const bool lost = before.timing && !after.timing;
    // Why a failure: without times nothing is slower, whatever became of the program.
    verdict.kind = !lost              ? VerdictKind::kSame
                   : options_.lenient ? VerdictKind::kAmbiguous
                                      : VerdictKind::kMissing;
    verdict.rule = lost            ? "timed in the baseline, no timing in the results"
                   : !after.timing ? "same status and accuracy, not timed"
                                   : "no timing in the baseline";
  }

  static bool is_compute_bound(const Result& result) {
    return result.throughput && result.throughput->bound == "compute";
  }

  Limits limits_of(const std::string& id) const {
    Limits limits{{options_.threshold, options_.floor_us, std::nullopt, round_error_},
                  options_.accuracy_threshold};
    for (const ThresholdRule& rule : options_.rules) {
      if (!rule.id.matches(id)) continue;
      limits.time.threshold = rule.threshold.value_or(limits.time.threshold);
      limits.time.floor_us = rule.floor_us.value_or(limits.time.floor_us);
      limits.accuracy = rule.accuracy_threshold.value_or(limits.accuracy);
    }
    if (const auto& floor = baseline_.run.noise_floor) {
      const auto own = floor->cases.find(id);
      limits.time.noise_floor =
          std::max(floor->all_cases, own == floor->cases.end() ? 0.0 : own->second);
    }
    return limits;
  }

  /// What got worse beyond the threshold, for output, LSE, then what quantising cost (a scale file
  /// may have become worse); empty when nothing did.
  std::string accuracy_loss(const Result& before, const Result& after, double threshold) const {
    const bool same_rows = has_same_rows(before, after);
    const auto loss_of = [&](std::string_view of, std::optional<ErrorStats> Result::*part) {
      return error_loss(of, before.*part, after.*part, same_rows, threshold);
    };
    std::string loss = loss_of("", &Result::error);
    if (loss.empty()) loss = loss_of(kLse, &Result::lse_error);
    // Another draw is no reason for another error, so its seed is not compared.
    if (loss.empty()) loss = loss_of("probe ", &Result::probe_error);
    if (loss.empty()) loss = loss_of("probe LSE ", &Result::probe_lse_error);
    // First, and beside the others: scales that clip change those, too, by far less.
    const std::string cost = loss_of("quantization ", &Result::quantization_error);
    if (cost.empty()) return loss;
    return loss.empty() ? cost : fmt::format("{}; {}", cost, loss);
  }

  /// The same of one comparison with the reference. Of other rows the largest error of all is
  /// another one by chance: there the row nearest to its limit stands for it, as its share of that,
  /// and the NMSE has to grow by what a sample of so many rows varies, too.
  std::string error_loss(std::string_view of, const std::optional<ErrorStats>& before,
                         const std::optional<ErrorStats>& after, bool same_rows,
                         double threshold) const {
    if (!before || !after) return "";
    std::string loss = worsening(fmt::format("{}row_error / row_limit", of), Better::kLess,
                                 row_share(*before), row_share(*after), threshold, kLeastRowShare);
    if (!loss.empty()) return loss;
    const bool has_rows = std::isfinite(row_share(*before)) && std::isfinite(row_share(*after));
    // Of an LSE the ratio is that of two draws of float32's last digits.
    const bool is_lse = of.find("LSE") != std::string_view::npos;
    std::vector<const MetricRow<ErrorStats>*> left = errors_;
    if (has_rows && (is_lse || !same_rows)) {
      std::erase_if(left,
                    [](const auto* row) { return std::string_view(row->name) == "err_ratio"; });
    }
    if (same_rows) return first_loss(of, left, before, after, threshold);
    const double chance = sampling_chance(*before, *after);
    const double wide = (1 + threshold) * (1 + chance) - 1;
    loss = first_loss(of, left, before, after, wide);
    return loss.empty() ? "" : loss + ", other rows than in the baseline";
  }

  /// What the baseline compared and the results did not, in words with both values; empty when
  /// nothing is lost. Results that nobody compared are the concern of refuse_unverified().
  std::string lost_check(const Result& before, const Result& after) const {
    if (before.status != Status::kPassed || after.status != Status::kPassed) return "";
    const std::pair<const char*, std::optional<ErrorStats> Result::*> parts[] = {
        {"error", &Result::error},
        {"lse_error", &Result::lse_error},
        {"probe_error", &Result::probe_error},
        {"probe_lse_error", &Result::probe_lse_error},
        {"quantization_error", &Result::quantization_error}};
    for (const auto& [name, part] : parts) {
      if ((before.*part) && !(after.*part))
        return fmt::format("{} is missing in the results", name);
      if (!(before.*part)) continue;
      std::string lost = lost_of_error(name, *(before.*part), *(after.*part));
      if (!lost.empty()) return lost;
    }
    std::string lost = lost_rank(before, after);
    if (!lost.empty()) return lost;
    if (before.timing && after.timing && has_clocks(*before.timing) && !has_clocks(*after.timing)) {
      return "timing.samples_sm_mhz is missing in the results";
    }
    if (before.timing && after.timing && !before.timing->checked_samples.empty() &&
        after.timing->checked_samples.empty()) {
      return "timing.checked_samples is missing in the results";
    }
    if (before.timing && after.timing && !options_.ignore_environment) {
      lost = less_timed(*before.timing, *after.timing);
      if (!lost.empty()) return lost;
    }
    if (before.batch_invariance && !after.batch_invariance) {
      return "batch_invariance is missing in the results";
    }
    if (before.throughput && after.timing && !after.throughput) {
      return "throughput is missing in the results";
    }
    const auto has_physics = [](const Result& result) {
      return result.throughput && result.throughput->by_name.contains("physics_pct");
    };
    // On a CPU it takes a quiet moment.
    const bool on_gpu = after.device.starts_with("cuda");
    if (on_gpu && has_physics(before) && after.throughput && !has_physics(after)) {
      return "throughput.physics_pct is missing in the results";
    }
    return new_blindness(before, after);
  }

  std::string lost_rank(const Result& before, const Result& after) const {
    if (after.rank_errors.size() < before.rank_errors.size()) {
      return fmt::format("rank_errors: {} ranks in the baseline, {} in the results",
                         before.rank_errors.size(), after.rank_errors.size());
    }
    for (std::size_t i = 0; i < before.rank_errors.size(); ++i) {
      const std::string part = fmt::format("rank_errors[{}]", i);
      std::string lost =
          lost_of_error(part + ".error", before.rank_errors[i].error, after.rank_errors[i].error);
      if (lost.empty()) {
        lost = lost_of_error(part + ".lse_error", before.rank_errors[i].lse_error,
                             after.rank_errors[i].lse_error);
      }
      if (!lost.empty()) return lost;
    }
    return "";
  }

  /// Rows, and the numbers that the gate judges: one that is no longer there cannot grow.
  std::string lost_of_error(const std::string& name, const ErrorStats& before,
                            const ErrorStats& after) const {
    for (const MetricRow<ErrorStats>* row : errors_) {
      if (std::isfinite(number_of(*row, before)) && !std::isfinite(number_of(*row, after))) {
        return fmt::format("{}.{} is missing in the results", name, row->name);
      }
    }
    std::string fewer = fewer_rows(name, before, after);
    return fewer.empty() ? looser_limit(name, before, after) : fewer;
  }

  static std::string fewer_rows(const std::string& name, const ErrorStats& before,
                                const ErrorStats& after) {
    const auto fewer = [&](const char* field, std::int64_t old_rows, std::int64_t new_rows) {
      return fmt::format("{}.{}: {} in the baseline, {} in the results", name, field, old_rows,
                         new_rows);
    };
    if (after.total_rows < before.total_rows) {
      return fewer("total_rows", before.total_rows, after.total_rows);
    }
    // Why a part: beside the sample those rows are checked that screening found odd.
    const bool sampled =
        after.checked_rows < after.total_rows && before.checked_rows < before.total_rows;
    const bool sampled_alike =
        sampled && static_cast<double>(after.checked_rows) >=
                       kSteadyShare * static_cast<double>(before.checked_rows);
    if (after.checked_rows < before.checked_rows && !sampled_alike) {
      return fewer("checked_rows", before.checked_rows, after.checked_rows);
    }
    // Of a part, whose rows are drawn, the number differs from run to run.
    const bool part =
        after.screened_rows < after.total_rows && before.screened_rows < before.total_rows;
    const bool part_alike = part && static_cast<double>(after.screened_rows) >=
                                        kSteadyShare * static_cast<double>(before.screened_rows);
    if (after.screened_rows < before.screened_rows && !part_alike) {
      return fewer("screened_rows", before.screened_rows, after.screened_rows);
    }
    return "";
  }

  static std::string new_blindness(const Result& before, const Result& after) {
    if (!before.blind_to) return "";
    if (!after.blind_to) return "blind_to is missing in the results";
    for (const std::string& mistake : *after.blind_to) {
      const auto& known = *before.blind_to;
      if (std::find(known.begin(), known.end(), mistake) != known.end()) continue;
      return fmt::format("blind_to: '{}' in the results, not in the baseline", mistake);
    }
    return "";
  }

  /// The same of what was measured beside the median, which judge_time knows from its samples.
  std::string cost_loss(const Result& before, const Result& after, double threshold) const {
    std::string loss = first_loss("", timings_, before.timing, after.timing, threshold);
    if (!loss.empty()) return loss;
    return first_loss("", throughputs_, before.throughput, after.throughput, threshold);
  }

  const ResultFile& baseline_;
  const GateOptions& options_;
  const double round_error_;
  const std::vector<const MetricRow<ErrorStats>*> errors_ = gated_rows(options_.metrics->error);
  const std::vector<const MetricRow<Timing>*> timings_ = gated_rows(options_.metrics->timing);
  const std::vector<const MetricRow<Throughput>*> throughputs_ =
      gated_rows(options_.metrics->throughput);
};

[[noreturn]] void refuse(const std::vector<std::string>& reasons, const ResultFile& baseline) {
  std::string text;
  for (std::size_t i = 0; i < std::min(reasons.size(), kShownReasons); ++i) {
    text += "\n  " + reasons[i];
  }
  if (reasons.size() > kShownReasons) {
    text += fmt::format("\n  and {} more", reasons.size() - kShownReasons);
  }
  fail(ErrorKind::kUsage,
       "{}: the baseline does not fit the results (--ignore-environment compares anyway):{}",
       baseline.path, text);
}

void refuse_unverified(const ResultFile& file) {
  for (const Result& result : file.results) {
    if (result.status != Status::kUnverified) continue;
    fail(ErrorKind::kUsage,
         "{}: '{}' is unverified: a fast wrong result is no result (--lenient takes it)", file.path,
         result.id);
  }
}

bool is_there(const Result& result) { return result.status != Status::kSkipped; }

void judge_cases(const ResultFile& baseline, const ResultFile& results, const Judge& judge,
                 std::vector<Verdict>& verdicts) {
  std::map<std::string_view, const Result*> old;
  for (const Result& before : baseline.results) {
    if (is_there(before)) old[before.id] = &before;
  }
  std::map<std::string_view, const Result*> current;
  for (const Result& after : results.results) {
    current[after.id] = &after;
    if (!is_there(after)) continue;
    const auto before = old.find(after.id);
    verdicts.push_back(before == old.end() ? Judge::added(after)
                                           : judge.compare(*before->second, after));
  }
  for (const Result& before : baseline.results) {
    if (!is_there(before)) continue;
    const auto after = current.find(before.id);
    if (after == current.end()) {
      verdicts.push_back(Judge::missing(before, "in the baseline, not in the results"));
    } else if (!is_there(*after->second)) {
      verdicts.push_back(Judge::missing(before, "skipped in the results"));
    }
  }
}

bool fails_by_kind(VerdictKind kind, const GateOptions& options) {
  switch (kind) {
    case VerdictKind::kBroken:
    case VerdictKind::kLessAccurate:
    case VerdictKind::kLessChecked:
    case VerdictKind::kSlower:
      return true;
    case VerdictKind::kMissing:
      return !options.lenient;
    case VerdictKind::kAmbiguous:
      return options.fail_on_ambiguous;
    case VerdictKind::kFixed:
    case VerdictKind::kFaster:
      return options.fail_on_improvement;
    case VerdictKind::kNew:
    case VerdictKind::kSame:
      return false;
  }
  return false;
}

void apply_known(const GateOptions& options, Verdict& verdict) {
  const KnownFailure* known = find_known(options.known, verdict.id, options.today);
  if (known == nullptr) return;
  const bool expired = has_expired(*known, options.today);
  verdict.known = expired ? Known::kExpired : Known::kYes;
  verdict.known_text =
      fmt::format("{} ({} {})", known->reason, expired ? "expired" : "until", known->expires);
  verdict.fails = expired;
}

/// Entries that say nothing any more: left standing they would hide the next failure.
std::vector<std::string> idle_known(const GateOptions& options,
                                    const std::vector<Verdict>& verdicts) {
  std::vector<std::string> notices;
  for (const KnownFailure& known : options.known) {
    const bool used = std::any_of(verdicts.begin(), verdicts.end(), [&](const Verdict& verdict) {
      return verdict.known != Known::kNo && known.id.matches(verdict.id);
    });
    if (!used) {
      notices.push_back(
          fmt::format("known failure '{}' matches nothing that fails; remove it", known.id.text));
    }
  }
  return notices;
}

/// What fails before what is known or passes, then by kind, then the largest slowdown first.
bool is_told_before(const Verdict& a, const Verdict& b) {
  if (a.fails != b.fails) return a.fails;
  if (a.kind != b.kind) return a.kind < b.kind;
  const auto ratio = [](const Verdict& verdict) {
    const double value = verdict.new_us / verdict.old_us;
    return std::isfinite(value) ? value : 0;
  };
  return ratio(a) > ratio(b);
}

}  // namespace

int status_rank(Status status) {
  switch (status) {
    case Status::kPassed:
    case Status::kUnverified:
      return 0;
    case Status::kUnsupported:
      return 1;
    case Status::kSkipped:
      return 2;
    case Status::kError:
      return 3;
    case Status::kImplausible:
      return 4;
    case Status::kIncorrect:
      return 5;
  }
  return 0;
}

GateReport judge_results(const ResultFile& baseline, const ResultFile& results,
                         const GateOptions& options) {
  refuse_contradictions(baseline);
  refuse_contradictions(results);
  if (!options.ignore_environment) {
    const std::vector<std::string> reasons = foreign_reasons(baseline, results);
    if (!reasons.empty()) refuse(reasons, baseline);
  }
  if (!options.lenient) {
    refuse_unverified(baseline);
    refuse_unverified(results);
  }
  GateReport report;
  judge_cases(baseline, results, Judge(baseline, results, options), report.verdicts);
  for (Verdict& verdict : report.verdicts) {
    verdict.fails = verdict.fails || fails_by_kind(verdict.kind, options);
    if (verdict.fails) apply_known(options, verdict);
  }
  report.notices = scale_differences(baseline, results);
  for (std::string& notice : idle_known(options, report.verdicts)) {
    report.notices.push_back(std::move(notice));
  }
  std::stable_sort(report.verdicts.begin(), report.verdicts.end(), is_told_before);
  return report;
}

}  // namespace attnbench
