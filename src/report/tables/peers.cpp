#include "report/tables/peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "core/system/printable.h"
#include "report/format.h"
#include "report/marks.h"

namespace attnbench {
namespace {

constexpr std::size_t kWidestBackend = 24;
constexpr std::size_t kGap = 2;
constexpr std::size_t kLabelWidth = 13;
constexpr const char* kTitle = "side by side, with the ratio of each time to the best of the case";

bool is_timed(const Result& result) {
  return is_ranked(result) && std::isfinite(result.timing->median_us) &&
         result.timing->median_us > 0;
}

bool took_turns(const Timing& a, const Timing& b) {
  return !a.peers.empty() && a.peers == b.peers && a.rounds.size() == b.rounds.size();
}

void compare(const Timing& best, PeerCell& cell) {
  const Timing& timing = *cell.result->timing;
  cell.ratio = timing.median_us / best.median_us;
  if (!took_turns(best, timing)) return;
  const std::vector<double> own_us = round_medians_us(timing);
  const std::vector<double> best_us = round_medians_us(best);
  for (std::size_t round = 0; round < own_us.size(); ++round) {
    const double ratio = own_us[round] / best_us[round];
    cell.least = std::fmin(cell.least, ratio);  // fmin leaves out what is NaN
    cell.largest = std::fmax(cell.largest, ratio);
  }
}

/// Whether it has anything to compare.
bool complete(PeerCase& peers) {
  const Timing* best = nullptr;
  std::size_t num_timed = 0;
  for (const PeerCell& cell : peers.cells) {
    if (!is_timed(*cell.result)) continue;
    ++num_timed;
    const Timing& timing = *cell.result->timing;
    if (best == nullptr || timing.median_us < best->median_us) best = &timing;
  }
  if (num_timed < 2) return false;
  bool in_turns = true;
  for (PeerCell& cell : peers.cells) {
    if (!is_timed(*cell.result)) continue;
    compare(*best, cell);
    in_turns = in_turns && took_turns(*best, *cell.result->timing);
  }
  peers.rounds = in_turns ? std::max<std::size_t>(best->rounds.size(), 1) : 0;
  return true;
}

/// The backends that have a time in any of the cases, in the order of the results.
std::vector<std::string> timed_backends(const std::vector<PeerCase>& cases) {
  std::vector<std::string> names;
  std::set<std::string> timed;
  for (const PeerCase& peers : cases) {
    for (const PeerCell& cell : peers.cells) {
      const std::string& name = cell.result->backend;
      if (is_timed(*cell.result)) timed.insert(name);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  std::erase_if(names, [&](const std::string& name) { return !timed.contains(name); });
  return names;
}

const PeerCell* find_cell(const PeerCase& peers, const std::string& backend) {
  for (const PeerCell& cell : peers.cells) {
    if (cell.result->backend == backend) return &cell;
  }
  return nullptr;
}

std::string ratio_text(double ratio) { return format_ratio(ratio) + "x"; }

/// Rates in one unit for all backends of a case, err_ratio, and what quantising costs.
std::string figures_text(const PeerCase& peers, const PeerCell& cell) {
  std::vector<const Result*> beside;
  for (const PeerCell& one : peers.cells) beside.push_back(one.result);
  const Result& result = *cell.result;
  const std::string rate =
      result.throughput ? format_rates(*result.throughput, flop_unit(beside)) : "";
  const std::string ratio = result.error ? format_ratio(result.error->err_ratio) : "";
  const std::string quant = marked_quant(result);
  return fmt::format("{}{}{}{}{}", rate, rate.empty() || ratio.empty() ? "" : " ", ratio,
                     quant.empty() ? "" : ", quant ", quant);
}

/// The cases of which some backends were not timed in turns, in words.
std::string exceptions(const std::vector<PeerCase>& cases) {
  const auto apart =
      std::count_if(cases.begin(), cases.end(), [](const PeerCase& c) { return c.rounds == 0; });
  if (apart == 0) return "";
  return fmt::format("; * = not all in turns ({} of {} cases)", apart, cases.size());
}

std::string case_text(const PeerCase& peers, bool with_scenario) {
  return (with_scenario ? peers.scenario + "/" : "") + peers.case_name +
         (peers.rounds == 0 ? " *" : "");
}

/// What there is to show: nothing unless backends took turns in a case.
struct Shown {
  explicit Shown(const std::vector<Result>& results) : cases(peer_cases(results)) {
    const bool any = std::any_of(cases.begin(), cases.end(),
                                 [](const PeerCase& peers) { return peers.rounds > 0; });
    if (!any) cases.clear();
    for (const PeerCase& peers : cases) {
      with_scenario = with_scenario || peers.scenario != cases.front().scenario;
    }
    backends = timed_backends(cases);
  }
  std::vector<PeerCase> cases;
  std::vector<std::string> backends;
  bool with_scenario = false;
};

/// A column of the plain table: the title, then two lines a case.
struct PeerColumn {
  std::vector<std::string> lines;
  std::size_t width = 0;

  void add(const std::string& text) {
    lines.push_back(text);
    width = std::max(width, display_width(text));
  }
};

/// Names for the heads of columns, in the order of `backends`: of one that is too wide the packages
/// before its module are left out, then its middle, unless two would look the same.
std::vector<std::string> column_names(const std::vector<std::string>& backends) {
  std::vector<std::string> names;
  std::map<std::string, int> uses;
  for (const std::string& backend : backends) {
    std::string name = printable(backend);
    if (display_width(name) > kWidestBackend) {
      const std::size_t colon = name.rfind(':');  // of python:MODULE:CLASS
      const std::size_t dot = name.rfind('.', colon);
      if (colon != std::string::npos && dot != std::string::npos) name.erase(0, dot + 1);
    }
    names.push_back(shorten_middle(name, kWidestBackend));
    ++uses[names.back()];
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (uses[names[i]] > 1) names[i] = printable(backends[i]);
  }
  return names;
}

PeerColumn backend_column(const Shown& shown, const std::string& backend, const std::string& name) {
  PeerColumn column;
  column.add(name);
  for (const PeerCase& peers : shown.cases) {
    const PeerCell* cell = find_cell(peers, backend);
    if (cell == nullptr || !is_timed(*cell->result)) {
      column.add(cell == nullptr ? "-" : to_string(cell->result->status));
      column.add("");
      continue;
    }
    column.add(fmt::format("{} {}", marked_time(*cell->result), ratio_text(cell->ratio)));
    column.add(figures_text(peers, *cell));
  }
  return column;
}

void write_line(std::ostream& out, const char* label, const std::vector<PeerColumn>& columns,
                std::size_t index) {
  std::string line = fmt::format("{:<{}}", label, kLabelWidth);
  for (const PeerColumn& column : columns) {
    const std::size_t fill = kGap + column.width - display_width(column.lines[index]);
    line += std::string(fill, ' ') + column.lines[index];
  }
  out << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
}

void write_columns(std::ostream& out, const Shown& shown, const std::vector<PeerColumn>& columns) {
  write_line(out, "", columns, 0);
  for (std::size_t i = 0; i < shown.cases.size(); ++i) {
    out << printable(case_text(shown.cases[i], shown.with_scenario)) << "\n";
    write_line(out, "  time, ratio", columns, 2 * i + 1);
    write_line(out, "  rate, error", columns, 2 * i + 2);
  }
}

std::string markdown_text_of(const PeerCase& peers, const PeerCell& cell) {
  if (!is_timed(*cell.result)) return to_string(cell.result->status);
  const bool best = cell.ratio <= 1;
  const char* bold = best ? "**" : "";
  std::string text = fmt::format("{0}{1}{0}", bold, ratio_text(cell.ratio));
  if (!best && std::isfinite(cell.least)) {
    text += fmt::format(" ({}-{})", format_ratio(cell.least), format_ratio(cell.largest));
  }
  return fmt::format("{} {}, {}", text, marked_time(*cell.result), figures_text(peers, cell));
}

}  // namespace

std::vector<PeerCase> peer_cases(const std::vector<Result>& results) {
  std::vector<PeerCase> cases;
  std::map<std::pair<std::string, std::string>, std::size_t> index;
  for (const Result& result : results) {
    const auto [entry, is_new] =
        index.try_emplace(std::pair(result.scenario, result.case_name), cases.size());
    if (is_new) cases.push_back({result.scenario, result.case_name, {}, 0});
    cases[entry->second].cells.push_back({&result});
  }
  std::erase_if(cases, [](PeerCase& peers) { return !complete(peers); });
  return cases;
}

void write_peer_table(std::ostream& out, const std::vector<Result>& results, std::size_t width) {
  const Shown shown(results);
  if (shown.cases.empty()) return;
  out << kTitle << exceptions(shown.cases) << "\n";
  std::vector<PeerColumn> columns;
  std::size_t taken = kLabelWidth;
  const std::vector<std::string> names = column_names(shown.backends);
  for (std::size_t i = 0; i < names.size(); ++i) {
    PeerColumn column = backend_column(shown, shown.backends[i], names[i]);
    if (!columns.empty() && taken + kGap + column.width > width) {
      write_columns(out, shown, columns);
      columns.clear();
      taken = kLabelWidth;
    }
    taken += kGap + column.width;
    columns.push_back(std::move(column));
  }
  write_columns(out, shown, columns);
  out << "\n";
}

void write_peer_markdown(std::ostream& out, const std::vector<Result>& results) {
  const Shown shown(results);
  if (shown.cases.empty()) return;
  out << kTitle << " (in brackets: of a round); rate, err_ratio" << exceptions(shown.cases)
      << "\n\n| case |";
  for (const std::string& backend : shown.backends) out << " " << markdown_cell(backend) << " |";
  out << "\n|---|";
  for (std::size_t i = 0; i < shown.backends.size(); ++i) out << "---|";
  out << "\n";
  for (const PeerCase& peers : shown.cases) {
    out << "| " << markdown_cell(case_text(peers, shown.with_scenario)) << " |";
    for (const std::string& backend : shown.backends) {
      const PeerCell* cell = find_cell(peers, backend);
      out << " " << (cell == nullptr ? "" : markdown_text_of(peers, *cell)) << " |";
    }
    out << "\n";
  }
  out << "\n";
}

}  // namespace attnbench
