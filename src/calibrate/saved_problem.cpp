#include "calibrate/saved_problem.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/printable.h"
#include "core/problem/problem_fields.h"
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

}  // namespace

std::optional<SavedProblem> saved_problem(const SafetensorsReader& reader) {
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
  const auto backend = metadata.find("backend");
  if (backend != metadata.end()) saved.backend = backend->second;
  const std::vector<std::string>& names = problem.mm_encoder.layer_names;
  if (saved.attention.type == AttentionType::kMmEncoder && !names.empty()) {
    saved.layer = names.front();
  }
  return saved;
}

}  // namespace attnbench
