// Why: GCC 12 mistakes a string replacement in valijson for an overlapping copy (GCC bug 105329).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wrestrict"
#endif

#include "scenario/structure.h"
#include "core/parsing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>

#include "core/error.h"
#include "core/problem/fields.h"
#include "scenario/batch/batch.h"
#include "scenario/scenario.h"
#include "scenario/text/files.h"
#include "scenario/text/issues.h"

namespace attnbench {
namespace {

/// Top-level keys that are no field of a problem.
const std::vector<std::string> kTopKeys = {"schema", "name",     "description", "extends",
                                           "batch",  "backends", "sweep"};

constexpr std::size_t kLongestName = 100;
constexpr std::size_t kLongestDescription = 4096;

/// Names under each section; "" is the document.
using Sections = std::map<std::string, std::vector<std::string>, std::less<>>;

void add_unique(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

Sections make_sections() {
  Sections sections;
  sections[""] = kTopKeys;
  for (const Field& field : problem_fields()) {
    std::string section;
    for (std::size_t begin = 0; begin < field.key.size();) {
      const std::size_t end = std::min(field.key.find('.', begin), field.key.size());
      add_unique(sections[section], field.key.substr(begin, end - begin));
      section = field.key.substr(0, end);
      begin = end + 1;
    }
  }
  return sections;
}

const Sections& sections() {
  static const Sections all = make_sections();
  return all;
}

std::string join_key(const std::string& section, const std::string& name) {
  return section.empty() ? name : fmt::format("{}.{}", section, name);
}

/// The full key whose last name is `name`, where it is the only one: head_size at the top level
/// means attention.head_size.
std::string elsewhere(const std::string& name) {
  std::string found;
  for (const Field& field : problem_fields()) {
    if (field.key != name && !field.key.ends_with(fmt::format(".{}", name))) continue;
    if (!found.empty()) return "";
    found = field.key;
  }
  return found;
}

/// `lists_keys`: whether the valid keys may be listed; false once they were.
void add_unknown_key(const std::string& section, const Value::Entry& entry, IssueList& issues,
                     bool& lists_keys) {
  const std::vector<std::string>& valid = sections().find(section)->second;
  std::string nearest = nearest_word(entry.key, valid);
  if (nearest.empty()) nearest = elsewhere(entry.key);
  std::string hint;
  if (section.empty() && find_field(entry.key) != nullptr) {
    const std::size_t dot = entry.key.rfind('.');
    hint = fmt::format("; '{}' belongs under '{}:'", entry.key.substr(dot + 1),
                       entry.key.substr(0, dot));
  } else if (!nearest.empty()) {
    hint = fmt::format("; did you mean '{}'?", nearest);
  } else if (lists_keys) {
    hint = fmt::format("; valid keys: {}", fmt::join(valid, ", "));
    lists_keys = false;
  }
  issues.add(ErrorKind::kFormat, entry.key_mark,
             fmt::format("unknown key '{}'{}", join_key(section, entry.key).substr(0, 120), hint));
}

/// A file that is something else than a scenario gets one sentence instead of one a key.
void check_is_scenario(const Value& document) {
  const std::vector<std::string>& valid = sections().find("")->second;
  const auto is_known = [&](const Value::Entry& entry) {
    return std::find(valid.begin(), valid.end(), entry.key) != valid.end();
  };
  const bool is_result_file =
      document.find("results") != nullptr && document.find("schema_version") != nullptr;
  if (is_result_file) {
    fail(ErrorKind::kFormat,
         "{}expected a scenario, found a result file, which 'attnbench report' reads",
         location(document.mark));
  }
  constexpr std::size_t kFew = 2;  // one unknown key is a slip
  const std::size_t count = document.entries.size();
  if (count < kFew || std::any_of(document.entries.begin(), document.entries.end(), is_known)) {
    return;
  }
  constexpr std::size_t kShown = 3;
  std::vector<std::string> found;
  for (const Value::Entry& entry : document.entries) {
    if (found.size() < kShown) found.push_back(fmt::format("'{}'", entry.key.substr(0, 40)));
  }
  fail(ErrorKind::kFormat,
       "{}expected a scenario (name, attention, batch, kv_cache, ...), found {} other keys: {}{}",
       location(document.mark), count, fmt::join(found, ", "), count > kShown ? ", ..." : "");
}

/// What users of other tools call a value.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
    {"bf16", "bfloat16"},    {"fp16", "float16"},     {"f16", "float16"},
    {"half", "float16"},     {"fp32", "float32"},     {"f32", "float32"},
    {"float", "float32"},    {"e4m3", "fp8_e4m3"},    {"e5m2", "fp8_e5m2"},
    {"fp8e4m3", "fp8_e4m3"}, {"fp8e5m2", "fp8_e5m2"}, {"int8", "int8_per_token_head"},
    {"fp4", "nvfp4"},        {"hot", "warm"}};

/// The word that a user most probably meant; empty when none is near.
std::string nearest_value(const std::string& text, const std::vector<std::string>& words) {
  const auto lower = [](std::string word) {
    std::transform(word.begin(), word.end(), word.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return word;
  };
  const std::string wanted = lower(text);
  for (const std::string& word : words) {
    if (lower(word) == wanted) return word;
  }
  for (const auto& [other, name] : kOtherNames) {
    if (wanted == other && std::count(words.begin(), words.end(), name) > 0) {
      return std::string(name);
    }
  }
  return nearest_word(wanted, words);
}

void check_field(const Field& field, const Value& value, IssueList& issues) {
  Problem scratch;
  if (const auto mismatch = field.set(value, scratch)) {
    issues.add_mismatch(mismatch->kind, field.key, mismatch->expected, *mismatch->found);
    if (!value.is_string()) return;
    const bool is_cache_type = field.key == "kv_cache.dtype";
    const std::string_view refused = is_cache_type ? refused_kv_format(value.text) : "";
    const std::string near = nearest_value(value.text, field.words);
    if (!refused.empty()) {
      issues.add_hint(fmt::format("; {}", refused));
    } else if (!near.empty()) {
      issues.add_hint(fmt::format("; did you mean '{}'?", near));
    }
  }
}

void check_name(const Value& name, IssueList& issues) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  };
  if (!name.is_string() || name.text.empty() || name.text.size() > kLongestName ||
      !std::all_of(name.text.begin(), name.text.end(), allowed)) {
    issues.add_mismatch(ErrorKind::kFormat, "name", "text of [a-z0-9._-], at most 100", name);
  }
}

void check_backends(const Value& backends, IssueList& issues) {
  if (!backends.is_list()) {
    issues.add_mismatch(ErrorKind::kFormat, "backends", "a list of backend names", backends);
  }
  for (const Value& item : backends.items) {
    if (item.is_string() && !item.text.empty()) continue;
    issues.add_mismatch(ErrorKind::kFormat, "backends", "the name of a backend", item);
  }
}

void check_swept_key(const Value::Entry& entry, IssueList& issues) {
  const Field* field = find_field(entry.key);
  if (field == nullptr && entry.key != "batch") {
    std::vector<std::string> valid = {"batch"};
    for (const Field& known : problem_fields()) valid.push_back(known.key);
    std::string nearest = nearest_word(entry.key, valid);
    if (nearest.empty()) nearest = elsewhere(entry.key);
    issues.add(ErrorKind::kFormat, entry.key_mark,
               fmt::format("unknown sweep key '{}'; {}", entry.key.substr(0, 120),
                           nearest.empty() ? "expected the dotted key of a field, or batch"
                                           : fmt::format("did you mean '{}'?", nearest)));
    return;
  }
  if (!entry.value.is_list() || entry.value.items.empty()) {
    issues.add_mismatch(ErrorKind::kFormat, "sweep." + entry.key, "a list of values", entry.value);
    return;
  }
  for (const Value& value : entry.value.items) {
    if (issues.full()) return;
    if (field != nullptr) {
      check_field(*field, value, issues);
    } else if (value.is_list() && BatchReader::split(value).front() != &value) {
      issues.add_mismatch(ErrorKind::kFormat, "sweep.batch", "one batch per value", value);
    } else {
      BatchReader::check(value, issues);
    }
  }
}

void check_sweep(const Value& sweep, IssueList& issues) {
  if (sweep.is_null()) return;
  if (!sweep.is_map()) {
    issues.add_mismatch(ErrorKind::kFormat, "sweep", "a mapping of dotted keys to lists", sweep);
  }
  for (const Value::Entry& entry : sweep.entries) {
    if (issues.full()) return;
    check_swept_key(entry, issues);
  }
}

void check_top_key(const std::string& key, const Value& value, IssueList& issues) {
  if (key == "schema") {
    if (value.is_int() && value.integer == 1) return;
    issues.add_mismatch(ErrorKind::kFormat, "schema", "1", value);
  } else if (key == "name") {
    check_name(value, issues);
  } else if (key == "description") {
    const bool is_text = value.is_string() && value.text.size() <= kLongestDescription;
    if (is_text || value.is_null()) return;
    issues.add_mismatch(ErrorKind::kFormat, "description",
                        fmt::format("text of at most {} bytes", kLongestDescription), value);
  } else if (key == "batch") {
    BatchReader::check(value, issues);
  } else if (key == "backends") {
    check_backends(value, issues);
  } else if (key == "sweep") {
    check_sweep(value, issues);
  }
}

void check_section(const Value& map, const std::string& section, IssueList& issues) {
  const std::vector<std::string>& valid = sections().find(section)->second;
  bool lists_keys = true;
  for (const Value::Entry& entry : map.entries) {
    if (issues.full()) return;
    // Why find: keys with a dot in them name no nested field ("attention.head_size" at the top).
    if (std::find(valid.begin(), valid.end(), entry.key) == valid.end()) {
      add_unknown_key(section, entry, issues, lists_keys);
      continue;
    }
    const std::string key = join_key(section, entry.key);
    if (const Field* field = find_field(key)) {
      check_field(*field, entry.value, issues);
    } else if (!sections().contains(key)) {
      check_top_key(key, entry.value, issues);
    } else if (entry.value.is_map()) {
      check_section(entry.value, key, issues);
    } else if (!entry.value.is_null()) {
      issues.add_mismatch(
          ErrorKind::kFormat, key,
          fmt::format("a mapping with {}", fmt::join(sections().find(key)->second, ", ")),
          entry.value);
    }
  }
}

using Adapter = valijson::adapters::NlohmannJsonAdapter;

const valijson::Schema& shipped_schema() {
  static const auto schema = [] {
    auto parsed = std::make_unique<valijson::Schema>();
    const auto json = parse_json<nlohmann::json>(scenario_schema_text());
    valijson::SchemaParser(valijson::SchemaParser::kDraft7).populateSchema(Adapter(json), *parsed);
    return parsed;
  }();
  return *schema;
}

}  // namespace

