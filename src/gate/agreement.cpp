#include "gate/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>

#include "core/error.h"
#include "gate/belief.h"
#include "gate/foreign.h"

namespace attnbench {
namespace {

constexpr double kLeastRatio = 0.1;
constexpr double kLeastRms = 1e-8;
/// The LSE is float32 whatever the output is, and a sum of exponentials that are good to some
/// 2^-22.
constexpr double kLeastLseRms = 1e-6;

/// How many times larger the larger is; 1 where neither is a number.
double factor_of(double a, double b, double least) {
  if (std::isfinite(a) != std::isfinite(b)) return std::numeric_limits<double>::infinity();
  if (!std::isfinite(a)) return 1;
  a = std::max(a, least);
  b = std::max(b, least);
  return std::max(a, b) / std::min(a, b);
}

AgreementSide side_of(const Result& result) {
  AgreementSide side;
  side.status = result.status;
  if (result.error) {
    side.err_ratio = result.error->err_ratio;
    side.nmse = result.error->nmse;
  }
  if (result.lse_error) {
    side.lse_err_ratio = result.lse_error->err_ratio;
    side.lse_nmse = result.lse_error->nmse;
  }
  return side;
}

/// Sets the largest factor, and what it is of.
void compare_errors(Agreement& agreement) {
  const AgreementSide& a = agreement.first;
  const AgreementSide& b = agreement.second;
  const auto take = [&](const char* figure, double factor) {
    if (factor <= agreement.factor) return;
    agreement.factor = factor;
    agreement.figure = figure;
  };
  take("err_ratio", factor_of(a.err_ratio, b.err_ratio, kLeastRatio));
  take("NMSE", factor_of(std::sqrt(a.nmse), std::sqrt(b.nmse), kLeastRms));
  // Why not below: of errors of an ulp or two chance decides which is the largest.
  if (std::sqrt(std::max(a.lse_nmse, b.lse_nmse)) > kLeastLseRms) {
    take("LSE err_ratio", factor_of(a.lse_err_ratio, b.lse_err_ratio, kLeastRatio));
  }
  take("LSE NMSE", factor_of(std::sqrt(a.lse_nmse), std::sqrt(b.lse_nmse), kLeastLseRms));
}

Agreement compare(const Result& first, const Result& second, const AgreementOptions& options) {
  Agreement agreement;
  agreement.id = first.id;
  agreement.first = side_of(first);
  agreement.second = side_of(second);
  const AgreementSide& a = agreement.first;
  const AgreementSide& b = agreement.second;
  compare_errors(agreement);
  if (a.status != b.status) {
    const std::vector<std::string>& reasons =
        second.reasons.empty() ? first.reasons : second.reasons;
    agreement.disagreement =
        fmt::format("status {} and {}{}", to_string(a.status), to_string(b.status),
                    reasons.empty() ? "" : ": " + reasons.front());
  } else if (a.status == Status::kUnverified && !options.lenient) {
    agreement.disagreement = "not validated on either device";
  } else if (!(agreement.factor <= options.allowed_factor)) {
    agreement.disagreement =
        fmt::format("errors {:.3g} times apart, more than {:.3g}, by {}", agreement.factor,
                    options.allowed_factor, agreement.figure);
  }
  return agreement;
}

using ById = std::map<std::string_view, const Result*>;

ById present(const ResultFile& file) {
  ById results;
  for (const Result& result : file.results) {
    if (result.status != Status::kSkipped) results[result.id] = &result;
  }
  return results;
}

std::string device_of(const ResultFile& file) {
  return file.results.empty() ? "no device" : file.results.front().device;
}

/// What failed, then the largest factor.
bool is_worse(const Agreement& a, const Agreement& b) {
  const bool a_fails = !a.disagreement.empty();
  const bool b_fails = !b.disagreement.empty();
  return a_fails != b_fails ? a_fails : a.factor > b.factor;
}

}  // namespace

AgreementReport compare_agreement(const ResultFile& first, const ResultFile& second,
                                  const AgreementOptions& options) {
  refuse_contradictions(first);
  refuse_contradictions(second);
  AgreementReport report;
  report.first_device = device_of(first);
  report.second_device = device_of(second);
  report.allowed_factor = options.allowed_factor;
  report.lone_cases_fail = !options.lenient;
  const ById theirs = present(second);
  for (const auto& [id, result] : present(first)) {
    const auto other = theirs.find(id);
    if (other == theirs.end()) {
      report.lone.emplace_back(id);
      continue;
    }
    std::string difference = problem_difference(*result, *other->second);
    if (difference.empty()) difference = scale_difference(*result, *other->second);
    if (!difference.empty() && !options.ignore_environment) {
      fail(ErrorKind::kUsage, "'{}' is another problem in {} (--ignore-environment compares): {}",
           id, second.path, difference);
    }
    report.cases.push_back(compare(*result, *other->second, options));
  }
  const ById ours = present(first);
  for (const auto& [id, result] : theirs) {
    if (!ours.contains(id)) report.lone.emplace_back(id);
  }
  std::stable_sort(report.cases.begin(), report.cases.end(), is_worse);
  return report;
}

}  // namespace attnbench
