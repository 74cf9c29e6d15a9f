#include "report/tables/results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "core/system/printable.h"
#include "report/format.h"
#include "report/marks.h"
#include "report/tables/cascade.h"
#include "report/tables/peers.h"
#include "report/tables/result_grid.h"
#include "report/tables/trace_steps.h"

namespace attnbench {
namespace {

void write_reasons(std::ostream& out, const Result& result, const TableOptions& options) {
  const bool all = options.show_reasons || badness(result.status) <= badness(Status::kError);
  const std::size_t count =
      all ? result.reasons.size() : std::min<std::size_t>(1, result.reasons.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::string prefix = result.status == Status::kUnsupported ? "unsupported: " : "";
    const std::string text = wrap_text(printable_lines(prefix + result.reasons[i]),
                                       static_cast<std::size_t>(options.width), "    ");
    out << painted(text, kDim, options.color);
  }
}

/// What its values would not have shown, for readers who want to know what a verdict means.
void write_blind_spots(std::ostream& out, const Result& result, const TableOptions& options) {
  if (!options.show_reasons || !result.blind_to || result.blind_to->empty()) return;
  const std::string text =
      wrap_text(fmt::format("cannot see: {}", fmt::join(*result.blind_to, ", ")),
                static_cast<std::size_t>(options.width), "    ");
  out << painted(text, kDim, options.color);
}

/// "ranks are simulated, one after another; 1.2 ms predicted for real ones over NVLink", or "".
std::string prediction_of(const Result& result) {
  if (!result.timing) return "";
  const auto predicted = result.timing->by_name.find("predicted_us");
  if (predicted == result.timing->by_name.end() || !std::isfinite(predicted->second)) return "";
  return fmt::format(
      "ranks are simulated, one after another; {} predicted for real ones over NVLink",
      format_time(predicted->second));
}

/// What static scales clip, of every result and not only of the worst; cycles, clock and share of
/// the peak, and predictions, for who wants more than the table.
void write_details(std::ostream& out, const Result& result, const TableOptions& options) {
  if (!options.show_reasons) return;
  const std::string clipped = clipped_text(result);
  const auto width = static_cast<std::size_t>(options.width);
  for (const std::string& text : {format_clock(result), prediction_of(result),
                                  clipped.empty() ? "" : "scales clip " + clipped}) {
    if (text.empty()) continue;
    out << painted(wrap_text(text, width, "    "), kDim, options.color);
  }
}

bool hides_reasons(const Result& result, const TableOptions& options) {
  return !options.show_reasons && result.status == Status::kUnsupported &&
         result.reasons.size() > 1;
}

/// How far two runs of the same program were apart, where it was run twice.
void write_noise_floor(std::ostream& out, const RunInfo& run) {
  if (!run.noise_floor) return;
  const NoiseFloor& floor = *run.noise_floor;
  const auto largest =
      std::max_element(floor.cases.begin(), floor.cases.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  out << fmt::format("A/A, {} runs: noise floor {}", floor.runs, format_noise(floor.all_cases));
  if (largest != floor.cases.end()) {
    out << fmt::format(", medians at most {} apart ({})", format_noise(largest->second),
                       printable(largest->first));
  }
  out << "\n";
}

/// What to do next, in one line: about the worst result, else about clipped values, else what the
/// caller knows.
std::string next_step(const std::vector<Result>& results, const TableOptions& options) {
  const auto worst = std::min_element(
      results.begin(), results.end(),
      [](const Result& a, const Result& b) { return badness(a.status) < badness(b.status); });
  if (worst == results.end()) return "";
  const bool failed = badness(worst->status) <= badness(Status::kError);
  if (failed && !worst->repro.empty()) return "reproduce: " + printable(worst->repro);
  if (worst->status == Status::kSkipped) return "skipped results did not run; run again for them";
  const auto has = [&](const auto& of) { return std::any_of(results.begin(), results.end(), of); };
  if (has([](const Result& result) { return !quant_mark(result).empty(); })) {
    return "next: scales that fit: attnbench calibrate --help";
  }
  if (has([&](const Result& result) { return hides_reasons(result, options); })) {
    return "all reasons: add -v";
  }
  return options.next;
}

void write_legend(std::ostream& out, const std::vector<Result>& results, std::size_t width) {
  for (const std::string& sentence : mark_legend(results)) {
    // Lines after the first begin below the words of the first.
    constexpr std::size_t kSign = 7;
    const std::string text = wrap_text(sentence.substr(kSign), width, std::string(kSign, ' '));
    out << sentence.substr(0, kSign) << text.substr(std::min(kSign, text.size()));
  }
}

}  // namespace

void write_table(std::ostream& out, const RunInfo& run, const std::vector<Result>& results,
                 const TableOptions& options) {
  const auto width = static_cast<std::size_t>(std::max(options.width, 40));
  const ResultGrid grid(results, width, options.color);
  grid.write_head(out);
  for (std::size_t i = 0; i < results.size(); ++i) {
    grid.write_row(out, i);
    write_details(out, results[i], options);
    write_reasons(out, results[i], options);
    write_blind_spots(out, results[i], options);
  }
  if (!results.empty()) out << "\n";
  write_cascade_table(out, results, /*markdown=*/false);
  write_peer_table(out, results, width);
  write_trace_steps_table(out, results, /*markdown=*/false);
  grid.write_left_out(out);
  write_legend(out, results, width);
  out << summary_line(count_statuses(results));
  if (!options.elapsed.empty()) out << " in " << options.elapsed;
  out << "\n";
  write_noise_floor(out, run);
  const std::string next = next_step(results, options);
  if (!next.empty()) out << next << "\n";
}

}  // namespace attnbench
