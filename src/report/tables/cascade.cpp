#include "report/tables/cascade.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/parsing.h"
#include "core/system/printable.h"
#include "report/format.h"

namespace attnbench {
namespace {

/// Times of 0: not run, or without a time.
struct Group {
  CascadeRow row;
  std::map<std::int64_t, CascadePair> medians;
};

/// `name` without ",<key>=<value>".
std::string without(std::string name, const std::string& key) {
  const std::size_t begin = name.find("," + key + "=");
  if (begin == std::string::npos) return name;
  const std::size_t end = name.find(',', begin + 1);
  return name.erase(begin, end == std::string::npos ? end : end - begin);
}

void add(const Result& result, std::vector<std::string>& keys, std::vector<Group>& groups) {
  if (!is_ranked(result)) return;
  nlohmann::json problem = parse_json<nlohmann::json>(result.problem_json);
  if (!problem.is_object() || !problem.contains("cascade")) return;
  const nlohmann::json cascade = problem["cascade"];
  const std::string mode = cascade.value("mode", "");
  const auto prefix = cascade.value("common_prefix_len", std::int64_t{0});
  if (prefix == 0 || (mode != "always" && mode != "never")) return;
  problem.erase("cascade");
  // It follows from the prefix: shared pages are fewer pages.
  if (problem.contains("kv_cache")) problem["kv_cache"].erase("num_blocks");
  const std::string key = result.scenario + "/" + result.backend + "/" + problem.dump();
  const auto known = std::find(keys.begin(), keys.end(), key);
  const auto index = static_cast<std::size_t>(known - keys.begin());
  if (known == keys.end()) {
    keys.push_back(key);
    Group& group = groups.emplace_back();
    group.row.case_name =
        without(without(result.case_name, "cascade.common_prefix_len"), "cascade.mode");
    group.row.scenario = result.scenario;
    group.row.backend = result.backend;
  }
  CascadePair& medians = groups[index].medians[prefix];
  (mode == "never" ? medians.plain_us : medians.cascade_us) = result.timing->median_us;
  if (result.cascade_heuristic) medians.heuristic = result.cascade_heuristic;
}

void finish(Group& group) {
  for (const auto& [prefix, medians] : group.medians) {
    if (medians.plain_us <= 0 || medians.cascade_us <= 0) continue;
    const double speedup = medians.plain_us / medians.cascade_us;
    group.row.speedup[prefix] = speedup;
    group.row.pairs[prefix] = medians;
    if (speedup <= 1) {
      group.row.pays_from.reset();
    } else if (!group.row.pays_from) {
      group.row.pays_from = prefix;
    }
  }
}

std::vector<std::vector<std::string>> cells_of(const std::vector<CascadeRow>& rows) {
  std::set<std::int64_t> prefixes;
  for (const CascadeRow& row : rows) {
    for (const auto& [prefix, speedup] : row.speedup) prefixes.insert(prefix);
  }
  std::vector<std::vector<std::string>> cells{{"prefix", "backend"}};
  for (const std::int64_t prefix : prefixes) cells[0].push_back(std::to_string(prefix));
  cells[0].emplace_back("pays from");
  for (const CascadeRow& row : rows) {
    std::vector<std::string> line{printable(row.case_name), printable(row.backend)};
    for (const std::int64_t prefix : prefixes) {
      const auto speedup = row.speedup.find(prefix);
      line.push_back(speedup == row.speedup.end() ? "-" : fmt::format("{:.2f}", speedup->second));
    }
    line.push_back(row.pays_from ? std::to_string(*row.pays_from) : "never");
    cells.push_back(std::move(line));
  }
  return cells;
}

std::string heuristic_text(const CascadePair& pair) {
  if (!pair.heuristic) return "-";
  const std::string choice = *pair.heuristic ? "cascade" : "plain";
  return pair.is_heuristic_wrong() ? choice + ": heuristic wrong here" : choice;
}

/// Empty where no result says what the heuristic would choose.
std::vector<std::vector<std::string>> pair_cells(const std::vector<CascadeRow>& rows) {
  std::vector<std::vector<std::string>> cells{
      {"prefix", "backend", "keys", "plain us", "cascade us", "heuristic"}};
  bool is_known = false;
  for (const CascadeRow& row : rows) {
    for (const auto& [prefix, pair] : row.pairs) {
      is_known = is_known || pair.heuristic.has_value();
      cells.push_back({printable(row.case_name), printable(row.backend), std::to_string(prefix),
                       fmt::format("{:.1f}", pair.plain_us), fmt::format("{:.1f}", pair.cascade_us),
                       heuristic_text(pair)});
    }
  }
  if (!is_known) cells.clear();
  return cells;
}

/// "the heuristic chose the slower way by more than 5 % in 3 of 35 pairs".
std::string heuristic_summary(const std::vector<CascadeRow>& rows) {
  int known = 0;
  int wrong = 0;
  for (const CascadeRow& row : rows) {
    for (const auto& [prefix, pair] : row.pairs) {
      known += pair.heuristic ? 1 : 0;
      wrong += pair.is_heuristic_wrong() ? 1 : 0;
    }
  }
  return fmt::format(
      "the heuristic of cascade.mode auto is wrong, by more than 5 %, in {} of {} pairs", wrong,
      known);
}

void write_plain(std::ostream& out, const std::vector<std::vector<std::string>>& cells) {
  std::vector<std::size_t> widths(cells[0].size());
  for (const auto& line : cells) {
    for (std::size_t c = 0; c < line.size(); ++c) {
      widths[c] = std::max(widths[c], display_width(line[c]));
    }
  }
  for (const auto& line : cells) {
    for (std::size_t c = 0; c < line.size(); ++c) {
      const std::string fill(widths[c] - display_width(line[c]), ' ');
      out << (c == 0 ? "" : "  ") << (c < 2 ? line[c] + fill : fill + line[c]);
    }
    out << "\n";
  }
}

void write_pipes(std::ostream& out, const std::vector<std::vector<std::string>>& cells) {
  for (std::size_t i = 0; i < cells.size(); ++i) {
    out << fmt::format("| {} |\n", fmt::join(cells[i], " | "));
    if (i > 0) continue;
    out << "|---|---|";
    for (std::size_t c = 2; c < cells[i].size(); ++c) out << "---:|";
    out << "\n";
  }
}

}  // namespace

bool CascadePair::is_heuristic_wrong() const {
  constexpr double kMargin = 1.05;
  if (!heuristic) return false;
  return *heuristic ? cascade_us > kMargin * plain_us : plain_us > kMargin * cascade_us;
}

std::vector<CascadeRow> cascade_rows(const std::vector<Result>& results) {
  std::vector<std::string> keys;
  std::vector<Group> groups;
  for (const Result& result : results) add(result, keys, groups);
  std::vector<CascadeRow> rows;
  for (Group& group : groups) {
    finish(group);
    if (!group.row.speedup.empty()) rows.push_back(std::move(group.row));
  }
  return rows;
}

void write_cascade_table(std::ostream& out, const std::vector<Result>& results, bool markdown) {
  const std::vector<CascadeRow> rows = cascade_rows(results);
  if (rows.empty()) return;
  out << "cascade: time without a pass over the shared prefix / time with it; it pays above 1\n"
      << (markdown ? "\n" : "");
  const auto cells = cells_of(rows);
  markdown ? write_pipes(out, cells) : write_plain(out, cells);
  out << "\n";
  const auto pairs = pair_cells(rows);
  if (pairs.empty()) return;
  out << "cascade: " << heuristic_summary(rows) << "\n" << (markdown ? "\n" : "");
  markdown ? write_pipes(out, pairs) : write_plain(out, pairs);
  out << "\n";
}

}  // namespace attnbench
