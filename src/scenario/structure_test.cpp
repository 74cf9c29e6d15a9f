#include "scenario/structure.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/problem/fields.h"
#include "scenario/scenario.h"

namespace attnbench {
namespace {

using Json = nlohmann::json;

Json schema() { return Json::parse(scenario_schema_text()); }

/// Dotted keys of the schema's nested properties. Mappings inside a value (rows of a batch, layer
/// name templates) are under anyOf and not followed.
void collect(const Json& object, const std::string& prefix, std::set<std::string>& keys) {
  for (const auto& [name, value] : object.at("properties").items()) {
    keys.insert(prefix + name);
    if (prefix + name != "sweep" && value.contains("properties")) {
      collect(value, prefix + name + ".", keys);
    }
  }
}

const Json& property(const Json& root, const std::string& dotted_key) {
  const Json* at = &root;
  for (std::size_t begin = 0; begin < dotted_key.size();) {
    const std::size_t end = std::min(dotted_key.find('.', begin), dotted_key.size());
    at = &at->at("properties").at(dotted_key.substr(begin, end - begin));
    begin = end + 1;
  }
  return *at;
}

TEST_CASE("the schema knows exactly the keys of the table of fields") {
  std::set<std::string> in_schema;
  collect(schema(), "", in_schema);
  const std::vector<std::string> keys = document_keys();
  CHECK(in_schema == std::set<std::string>(keys.begin(), keys.end()));
}

TEST_CASE("the schema offers exactly the words of each choice") {
  const Json root = schema();
  for (const Field& field : problem_fields()) {
    const Json& json = property(root, field.key);
    CAPTURE(field.key);
    CHECK(json.contains("enum") == !field.words.empty());
    if (!json.contains("enum")) continue;
    std::set<std::string> words;
    for (const Json& word : json.at("enum")) {
      if (word.is_string()) words.insert(word);
    }
    CHECK(words == std::set<std::string>(field.words.begin(), field.words.end()));
  }
}

TEST_CASE("every key of the schema has a description") {
  const Json root = schema();
  for (const Field& field : problem_fields()) {
    CAPTURE(field.key);
    CHECK(property(root, field.key).contains("description"));
  }
}

TEST_CASE("the defaults in the schema are those of an empty problem") {
  const Json root = schema();
  const Problem empty;
  for (const Field& field : problem_fields()) {
    const Json& json = property(root, field.key);
    CAPTURE(field.key);
    // Resolved later: what an empty problem holds is not yet the default.
    if (!json.contains("default") || field.key == "kv_cache.num_blocks" ||
        field.key == "mm_encoder.layer_names") {
      continue;
    }
    CHECK(Json::parse(to_json_text(field.get(empty))) == json.at("default"));
  }
}

/// Integers on, just inside and just outside each bound of the schema must meet the same verdict in
/// the table.
TEST_CASE("the table and the schema draw the same numeric bounds") {
  const Json root = schema();
  int checked = 0;
  for (const Field& field : problem_fields()) {
    const Json& whole = property(root, field.key);
    const Json& json = whole.contains("anyOf") ? whole.at("anyOf").at(0) : whole;
    if (!json.contains("type") || (json.at("type") != "integer" && json.at("type") != "number")) {
      continue;
    }
    CAPTURE(field.key);
    const auto accepts = [&](std::int64_t x) {
      Problem scratch;
      return !field.set(Value::of(x), scratch);
    };
    if (json.contains("minimum")) {
      const std::int64_t low = json.at("minimum");
      CHECK(accepts(low));
      CHECK(!accepts(low - 1));
      ++checked;
    }
    if (json.contains("exclusiveMinimum")) {
      CHECK(!accepts(json.at("exclusiveMinimum")));
      CHECK(accepts(std::int64_t{json.at("exclusiveMinimum")} + 1));
      ++checked;
    }
    if (json.contains("maximum")) {
      const std::int64_t high = json.at("maximum");
      CHECK(accepts(high));
      CHECK(!accepts(high + 1));
      ++checked;
    }
  }
  CHECK(checked > 50);
}

}  // namespace
}  // namespace attnbench
