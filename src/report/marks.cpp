#include "report/marks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "core/system/printable.h"
#include "report/format.h"

namespace attnbench {
namespace {

bool was_busy(const Result& result) { return result.timing && result.timing->cpu_wait > kMuchWait; }
bool was_throttled(const Result& result) {
  return result.timing && result.timing->clocks && !result.timing->clocks->throttling.empty();
}
bool is_too_fast(const Result& result) {
  return result.timing && result.status == Status::kImplausible;
}
bool is_noisy(const Result& result) { return result.timing && result.timing->noise > kMuchNoise; }

/// Names of the rows of quantization_error and what they are shares of.
constexpr std::pair<const char*, const char*> kClipped[] = {{"saturated_query", "the query"},
                                                            {"saturated_key", "the keys"},
                                                            {"saturated_value", "the values"},
                                                            {"saturated_output", "the output"}};

double share_of(const Result& result, const char* name) {
  if (!result.quantization_error) return 0;
  const auto share = result.quantization_error->by_name.find(name);
  return share == result.quantization_error->by_name.end() ? 0 : share->second;
}

double largest_clipped(const Result& result) {
  double largest = 0;
  for (const auto& [name, what] : kClipped) largest = std::max(largest, share_of(result, name));
  return largest;
}

using Marked = std::vector<const Result*>;

/// Those that have the mark, the worst last.
Marked marked_by(const std::vector<Result>& results, bool (*has)(const Result&),
                 const std::function<double(const Result&)>& badness) {
  Marked marked;
  for (const Result& result : results) {
    if (has(result)) marked.push_back(&result);
  }
  std::stable_sort(marked.begin(), marked.end(),
                   [&](const Result* a, const Result* b) { return badness(*a) < badness(*b); });
  return marked;
}

std::string count_of(const Marked& marked, const std::vector<Result>& results) {
  return fmt::format("{} of {} result{}", marked.size(), results.size(),
                     results.size() == 1 ? "" : "s");
}

double wait_of(const Result& result) { return result.timing->cpu_wait; }
double noise_of(const Result& result) { return result.timing->noise; }
double none_of(const Result&) { return 0; }

std::string throttling_of(const Marked& marked) {
  std::set<std::string> reasons;
  for (const Result* result : marked) {
    const std::vector<std::string>& of = result->timing->clocks->throttling;
    reasons.insert(of.begin(), of.end());
  }
  return printable(fmt::format("{}", fmt::join(reasons, ", ")));
}

}  // namespace

std::string time_mark(const Result& result) {
  std::string mark;
  if (was_busy(result)) mark += '*';
  if (was_throttled(result)) mark += '^';
  if (is_too_fast(result)) mark += '?';
  return mark;
}
std::string noise_mark(const Result& result) { return is_noisy(result) ? "!" : ""; }
std::string quant_mark(const Result& result) { return largest_clipped(result) > 0 ? "!" : ""; }

std::string marked_time(const Result& result) {
  return result.timing ? format_time(result.timing->median_us) + time_mark(result) : "";
}
std::string marked_noise(const Result& result) {
  return result.timing ? format_noise(result.timing->noise) + noise_mark(result) : "";
}
std::string marked_quant(const Result& result) {
  if (!result.quantization_error) return "";
  return format_share(result.quantization_error->rms_rel) + quant_mark(result);
}

std::string clipped_text(const Result& result) {
  std::string text;
  for (const auto& [name, what] : kClipped) {
    const double share = share_of(result, name);
    if (share <= 0) continue;
    text += fmt::format("{}{} of {}", text.empty() ? "" : ", ", format_share(share), what);
  }
  return text;
}

std::vector<std::string> mark_legend(const std::vector<Result>& results,
                                     const std::string& noise_column) {
  std::vector<std::string> legend;
  if (const Marked busy = marked_by(results, was_busy, wait_of); !busy.empty()) {
    legend.push_back(fmt::format(
        "time*  busy machine: threads waited up to {:.0f}% of the time for cores that other "
        "programs had ({}); repeat on a quiet one",
        100 * wait_of(*busy.back()), count_of(busy, results)));
  }
  if (const Marked hot = marked_by(results, was_throttled, none_of); !hot.empty()) {
    legend.push_back(fmt::format("time^  the device throttled its clocks: {} ({})",
                                 throttling_of(hot), count_of(hot, results)));
  }
  if (const Marked fast = marked_by(results, is_too_fast, none_of); !fast.empty()) {
    legend.push_back(
        fmt::format("time?  implausible: faster than the device can be ({}); compared with nothing",
                    count_of(fast, results)));
  }
  if (const Marked noisy = marked_by(results, is_noisy, noise_of); !noisy.empty()) {
    const bool is_own = noise_column == "noise";
    legend.push_back(fmt::format("{}{} above {:.0f}%, up to {} ({})", noise_column,
                                 is_own ? "!" : "!  noise", 100 * kMuchNoise,
                                 format_noise(noise_of(*noisy.back())), count_of(noisy, results)));
  }
  const auto has_clipped = [](const Result& result) { return largest_clipped(result) > 0; };
  if (const Marked clipped = marked_by(results, has_clipped, largest_clipped); !clipped.empty()) {
    legend.push_back(fmt::format(
        "quant! warning: the scales are too small and clip {} ({}); worst in {}",
        clipped_text(*clipped.back()), count_of(clipped, results), printable(clipped.back()->id)));
  }
  return legend;
}

void write_legend(std::ostream& out, const std::vector<Result>& results, std::size_t width,
                  const std::string& noise_column) {
  for (const std::string& sentence : mark_legend(results, noise_column)) {
    // Lines after the first begin below the words of the first.
    constexpr std::size_t kSign = 7;
    const std::string text = wrap_text(sentence.substr(kSign), width, std::string(kSign, ' '));
    out << sentence.substr(0, kSign) << text.substr(std::min(kSign, text.size()));
  }
}

}  // namespace attnbench
