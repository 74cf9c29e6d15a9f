#include "gate/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "core/error.h"
#include "gate/foreign.h"
#include "gate/judge_time.h"
#include "gate/statistics.h"

namespace attnbench {
namespace {

constexpr std::size_t kShownReasons = 5;

/// How bad a status is; the same for those between which nothing got worse.
int rank(Status status) {
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
    case Status::kIncorrect:
      return 4;
  }
  return 0;
}

bool is_wrong(Status status) { return status == Status::kIncorrect || status == Status::kError; }

constexpr std::string_view kLse = "LSE ";

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
    const double floor = of == kLse ? row->gate->lse_floor : row->gate->floor;
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
    if (rank(before.status) != 0 || rank(after.status) != 0) {
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
    const int old_rank = rank(before.status);
    const int new_rank = rank(after.status);
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
    const std::string loss = accuracy_loss(before, after, limits.accuracy);
    if (!loss.empty()) {
      verdict.kind = VerdictKind::kLessAccurate;
      verdict.rule = loss;
    }
    if (!before.timing || !after.timing) {
      if (!loss.empty()) return;
      const bool lost = before.timing && !after.timing;
      verdict.kind = lost ? VerdictKind::kAmbiguous : VerdictKind::kSame;
      verdict.rule = lost ? "no timing in the results" : "no timing in the baseline";
      if (!before.timing && !after.timing) verdict.rule = "same status and accuracy, not timed";
      return;
    }
    TimeVerdict time = judge_time(*before.timing, *after.timing, limits.time);
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
    std::string loss = first_loss("", errors_, before.error, after.error, threshold);
    if (loss.empty()) {
      loss = first_loss(kLse, errors_, before.lse_error, after.lse_error, threshold);
    }
    if (loss.empty()) {
      loss = first_loss("quantization ", errors_, before.quantization_error,
                        after.quantization_error, threshold);
    }
    return loss;
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
bool is_worse(const Verdict& a, const Verdict& b) {
  if (a.fails != b.fails) return a.fails;
  if (a.kind != b.kind) return a.kind < b.kind;
  const auto ratio = [](const Verdict& verdict) {
    const double value = verdict.new_us / verdict.old_us;
    return std::isfinite(value) ? value : 0;
  };
  return ratio(a) > ratio(b);
}

}  // namespace

GateReport judge_results(const ResultFile& baseline, const ResultFile& results,
                         const GateOptions& options) {
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
  std::stable_sort(report.verdicts.begin(), report.verdicts.end(), is_worse);
  return report;
}

}  // namespace attnbench
