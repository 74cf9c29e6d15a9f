#include "report/case_columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "core/parsing.h"
#include "core/problem/fields.h"
#include "core/system/printable.h"
#include "report/problem_fields.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kNotInNames = static_cast<std::size_t>(-1);

/// Problems of the results, null where there is none to be read.
std::vector<Json> problems_of(const std::vector<Result>& results) {
  std::vector<Json> problems;
  problems.reserve(results.size());
  for (const Result& result : results) {
    Json problem = parse_json<Json>(result.problem_json);
    problems.push_back(problem.is_object() ? std::move(problem) : Json(nullptr));
  }
  return problems;
}

/// The value of a dotted key as people write it; empty where the problem has no such key.
std::string value_of(const Json& problem, std::string_view key) {
  const Json* place = &problem;
  for (std::size_t begin = 0; begin <= key.size();) {
    const std::size_t end = std::min(key.find('.', begin), key.size());
    if (!place->is_object()) return "";
    const auto member = place->find(std::string(key.substr(begin, end - begin)));
    if (member == place->end()) return "";
    place = &*member;
    begin = end + 1;
  }
  if (place->is_string()) return place->get<std::string>();
  if (place->is_number_float()) return fmt::format("{}", place->get<double>());  // 30, not 30.0
  return place->dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// The batch, with the number that tells repeated names apart.
std::string batch_of(const std::string& case_name) {
  const std::string batch = batch_text(case_name);
  const std::size_t repeat = case_name.rfind('#');
  const bool is_number = repeat != std::string::npos && repeat + 1 < case_name.size() &&
                         case_name.find_first_not_of("0123456789", repeat + 1) == std::string::npos;
  return is_number && repeat >= batch.size() ? batch + case_name.substr(repeat) : batch;
}

/// Which keys are swept: a name holds it, or, where names are shortened, it varies within the
/// scenario.
class SweptKeys {
 public:
  SweptKeys(const std::vector<Result>& results, const std::vector<Json>& problems)
      : results_(results), problems_(problems) {
    for (const Result& result : results) {
      if (is_shortened(result.case_name)) shortened_.insert(result.scenario);
    }
  }

  /// Where it stands in the first name that has it, kNotInNames where it is swept without that;
  /// nothing for other keys.
  std::optional<std::size_t> place_of(const std::string& key) const {
    const std::string in_name = "," + key + "=";
    std::map<std::string, std::string> first;  // by scenario
    std::optional<std::size_t> place;
    for (std::size_t i = 0; i < results_.size(); ++i) {
      const Result& result = results_[i];
      const std::size_t found = result.case_name.find(in_name);
      if (found != std::string::npos) return found;
      if (!shortened_.contains(result.scenario) || follows_from_others(key)) continue;
      const std::string value = value_of(problems_[i], key);
      const auto [known, is_new] = first.emplace(result.scenario, value);
      if (!is_new && known->second != value) place = kNotInNames;
    }
    return place;
  }

 private:
  const std::vector<Result>& results_;
  const std::vector<Json>& problems_;
  std::set<std::string> shortened_;
};

void set_varies(CaseColumn& column) {
  column.varies = std::any_of(column.values.begin(), column.values.end(),
                              [&](const auto& value) { return value != column.values.front(); });
}

std::string last_part(std::string_view key) { return std::string(key.substr(key.rfind('.') + 1)); }

}  // namespace

std::string short_key(std::string_view key) {
  static const std::map<std::string, int> ends = [] {
    std::map<std::string, int> count;
    for (const Field& field : problem_fields()) ++count[last_part(field.key)];
    return count;
  }();
  const std::string end = last_part(key);
  const auto known = ends.find(end);
  if (known == ends.end() || known->second < 2) return end;
  static const std::map<std::string_view, std::string_view> sections{
      {"attention", "attn"}, {"kv_cache", "kv"}, {"mm_encoder", "mm"}, {"output_quant", "out"}};
  const std::string_view section = key.substr(0, key.find('.'));
  const auto shorter = sections.find(section);
  return std::string(shorter == sections.end() ? section : shorter->second) + "." + end;
}

std::vector<CaseColumn> case_columns(const std::vector<Result>& results) {
  const std::vector<Json> problems = problems_of(results);
  const SweptKeys swept(results, problems);
  std::vector<std::pair<std::size_t, std::string>> keys;  // by their places
  for (const Field& field : problem_fields()) {
    if (const auto place = swept.place_of(field.key)) keys.emplace_back(*place, field.key);
  }
  if (keys.empty()) return {};
  std::stable_sort(keys.begin(), keys.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<CaseColumn> columns(1);
  columns[0].key = columns[0].title = "batch";
  for (const Result& result : results) columns[0].values.push_back(batch_of(result.case_name));
  for (const auto& [place, key] : keys) {
    CaseColumn& column = columns.emplace_back();
    column.key = key;
    column.title = short_key(key);
    for (const Json& problem : problems) column.values.push_back(value_of(problem, key));
  }
  for (CaseColumn& column : columns) set_varies(column);
  return columns;
}

std::string case_label(const std::vector<CaseColumn>& columns, std::size_t result,
                       bool only_varying) {
  std::string label;
  for (const CaseColumn& column : columns) {
    if (only_varying && !column.varies) continue;
    if (!label.empty()) label += ", ";
    label +=
        column.key == "batch" ? column.values[result] : column.title + "=" + column.values[result];
  }
  return label;
}

namespace {

/// Of results of several scenarios: the scenario before the label of each case.
std::vector<std::string> labels_with_scenario(const std::vector<Result>& results) {
  std::map<std::string, std::vector<std::size_t>> places;
  for (std::size_t i = 0; i < results.size(); ++i) places[results[i].scenario].push_back(i);
  std::vector<std::string> labels(results.size());
  for (const auto& [scenario, indices] : places) {
    std::vector<Result> of_scenario;
    for (const std::size_t i : indices) of_scenario.push_back(results[i]);
    const std::vector<CaseColumn> columns = case_columns(of_scenario);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const std::string& name = of_scenario[i].case_name;
      labels[indices[i]] =
          printable(scenario + "/" + (columns.empty() ? name : case_label(columns, i, false)));
    }
  }
  return labels;
}

}  // namespace

CaseLabels case_labels(const std::vector<Result>& results) {
  const auto is_other = [&](const Result& result) {
    return result.scenario != results.front().scenario;
  };
  if (std::any_of(results.begin(), results.end(), is_other)) {
    return {labels_with_scenario(results), ""};
  }
  CaseLabels found;
  const std::vector<CaseColumn> columns = case_columns(results);
  for (const CaseColumn& column : columns) {
    if (column.varies) continue;
    found.shared += fmt::format("{}{} {}", found.shared.empty() ? "" : ", ", column.title,
                                printable(column.values.front()));
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    found.labels.push_back(
        printable(columns.empty() ? results[i].case_name : case_label(columns, i, true)));
  }
  return found;
}

}  // namespace attnbench
