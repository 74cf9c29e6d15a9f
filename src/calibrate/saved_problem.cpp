#include "calibrate/saved_problem.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/problem/fields.h"
#include "core/system/printable.h"
#include "core/value.h"

namespace attnbench {
namespace {

using Json = nlohmann::json;  // names in a tree: as many as a hostile file likes

// Deeper than any field of a problem: whoever nests without end is refused before it is recursion.
constexpr int kMostDepth = 16;

Value to_value(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::of(json.get<bool>());
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return Value::of(json.get<std::int64_t>());
    case Json::value_t::number_float:
      return Value::of(json.get<double>());
    case Json::value_t::string:
      return Value::of(json.get<std::string>());
    case Json::value_t::array: {
      Value list = Value::list();
      for (const Json& item : json) list.items.push_back(to_value(item));
      return list;
    }
    case Json::value_t::object: {
      Value map = Value::map();
      for (const auto& [key, item] : json.items()) map.entries.push_back({key, {}, to_value(item)});
      return map;
    }
    default:
      return Value::null();
  }
}

Json parse(const std::string& text, const std::string& where) {
  const auto check_depth = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMostDepth) fail(ErrorKind::kFormat, "{}: it is nested too deeply", where);
    return true;
  };
  try {
    return Json::parse(text, check_depth);
  } catch (const Json::exception& error) {
    fail(ErrorKind::kFormat, "{}: not JSON: {}", where, shown(error.what()));
  }
}

/// Under a key of the form "section.name"; null when there is none.
const Json* find_path(const Json& document, const std::string& key) {
  const std::size_t dot = key.find('.');
  const auto section = document.find(key.substr(0, dot));
  if (section == document.end()) return nullptr;
  const auto found = section->find(key.substr(dot + 1));
  return found == section->end() ? nullptr : &*found;
}

void read_field(const Field& field, const Json& document, const std::string& where,
                Problem& problem) {
  const Json* found = find_path(document, field.key);
  if (found == nullptr) return;  // of a version that did not have it: what it had is the default
  const Value value = to_value(*found);
  const std::optional<Mismatch> mismatch = field.set(value, problem);
  if (!mismatch) return;
  fail(mismatch->kind, "{}: {}: expected {}, found {}", where, field.key, mismatch->expected,
       describe(*mismatch->found));
}

template <typename Rule, std::size_t N>
Rule read_rule(const Json& document, const char* key,
               const std::array<std::pair<Rule, const char*>, N>& names, const std::string& where) {
  const auto found = document.find(key);
  if (found != document.end() && found->is_string()) {
    const auto& word = found->get_ref<const std::string&>();
    if (const std::optional<Rule> rule = rule_from(names, word)) return *rule;
  }
  std::string words;
  for (const auto& [rule, name] : names) words += (words.empty() ? "" : " or ") + std::string(name);
  fail(ErrorKind::kFormat, "{}: {}: expected {}", where, key, words);
}

KernelRules read_rules(const std::string& text, const std::string& where) {
  const Json document = parse(text, where);
  if (!document.is_object()) fail(ErrorKind::kFormat, "{}: expected an object", where);
  KernelRules rules;
  rules.window = read_rule(document, "window", kEncoderWindowRuleNames, where);
  rules.alibi = read_rule(document, "alibi", kLinearAlibiRuleNames, where);
  for (const auto& [name, member] : kKernelRuleSwitches) {
    const auto found = document.find(name);
    if (found == document.end()) continue;  // of a version that did not have it
    if (!found->is_boolean()) {
      fail(ErrorKind::kFormat, "{}: {}: expected true or false", where, name);
    }
    rules.*member = found->get<bool>();
  }
  return rules;
}

/// Those that the file states, else those of the backend that it names. A user's backend computes
/// what the definitions say, and so do files without a name.
KernelRules rules_of(const SafetensorsReader& reader, const FindRules& find_rules) {
  const auto& metadata = reader.header().metadata;
  const auto stated = metadata.find("kernel_rules");
  if (stated != metadata.end()) {
    return read_rules(stated->second, fmt::format("{}: metadata 'kernel_rules'", reader.name()));
  }
  const auto backend = metadata.find("backend");
  if (backend == metadata.end()) return {};
  if (const std::optional<KernelRules> known = find_rules(backend->second)) return *known;
  if (metadata.contains("plugin")) return {};
  fail(
      ErrorKind::kValue,
      "{}: metadata 'backend': unknown backend '{}', and no 'kernel_rules' that say how it attends",
      reader.name(), shown(backend->second));
}

}  // namespace

std::optional<SavedProblem> saved_problem(const SafetensorsReader& reader,
                                          const FindRules& find_rules) {
  const auto& metadata = reader.header().metadata;
  const auto text = metadata.find("problem");
  if (text == metadata.end()) return std::nullopt;
  const std::string where = fmt::format("{}: metadata 'problem'", reader.name());
  const Json document = parse(text->second, where);
  for (const char* key : {"attention.type", "attention.causal", "attention.scale"}) {
    const Json* value = find_path(document, key);
    if (value == nullptr || value->is_null()) {
      fail(ErrorKind::kFormat, "{}: {} is missing", where, key);
    }
  }
  Problem problem;
  for (const Field& field : problem_fields()) {
    const bool is_read =
        field.key.starts_with("attention.") || field.key == "mm_encoder.layer_names";
    if (is_read) read_field(field, document, where, problem);
  }
  SavedProblem saved;
  saved.attention = std::move(problem.attention);
  saved.rules = rules_of(reader, find_rules);
  const std::vector<std::string>& names = problem.mm_encoder.layer_names;
  if (saved.attention.type == AttentionType::kMmEncoder && !names.empty()) {
    saved.layer = names.front();
  }
  return saved;
}

}  // namespace attnbench
