#include "report/row_names.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/system/printable.h"
#include "report/case_columns.h"
#include "report/format.h"

namespace attnbench {
namespace {

/// What names a result, without its numbers: a file may hold many samples.
Result identity_of(const Result& result) {
  Result identity;
  identity.id = result.id;
  identity.scenario = result.scenario;
  identity.case_name = result.case_name;
  identity.backend = result.backend;
  identity.problem_json = result.problem_json;
  return identity;
}

bool are_distinct(const std::vector<std::string>& texts) {
  return std::set<std::string>(texts.begin(), texts.end()).size() == texts.size();
}

bool fit(const std::vector<std::string>& texts, std::size_t room) {
  return std::all_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return display_width(text) <= room; });
}

}  // namespace

RowNames::RowNames(const std::vector<const std::vector<Result>*>& files) {
  std::vector<Result> results;
  std::set<std::string> known;
  for (const std::vector<Result>* file : files) {
    for (const Result& result : *file) {
      if (known.insert(result.id).second) results.push_back(identity_of(result));
    }
  }
  const CaseLabels labels = case_labels(results);
  shared_ = labels.shared;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::string& label = labels.labels[i];
    const std::string backend = printable(results[i].backend);
    names_[results[i].id] = label + (label.empty() || backend.empty() ? "" : ", ") + backend;
  }
}

RowNames::Chosen RowNames::choose(const std::vector<std::string>& ids, std::size_t room) const {
  Chosen chosen;
  for (const std::string& id : ids) chosen.texts.push_back(printable(id));
  if (fit(chosen.texts, room)) return chosen;
  Chosen shorter;
  shorter.shared = shared_;
  for (const std::string& id : ids) {
    const auto name = names_.find(id);
    shorter.texts.push_back(name == names_.end() ? printable(id) : name->second);
  }
  if (are_distinct(shorter.texts)) chosen = std::move(shorter);
  chosen.own_lines = !fit(chosen.texts, room);
  return chosen;
}

}  // namespace attnbench
