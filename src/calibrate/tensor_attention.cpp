// Reads the metadata of saved results, which may come from anywhere, and checks that tensors,
// lengths and metadata agree before any attention is computed over them.
#include "calibrate/tensor_attention.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "calibrate/latents.h"
#include "core/error.h"
#include "core/problem/fields.h"
#include "core/system/printable.h"
#include "core/value.h"
#include "inputs/files/scale_text.h"
#include "metadata/validation.h"

namespace attnbench {
namespace {

std::vector<std::int32_t> read_lengths(const SafetensorsReader& reader,
                                       const SafetensorsEntry& entry) {
  const Tensor tensor = reader.read(entry);
  const bool wide = tensor.dtype() == Dtype::kI64;
  if (!wide && tensor.dtype() != Dtype::kI32) {
    fail(ErrorKind::kDtype, "{}: tensor '{}': expected int32, got {}", reader.name(),
         shown(entry.name), dtype_name(tensor.dtype()));
  }
  std::vector<std::int32_t> lengths;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    const std::int64_t value =
        wide ? tensor.data<std::int64_t>()[i] : tensor.data<std::int32_t>()[i];
    if (value < 0 || value > INT32_MAX) {
      fail(ErrorKind::kValue, "{}: {}[{}]: expected 0 to 2^31 - 1, got {}", reader.name(),
           shown(entry.name), i, value);
    }
    lengths.push_back(static_cast<std::int32_t>(value));
  }
  return lengths;
}

/// The tensor `name` [H] as floats; empty when the file has none.
std::vector<float> read_per_head(const TensorFile& file, const char* name, int num_heads) {
  const SafetensorsEntry* entry = file.reader.find(name);
  if (entry == nullptr) return {};
  const Tensor tensor = file.reader.read(*entry);
  if (!is_floating(tensor.dtype())) {
    fail(ErrorKind::kDtype, "{}: tensor '{}': expected a floating dtype, got {}",
         file.reader.name(), name, entry->dtype);
  }
  if (tensor.shape() != std::vector<std::int64_t>{num_heads}) {
    fail(ErrorKind::kShape, "{}: tensor '{}': expected [{}], got {}", file.reader.name(), name,
         num_heads, shape_text(tensor));
  }
  std::vector<float> values(static_cast<std::size_t>(num_heads));
  load_floats(tensor.dtype(), tensor.bytes(), num_heads, values.data());
  const auto nan =
      std::find_if(values.begin(), values.end(), [](float value) { return std::isnan(value); });
  if (nan != values.end()) {
    fail(ErrorKind::kValue, "{}: tensor '{}': it is NaN for head {}", file.reader.name(), name,
         nan - values.begin());
  }
  return values;
}

/// Sinks and slopes that the saved result was computed with.
void add_per_head(const TensorFile& file, Observation& observation) {
  AttentionSpec& a = observation.problem.attention;
  observation.sinks = read_per_head(file, "sinks", a.num_heads);
  observation.alibi_slopes = read_per_head(file, "alibi_slopes", a.num_heads);
  const auto require = [&](const char* name, bool is_used, bool is_there) {
    if (!is_used || is_there) return;
    fail(ErrorKind::kFormat, "{}: tensor '{}' is missing, which its metadata say was used",
         file.reader.name(), name);
  };
  require("sinks", a.sinks != SinksKind::kNone, !observation.sinks.empty());
  require("alibi_slopes", a.alibi != AlibiKind::kNone, !observation.alibi_slopes.empty());
  if (!observation.sinks.empty()) a.sinks = SinksKind::kValues;
  if (!file.saved && !observation.alibi_slopes.empty()) {
    observation.no_attention = "there are alibi_slopes, and no metadata of which kind";
  }
}

void check_ranges(const TensorFile& file, const Problem& problem) {
  const std::string where =
      fmt::format("{}: metadata 'problem': attention.mm_prefix_ranges", file.reader.name());
  for (const auto& [request, ranges] : problem.attention.mm_prefix_ranges) {
    if (request >= problem.num_requests()) {
      fail(ErrorKind::kValue, "{}: expected a request index below {}, found {}", where,
           problem.num_requests(), request);
    }
    for (const auto& [start, end] : ranges) {
      if (start >= 0 && end >= start) continue;
      fail(ErrorKind::kValue, "{}: expected 0 <= start <= end, found [{}, {}]", where, start, end);
    }
  }
}

std::vector<Request> batch_of(const std::string& layer, const TensorFile& file,
                              const SequenceStarts& starts, const Observation& observation) {
  const std::int64_t num_tokens = observation.tensors[kQueryRole]->dim(0);
  const std::int64_t num_keys = observation.tensors[kKeyRole]->dim(0);
  if (starts.entry == nullptr) return {{num_tokens, num_keys}};
  const std::vector<std::int32_t> cumulative = read_lengths(*starts.reader, *starts.entry);
  const std::string name = fmt::format("{}: {}", starts.reader->name(), shown(starts.entry->name));
  check_cumulative(cumulative, num_tokens, name);
  const std::vector<std::int32_t> query_lens = query_lens_of(cumulative, name);
  const SafetensorsEntry* lens = file.is_saved_result ? file.reader.find("seq_lens") : nullptr;
  const std::vector<std::int32_t> seq_lens =
      lens == nullptr ? query_lens : read_lengths(file.reader, *lens);
  std::int64_t total = 0;
  for (const std::int32_t length : seq_lens) total += length;
  if (seq_lens.size() != query_lens.size() || total != num_keys) {
    fail(ErrorKind::kShape,
         "{}: layer '{}': the lengths of {} sequences add up to {}, but k has {} tokens",
         observation.where, shown(layer), seq_lens.size(), total, num_keys);
  }
  std::vector<Request> batch;
  for (std::size_t b = 0; b < seq_lens.size(); ++b) batch.push_back({query_lens[b], seq_lens[b]});
  return batch;
}

/// Why these tensors are none of attention, or nothing.
std::string no_attention(const Observation& observation) {
  for (std::size_t role = 0; role < kNumRoles; ++role) {
    const std::optional<Tensor>& tensor = observation.tensors[role];
    if (!tensor) return fmt::format("there is no {}", kRoleNames[role]);
    if (tensor->shape().size() != 3) {
      return fmt::format("{} is not [tokens, heads, head size]", kRoleNames[role]);
    }
  }
  return "";
}

[[noreturn]] void fail_disagreement(const std::string& layer, const Observation& observation,
                                    const char* what) {
  const auto& [q, k, v] = observation.tensors;
  fail(ErrorKind::kShape, "{}: layer '{}': {}: q {}, k {}, v {}", observation.where, shown(layer),
       what, shape_text(*q), shape_text(*k), shape_text(*v));
}

void check_shapes(const std::string& layer, const Observation& observation) {
  const auto& [q, k, v] = observation.tensors;
  const auto require = [&](bool agrees, const char* what) {
    if (!agrees) fail_disagreement(layer, observation, what);
  };
  require(k->dim(0) == v->dim(0), "k and v have different numbers of tokens");
  require(k->dim(1) == v->dim(1), "k and v have different numbers of heads");
  require(q->dim(2) == k->dim(2), "q and k have different head sizes");
  require(k->dim(1) != 0 && q->dim(1) % k->dim(1) == 0,
          "the heads of q are no multiple of those of k");
  constexpr std::int64_t kMostExtent = 1 << 20;
  require(q->dim(1) <= kMostExtent && q->dim(2) <= kMostExtent && v->dim(2) <= kMostExtent,
          "more heads or larger ones than 2^20");
}

using Json = nlohmann::json;  // names in a tree: as many as a hostile file likes

// Deeper than any field of a problem: a file that nests without end is refused before it is
// recursion.
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
    fail(ErrorKind::kFormat, "{}: not JSON: {}", where, json_complaint(error.what()));
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

void describe_attention(const std::string& layer, const TensorFile& file,
                        const SequenceStarts& starts, ScaleFormat format,
                        Observation& observation) {
  observation.no_attention = no_attention(observation);
  if (!observation.no_attention.empty()) return;
  check_shapes(layer, observation);
  const auto& [q, k, v] = observation.tensors;
  Problem& problem = observation.problem;
  AttentionSpec& a = problem.attention;
  if (file.saved) {
    a = file.saved->attention;
    observation.rules = file.saved->rules;
  } else {
    a.type = is_for_encoders(format) ? AttentionType::kMmEncoder : AttentionType::kDecoder;
    a.causal = !is_for_encoders(format);
    a.scale = 1 / std::sqrt(static_cast<double>(q->dim(2)));
  }
  if (a.type == AttentionType::kMla || a.type == AttentionType::kOp) {
    observation.no_attention =
        fmt::format("attention.type {} is not of q, k and v", to_string(a.type));
    return;
  }
  a.num_heads = static_cast<int>(q->dim(1));
  a.num_kv_heads = static_cast<int>(k->dim(1));
  a.head_size = static_cast<int>(q->dim(2));
  a.v_head_size = static_cast<int>(v->dim(2));
  if (file.is_saved_result) add_per_head(file, observation);
  if (!observation.no_attention.empty()) return;
  problem.batch = batch_of(layer, file, starts, observation);
  check_ranges(file, problem);
  const bool too_long =
      std::any_of(problem.batch.begin(), problem.batch.end(),
                  [](const Request& request) { return request.query_len > request.seq_len; });
  if (a.causal && too_long) fail_disagreement(layer, observation, "more tokens of q than of k");
}

void describe_latent_attention(const std::string& layer, const TensorFile& file,
                               const SequenceStarts& starts, Observation& observation) {
  Problem& problem = observation.problem;
  AttentionSpec& a = problem.attention;
  problem.batch = batch_of(layer, file, starts, observation);
  if (!observation.no_attention.empty()) return;
  const LatentLayer& latents = *observation.latents;
  a.type = AttentionType::kMla;
  a.scale = 1 / std::sqrt(static_cast<double>(latents.query.dim(2)));
  if (file.saved) a = file.saved->attention;
  if (a.type != AttentionType::kMla) {
    observation.no_attention =
        fmt::format("attention.type {} is not of latents", to_string(a.type));
    return;
  }
  a.num_heads = static_cast<int>(latents.query.dim(1));
  a.num_kv_heads = 1;
  a.head_size = static_cast<int>(latents.query.dim(2));
  a.v_head_size = static_cast<int>(latents.w_uv.dim(2));
  const bool too_long = std::ranges::any_of(
      problem.batch, [](const Request& request) { return request.query_len > request.seq_len; });
  if (too_long) {
    fail(ErrorKind::kShape, "{}: layer '{}': more tokens of the query than of kv_c",
         observation.where, shown(layer));
  }
}

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
