#include "report/tables/results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/system/printable.h"
#include "report/format.h"
#include "report/marks.h"
#include "report/tables/cascade.h"
#include "report/tables/peers.h"
#include "report/tables/result_grid.h"
#include "report/tables/trace_steps.h"

namespace attnbench {
namespace {

/// What is said of a result: all of its reasons with -v and of what failed, else the first.
std::vector<std::string> reasons_of(const Result& result, const TableOptions& options) {
  const bool all = options.show_reasons || badness(result.status) <= badness(Status::kError);
  std::vector<std::string> reasons;
  for (const std::string& reason : result.reasons) {
    reasons.push_back((result.status == Status::kUnsupported ? "unsupported: " : "") + reason);
    if (!all) break;
  }
  return reasons;
}

void write_dim(std::ostream& out, const std::string& text, const TableOptions& options) {
  const auto width = static_cast<std::size_t>(options.width);
  out << painted(wrap_text(text, width, "    "), kDim, options.color);
}

/// Reasons that several results have are said once, below all rows, with how many have them.
class SharedReasons {
 public:
  SharedReasons(const std::vector<Result>& results, const TableOptions& options) {
    for (const Result& result : results) {
      for (const std::string& reason : reasons_of(result, options)) {
        const auto [place, is_new] = places_.try_emplace(reason, groups_.size());
        if (is_new) groups_.push_back({reason, 0, {}});
        Group& group = groups_[place->second];
        ++group.count;
        if (std::find(group.backends.begin(), group.backends.end(), result.backend) ==
            group.backends.end()) {
          group.backends.push_back(result.backend);
        }
      }
    }
  }
  bool is_shared(const std::string& reason) const { return groups_[places_.at(reason)].count > 1; }
  /// "12 results of FLASHMLA: unsupported: ..."
  void write(std::ostream& out, const TableOptions& options) const {
    for (const Group& group : groups_) {
      if (group.count < 2) continue;
      write_dim(out,
                printable_lines(fmt::format("{} results of {}: {}", group.count,
                                            fmt::join(group.backends, ", "), group.reason)),
                options);
    }
  }

 private:
  struct Group {
    std::string reason;
    int count = 0;
    std::vector<std::string> backends;
  };
  std::vector<Group> groups_;  // by first appearance
  std::map<std::string, std::size_t> places_;
};

void write_reasons(std::ostream& out, const Result& result, const SharedReasons& shared,
                   const TableOptions& options) {
  for (const std::string& reason : reasons_of(result, options)) {
    if (!shared.is_shared(reason)) write_dim(out, printable_lines(reason), options);
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

/// "messages between ranks: all_gather_query 16.0 KiB in 9.1 us (1.8 GB/s); ..." of real ranks, or
/// "". Only their messages have bytes.
std::string messages_of(const Result& result) {
  if (!result.timing) return "";
  std::string words;
  for (const StepTiming& step : result.timing->steps) {
    const bool is_message = step.name.starts_with("all_") || step.name == "reduce_scatter";
    if (!is_message || !(step.bytes > 0) || !(step.median_us > 0)) continue;
    words += fmt::format("{}{} {:.1f} KiB in {} ({:.1f} GB/s)",
                         words.empty() ? "messages between ranks: " : "; ", printable(step.name),
                         step.bytes / 1024, format_time(step.median_us),
                         step.bytes / step.median_us * 1e-3);
  }
  return words;
}

/// What static scales clip, of every result and not only of the worst; cycles, clock and share of
/// the peak, and predictions, for who wants more than the table.
void write_details(std::ostream& out, const Result& result, const TableOptions& options) {
  if (!options.show_reasons) return;
  const std::string clipped = clipped_text(result);
  const auto width = static_cast<std::size_t>(options.width);
  for (const std::string& text : {format_clock(result), prediction_of(result), messages_of(result),
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

}  // namespace

void write_table(std::ostream& out, const RunInfo& run, const std::vector<Result>& results,
                 const TableOptions& options) {
  const auto width = static_cast<std::size_t>(std::max(options.width, 40));
  const ResultGrid grid(results, width, options.color);
  const SharedReasons shared(results, options);
  grid.write_head(out);
  for (std::size_t i = 0; i < results.size(); ++i) {
    grid.write_row(out, i);
    write_details(out, results[i], options);
    write_reasons(out, results[i], shared, options);
    write_blind_spots(out, results[i], options);
  }
  shared.write(out, options);
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