std::vector<std::string> document_keys() {
  std::vector<std::string> keys;
  for (const auto& [section, names] : sections()) {
    for (const std::string& name : names) keys.push_back(join_key(section, name));
  }
  return keys;
}

void check_structure(const Value& document, IssueList& issues) {
  check_is_scenario(document);
  if (document.find("name") == nullptr) {
    issues.add(ErrorKind::kFormat, document.mark, "expected the key 'name', found none");
  }
  check_section(document, "", issues);
}

void read_fields(const Value& document, Problem& problem) {
  problem.scenario = document.find("name")->text;
  const Value* description = document.find("description");
  if (description != nullptr) problem.description = description->text;
  for (const Field& field : problem_fields()) {
    const Value* value = document.find_path(field.key);
    if (value != nullptr) set_field(field.key, *value, problem);
  }
}

void set_field(std::string_view key, const Value& value, Problem& problem) {
  const Field& field = *find_field(key);
  if (field.is_input_path && value.is_string()) {
    Value resolved = value;
    resolved.text = resolve_path(value).string();
    field.set(resolved, problem);
    return;
  }
  field.set(value, problem);
}

void check_schema(const Value& document) {
  const auto json = parse_json<nlohmann::json>(to_json_text(document));
  valijson::Validator validator;
  valijson::ValidationResults results;
  if (validator.validate(shipped_schema(), Adapter(json), &results)) return;
  std::string text;
  valijson::ValidationResults::Error error;
  // The last error is the innermost one: where the document departs from the schema.
  while (results.popError(error)) {
    text.clear();
    for (const std::string& part : error.context) text += part;
    text += ": " + error.description;
  }
  fail(ErrorKind::kFormat, "{}{} (scenarios/schema.json)", location({document.mark.file, 0}), text);
}

}  // namespace attnbench
