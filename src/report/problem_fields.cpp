#include "report/problem_fields.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/enum_names.h"
#include "core/numbers/dtype.h"
#include "core/numbers/kv_format.h"
#include "core/parsing.h"
#include "core/problem/enums.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;
using NamedValue = std::pair<std::string, Json>;

constexpr std::array<std::string_view, 5> kOfBatch{"batch", "num_reqs", "num_actual_tokens",
                                                   "max_query_len", "max_seq_len"};
/// Follow from other keys, so that nobody sweeps them.
constexpr std::array<std::string_view, 3> kFollow{"kv_cache.num_blocks", "attention.scale",
                                                  "mm_encoder.hidden_size"};

template <typename List>
bool holds(const List& list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

void flatten(const Json& value, const std::string& key, std::vector<NamedValue>& fields) {
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

void add_batch(const Json& batch, const Result& result, std::vector<NamedValue>& fields) {
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

std::vector<NamedValue> fields_of(const Result& result) {
  std::vector<NamedValue> fields;
  Json problem = parse_json<Json>(result.problem_json);
  if (!problem.is_object()) return {{"batch", batch_text(result.case_name)}};
  const Json batch = problem.value("batch", Json::array());
  for (const char* key : {"schema", "name", "batch"}) problem.erase(key);
  add_batch(batch.is_array() ? batch : Json::array(), result, fields);
  flatten(problem, "", fields);
  return fields;
}

// ---- Bytes of a token.

constexpr double kNoBytes = std::numeric_limits<double>::quiet_NaN();

/// A member of a section; nothing where it is missing or of another type.
template <typename T>
std::optional<T> section_member(const Json& problem, const char* section, const char* name) {
  const auto found = problem.find(section);
  if (found == problem.end() || !found->is_object()) return std::nullopt;
  const auto value = found->find(name);
  if (value == found->end()) return std::nullopt;
  if (std::is_same_v<T, std::string> ? !value->is_string() : !value->is_number()) {
    return std::nullopt;
  }
  return value->template get<T>();
}

std::optional<Dtype> model_dtype(const Json& problem) {
  const auto name = section_member<std::string>(problem, "attention", "dtype");
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    if (name && *name == dtype_name(dtype)) return dtype;
  }
  return std::nullopt;
}

struct Heads {
  double kv_heads;
  double head_size;
  double v_head_size;
};

/// int8 levels (semantics §11.1): keys with a float32 scale for each head, values as int8 or as
/// they are.
double int8_bytes(const Heads& heads, int level, double model_size) {
  const double value = level == 1 ? 1 : model_size;
  return heads.kv_heads * (heads.head_size + 4 + heads.v_head_size * value);
}

double bytes_of_heads(const Json& problem, AttentionType type, KvCacheDtype cache, Dtype model) {
  const auto kv_heads = section_member<double>(problem, "attention", "num_kv_heads");
  const auto head_size = section_member<double>(problem, "attention", "head_size");
  const auto v_head_size = section_member<double>(problem, "attention", "v_head_size");
  if (!kv_heads || !head_size || !v_head_size) return kNoBytes;
  const Heads heads{*kv_heads, *head_size, *v_head_size};
  const auto model_size = static_cast<double>(dtype_size(model));
  const double elements = heads.kv_heads * (heads.head_size + heads.v_head_size);
  if (type == AttentionType::kMmEncoder) {
    const bool fp8 = section_member<std::string>(problem, "mm_encoder", "attn_dtype") == "fp8";
    return elements * (fp8 ? 1 : model_size);
  }
  if (is_encoder_type(type)) return elements * model_size;
  const int level = section_member<int>(problem, "kv_cache", "int8_level").value_or(0);
  if (level > 0) return int8_bytes(heads, level, model_size);
  const std::int64_t vectors =
      stored_vector_bytes(cache, model, static_cast<int>(heads.head_size)) +
      stored_vector_bytes(cache, model, static_cast<int>(heads.v_head_size));
  return heads.kv_heads * static_cast<double>(vectors);
}

}  // namespace

std::string batch_text(const std::string& case_name) {
  return case_name.substr(0, case_name.find(','));
}

bool is_shortened(const std::string& case_name) {
  constexpr std::size_t kKept = 100;
  return case_name.size() >= kKept + 9 && case_name[kKept] == '-';
}

bool follows_from_others(std::string_view key) { return holds(kFollow, key); }

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
        key.is_swept || holds(kOfBatch, name) || (has_short_names_ && !follows_from_others(name));
    if (key.varies && is_axis) axes.push_back(name);
  }
  return axes;
}

Json ScenarioFields::common() const {
  Json json = Json::object();
  for (const std::string& name : order_) {
    const Key& key = keys_.at(name);
    if (!key.varies) json[name] = parse_json<Json>(key.value);
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

double kv_bytes_per_token(const Json& problem) {
  if (!problem.is_object()) return kNoBytes;
  const auto type_name = section_member<std::string>(problem, "attention", "type").value_or("");
  const auto cache_name = section_member<std::string>(problem, "kv_cache", "dtype").value_or("");
  const auto type = enum_from_name<AttentionType>(type_name);
  const auto cache = enum_from_name<KvCacheDtype>(cache_name);
  const std::optional<Dtype> model = model_dtype(problem);
  if (!type || !model || *type == AttentionType::kOp) return kNoBytes;
  if (*type != AttentionType::kMla) {
    return bytes_of_heads(problem, *type, cache.value_or(KvCacheDtype::kAuto), *model);
  }
  const auto rank = section_member<int>(problem, "mla", "kv_lora_rank");
  const auto rope = section_member<int>(problem, "mla", "qk_rope_head_dim");
  if (!rank || !rope || !cache) return kNoBytes;
  return static_cast<double>(latent_entry_bytes(*cache, *model, *rank, *rope));
}

}  // namespace attnbench
