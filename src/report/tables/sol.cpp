#include "report/tables/sol.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/format.h"

namespace attnbench {
namespace {

std::string case_of(const Result& result) { return result.scenario + "/" + result.case_name; }

std::string share_text(double share) {
  return std::isfinite(share) ? fmt::format("{:.0f}%", 100 * share) : "-";
}

}  // namespace

double speed_of_light_us(const Result& result) {
  const double unknown = std::nan("");
  if (!result.throughput || !result.timing) return unknown;
  const Throughput& rate = *result.throughput;
  if (!(rate.ceiling_gbps > 0) || !(rate.ceiling_tflops > 0)) return unknown;
  const double memory_us = rate.bytes / rate.ceiling_gbps * 1e-3;
  const bool has_clock = std::isfinite(rate.peak_pct) && rate.peak_pct > 0;
  const double compute_us = has_clock ? rate.peak_pct / 100 * result.timing->median_us
                                      : rate.flops / rate.ceiling_tflops * 1e-6;
  return std::max(memory_us, compute_us);
}

double sol_score(double time_us, double baseline_us, double sol_us) {
  if (!(time_us > 0) || !(baseline_us > 0) || !std::isfinite(sol_us)) return std::nan("");
  const double gap = baseline_us - sol_us;
  if (gap <= 0) return time_us <= sol_us ? 1 : 0;
  return 1 / (1 + (time_us - sol_us) / gap);
}

std::map<std::string, double> baseline_times(const std::vector<Result>& results,
                                             const std::string& backend) {
  std::map<std::string, double> times;
  for (const Result& result : results) {
    if (!is_ranked(result) || (!backend.empty() && result.backend != backend)) continue;
    const double time = result.timing->median_us;
    const auto [known, is_new] = times.emplace(case_of(result), time);
    if (!is_new) known->second = std::min(known->second, time);
  }
  return times;
}

void write_sol_table(std::ostream& out, const std::vector<Result>& results,
                     const std::map<std::string, double>& baseline) {
  std::vector<std::vector<std::string>> lines{
      {"case", "backend", "t_sol", "time", "share", "score"}};
  for (const Result& result : results) {
    if (!is_ranked(result)) continue;
    const double time = result.timing->median_us;
    const double sol = speed_of_light_us(result);
    const auto base = baseline.find(case_of(result));
    const double score = base == baseline.end() ? std::nan("") : sol_score(time, base->second, sol);
    lines.push_back({case_of(result), result.backend, std::isfinite(sol) ? format_time(sol) : "-",
                     format_time(time), share_text(sol / time),
                     std::isfinite(score) ? fmt::format("{:.2f}", score) : "-"});
  }
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      widths[i] = std::max(widths[i], display_width(line[i]));
    }
  }
  for (const auto& line : lines) {
    std::string text;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string padding(widths[i] - display_width(line[i]), ' ');
      text += (i == 0 ? "" : "  ") + (i < 2 ? line[i] + padding : padding + line[i]);
    }
    out << text << "\n";
  }
}

}  // namespace attnbench
