#include "report/tables/trace_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/parsing.h"
#include "core/system/printable.h"
#include "report/format.h"

namespace attnbench {
namespace {

constexpr std::string_view kStep = "trace-step";
constexpr std::size_t kMaxWorst = 3;

struct StepGroup {
  TraceStepsRow row;
  std::vector<const Result*> steps;
  double tokens = 0;
  double total_us = 0;
};

/// "trace-step17,kv_cache.layout=HND" is "trace,kv_cache.layout=HND"; empty for other cases.
std::string name_of_steps(const std::string& case_name) {
  if (!case_name.starts_with(kStep)) return "";
  const std::size_t end = case_name.find_first_of(",#", kStep.size());
  return "trace" + (end == std::string::npos ? "" : case_name.substr(end));
}

/// New tokens of the batch; nothing where the result does not say.
double tokens_of(const Result& result) {
  const nlohmann::json problem = parse_json<nlohmann::json>(result.problem_json);
  if (!problem.is_object() || !problem.contains("batch") || !problem["batch"].is_array()) return 0;
  double tokens = 0;
  for (const nlohmann::json& row : problem["batch"]) {
    if (!row.is_object()) return 0;
    tokens += row.value("count", 1.0) * row.value("query_len", 0.0);
  }
  return tokens;
}

void finish(StepGroup& group) {
  std::stable_sort(group.steps.begin(), group.steps.end(), [](const Result* a, const Result* b) {
    return a->timing->median_us > b->timing->median_us;
  });
  const std::size_t count = group.steps.size();
  TraceStepsRow& row = group.row;
  row.num_steps = count;
  row.tokens_per_s = group.tokens / group.total_us * 1e6;
  row.median_us = group.steps[count / 2]->timing->median_us;
  row.p99_us = group.steps[count / 100]->timing->median_us;
  row.worst.assign(group.steps.begin(),
                   group.steps.begin() + static_cast<std::ptrdiff_t>(std::min(count, kMaxWorst)));
}

std::string step_text(const Result& result) {
  std::string name = result.case_name.substr(kStep.size());
  name = name.substr(0, name.find_first_of(",#"));
  return fmt::format("{} ({:.1f} us)", printable(name), result.timing->median_us);
}

std::vector<std::vector<std::string>> step_cells(const std::vector<TraceStepsRow>& rows) {
  std::vector<std::vector<std::string>> cells{
      {"steps of", "backend", "steps", "tokens/s", "median us", "p99 us", "worst steps"}};
  for (const TraceStepsRow& row : rows) {
    std::vector<std::string> worst;
    for (const Result* result : row.worst) worst.push_back(step_text(*result));
    cells.push_back({printable(row.scenario + "/" + row.case_name), printable(row.backend),
                     std::to_string(row.num_steps), fmt::format("{:.4g}", row.tokens_per_s),
                     fmt::format("{:.1f}", row.median_us), fmt::format("{:.1f}", row.p99_us),
                     fmt::format("{}", fmt::join(worst, ", "))});
  }
  return cells;
}

}  // namespace

std::vector<TraceStepsRow> trace_steps_rows(const std::vector<Result>& results) {
  std::vector<StepGroup> groups;
  for (const Result& result : results) {
    const std::string name = name_of_steps(result.case_name);
    if (name.empty() || !is_ranked(result) || !(result.timing->median_us > 0)) continue;
    const auto is_same = [&](const StepGroup& group) {
      return group.row.scenario == result.scenario && group.row.case_name == name &&
             group.row.backend == result.backend;
    };
    auto group = std::find_if(groups.begin(), groups.end(), is_same);
    if (group == groups.end()) {
      group = groups.insert(groups.end(), StepGroup{});
      group->row.scenario = result.scenario;
      group->row.case_name = name;
      group->row.backend = result.backend;
    }
    group->steps.push_back(&result);
    group->tokens += tokens_of(result);
    group->total_us += result.timing->median_us;
  }
  std::vector<TraceStepsRow> rows;
  for (StepGroup& group : groups) {
    if (group.steps.size() < 2) continue;
    finish(group);
    rows.push_back(std::move(group.row));
  }
  return rows;
}

void write_trace_steps_table(std::ostream& out, const std::vector<Result>& results, bool markdown) {
  const std::vector<TraceStepsRow> rows = trace_steps_rows(results);
  if (rows.empty()) return;
  const auto cells = step_cells(rows);
  if (markdown) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      out << fmt::format("| {} |\n", fmt::join(cells[i], " | "));
      if (i == 0) out << "|---|---|---:|---:|---:|---:|---|\n";
    }
    out << "\n";
    return;
  }
  std::vector<std::size_t> widths(cells[0].size());
  for (const auto& line : cells) {
    for (std::size_t c = 0; c < line.size(); ++c) {
      widths[c] = std::max(widths[c], display_width(line[c]));
    }
  }
  for (const auto& line : cells) {
    for (std::size_t c = 0; c < line.size(); ++c) {
      const bool is_last = c + 1 == line.size();
      const std::string fill(is_last ? 0 : widths[c] - display_width(line[c]), ' ');
      const bool left = c < 2 || is_last;
      out << (c == 0 ? "" : "  ") << (left ? line[c] + fill : fill + line[c]);
    }
    out << "\n";
  }
  out << "\n";
}

}  // namespace attnbench
