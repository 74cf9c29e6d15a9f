#include "report/problem_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;
using Field = std::pair<std::string, Json>;

constexpr std::array<std::string_view, 5> kOfBatch{"batch", "num_reqs", "num_actual_tokens",
                                                   "max_query_len", "max_seq_len"};
/// Follow from other keys, so that nobody sweeps them.
constexpr std::array<std::string_view, 3> kFollow{"kv_cache.num_blocks", "attention.scale",
                                                  "mm_encoder.hidden_size"};

template <typename List>
bool holds(const List& list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

void flatten(const Json& value, const std::string& key, std::vector<Field>& fields) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [name, member] : value.items()) {
      flatten(member, key.empty() ? name : key + "." + name, fields);
    }
  } else if (value.is_structured()) {
    fields.emplace_back(key, value.dump());
  } else {
    fields.emplace_back(key, value);
  }
}

/// `case_name` up to the first swept key.
std::string batch_text(const std::string& case_name) {
  return case_name.substr(0, case_name.find(','));
}

void add_batch(const Json& batch, const Result& result, std::vector<Field>& fields) {
  fields.emplace_back("batch", batch_text(result.case_name));
  std::int64_t requests = 0;
  std::int64_t tokens = 0;
  std::int64_t query_len = 0;
  std::int64_t seq_len = 0;
  for (const Json& segment : batch) {
    if (!segment.is_object()) return;
    const auto count = segment.value("count", std::int64_t{1});
    const auto query = segment.value("query_len", std::int64_t{0});
    requests += count;
    tokens += count * query;
    query_len = std::max(query_len, query);
    seq_len = std::max(seq_len, segment.value("seq_len", std::int64_t{0}));
  }
  fields.emplace_back("num_reqs", requests);
  fields.emplace_back("num_actual_tokens", tokens);
  fields.emplace_back("max_query_len", query_len);
  fields.emplace_back("max_seq_len", seq_len);
}

std::vector<Field> fields_of(const Result& result) {
  std::vector<Field> fields;
  Json problem = Json::parse(result.problem_json, nullptr, /*allow_exceptions=*/false);
  if (!problem.is_object()) return {{"batch", batch_text(result.case_name)}};
  const Json batch = problem.value("batch", Json::array());
  for (const char* key : {"schema", "name", "batch"}) problem.erase(key);
  add_batch(batch.is_array() ? batch : Json::array(), result, fields);
  flatten(problem, "", fields);
  return fields;
}

/// Contract section 4: 100 characters, "-", 8 hexadecimal digits.
bool is_shortened(const std::string& case_name) {
  constexpr std::size_t kKept = 100;
  return case_name.size() >= kKept + 9 && case_name[kKept] == '-';
}

}  // namespace

void ScenarioFields::add(const Result& result) {
  has_short_names_ = has_short_names_ || is_shortened(result.case_name);
  for (const auto& [name, value] : fields_of(result)) {
    const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    const auto [found, is_new] = keys_.try_emplace(name);
    Key& key = found->second;
    if (is_new) {
      key.value = text;
      order_.push_back(name);
    }
    key.varies = key.varies || key.value != text;
    key.is_swept = key.is_swept || result.case_name.find("," + name + "=") != std::string::npos;
  }
}

std::vector<std::string> ScenarioFields::axes() const {
  std::vector<std::string> axes;
  for (const std::string& name : order_) {
    const Key& key = keys_.at(name);
    const bool is_axis =
        key.is_swept || holds(kOfBatch, name) || (has_short_names_ && !holds(kFollow, name));
    if (key.varies && is_axis) axes.push_back(name);
  }
  return axes;
}

Json ScenarioFields::common() const {
  Json json = Json::object();
  for (const std::string& name : order_) {
    const Key& key = keys_.at(name);
    if (!key.varies) json[name] = Json::parse(key.value, nullptr, /*allow_exceptions=*/false);
  }
  return json;
}

Json ScenarioFields::varying_of(const Result& result) const {
  Json json = Json::object();
  for (auto& [name, value] : fields_of(result)) {
    const auto key = keys_.find(name);
    if (key != keys_.end() && key->second.varies) json[name] = std::move(value);
  }
  return json;
}

std::map<std::string, ScenarioFields> scenario_fields(const std::vector<ResultFile>& files) {
  std::map<std::string, ScenarioFields> scenarios;
  for (const ResultFile& file : files) {
    for (const Result& result : file.results) scenarios[result.scenario].add(result);
  }
  return scenarios;
}

}  // namespace attnbench
