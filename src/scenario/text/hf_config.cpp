#include "scenario/text/hf_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <initializer_list>
#include <string>
#include <string_view>

#include "core/error.h"
#include "scenario/text/issues.h"
#include "scenario/text/merge.h"

namespace attnbench {
namespace {

using Keys = std::initializer_list<const char*>;

constexpr const char* kDecoderBatch = "4q1s512_q64s256";
constexpr const char* kEncoderBatch = "8q512";

// Of the configuration classes: attention in both directions, and attention with a bias that
// depends on the distance by a learned table.
constexpr std::array kEncoderOnly{"bert",       "roberta",    "xlm-roberta", "electra",
                                  "modernbert", "nomic_bert", "distilbert",  "camembert"};
constexpr std::array kRelativeBias{"t5", "mt5", "umt5", "longt5", "deberta", "deberta-v2"};

template <std::size_t N>
bool is_one_of(const std::string& word, const std::array<const char*, N>& words) {
  return std::any_of(words.begin(), words.end(), [&](const char* one) { return word == one; });
}

/// The first of the keys that is there and not null.
const Value* first_of(const Value& config, Keys keys) {
  for (const char* key : keys) {
    const Value* const value = config.find_path(key);
    if (value != nullptr && !value->is_null()) return value;
  }
  return nullptr;
}

/// The same of a whole number from 1 on.
const Value* integer_of(const Value& config, Keys keys) {
  const Value* const value = first_of(config, keys);
  if (value != nullptr && (!value->is_int() || value->integer < 1)) {
    fail(ErrorKind::kFormat, "{}{}: expected a whole number from 1 on, found {}",
         location(value->mark), fmt::join(keys, " or "), describe(*value));
  }
  return value;
}

const Value& required_integer(const Value& config, const char* what, Keys keys) {
  const Value* const value = integer_of(config, keys);
  if (value == nullptr) {
    fail(ErrorKind::kFormat, "{}expected the {} of a model, found none of the keys {}",
         location(config.mark), what, fmt::join(keys, ", "));
  }
  return *value;
}

const Value* number_of(const Value& config, Keys keys) {
  const Value* const value = first_of(config, keys);
  if (value != nullptr && (!value->is_number() || !(value->as_double() > 0))) {
    fail(ErrorKind::kFormat, "{}{}: expected a number > 0, found {}", location(value->mark),
         fmt::join(keys, " or "), describe(*value));
  }
  return value;
}

bool is_true(const Value& config, Keys keys) {
  const Value* const value = first_of(config, keys);
  return value != nullptr && value->is_bool() && value->boolean;
}

std::string text_of(const Value& config, Keys keys) {
  const Value* const value = first_of(config, keys);
  return value != nullptr && value->is_string() ? value->text : "";
}

Value marked(Value value, const Mark& mark) {
  value.mark = mark;
  return value;
}

/// The language model's configuration on top of the one that it is a part of.
Value text_model(const Value& config) {
  for (const char* key : {"text_config", "llm_config", "language_config"}) {
    const Value* const part = config.find(key);
    if (part == nullptr || !part->is_map()) continue;
    return deep_merge(config, *part);
  }
  return config;
}

/// Writes the sections of a scenario from a configuration that text_model() has flattened.
class Translation {
 public:
  explicit Translation(const Value& config)
      : config_(config), model_type_(text_of(config, {"model_type"})) {}

  Value scenario() {
    refuse_what_is_not_described();
    set("schema", Value::of(std::int64_t{1}), config_.mark);
    set("name", Value::of(name()), config_.mark);
    set("description", Value::null(), config_.mark);  // known at the end
    const Value* const latent = integer_of(config_, {"kv_lora_rank"});
    if (latent != nullptr) {
      write_mla(*latent);
    } else {
      write_heads();
      write_window();
      write_chunks();
      write_score();
    }
    write_cache();
    const bool is_encoder = is_one_of(model_type_, kEncoderOnly);
    set("batch", Value::of(is_encoder ? kEncoderBatch : kDecoderBatch), config_.mark);
    scenario_.at_or_add("description") = Value::of(description());
    scenario_.mark = config_.mark;
    return std::move(scenario_);
  }

 private:
  void set(const char* key, Value value, const Mark& mark) {
    scenario_.at_or_add_path(key) = marked(std::move(value), mark);
  }
  void set(const char* key, const Value& value) { set(key, value, value.mark); }

  void refuse_what_is_not_described() const {
    if (is_one_of(model_type_, kRelativeBias)) {
      fail(ErrorKind::kConfig,
           "{}model_type: '{}' adds a learned bias of relative positions to its scores, which no "
           "backend here does",
           location(config_.find("model_type")->mark), model_type_);
    }
  }

  /// Lower case, with '-' for what a name may not hold.
  std::string name() const {
    std::string text = text_of(config_, {"_name_or_path", "model_type"});
    text = text.substr(text.find_last_of('/') + 1);
    for (char& letter : text) {
      const auto byte = static_cast<unsigned char>(letter);
      const bool is_plain = std::isalnum(byte) || letter == '.' || letter == '_' || letter == '-';
      letter = is_plain ? static_cast<char>(std::tolower(byte)) : '-';
    }
    return text.empty() ? "model" : text;
  }

  std::string description() const {
    const Value* const architectures = config_.find("architectures");
    const bool is_named = architectures != nullptr && architectures->is_list() &&
                          !architectures->items.empty() && architectures->items[0].is_string();
    std::string text = fmt::format("One attention layer of {}",
                                   is_named ? architectures->items[0].text : model_type_);
    const Value* const layers =
        first_of(config_, {"num_hidden_layers", "n_layer", "n_layers", "num_layers"});
    if (layers != nullptr && layers->is_int()) text += fmt::format(", {} layers", layers->integer);
    return text + note_;
  }

  void write_dtype() {
    const Value* const given = first_of(config_, {"torch_dtype", "dtype"});
    const std::string word = given == nullptr || !given->is_string() ? "" : given->text;
    const bool is_known = word == "float16" || word == "bfloat16" || word == "float32";
    set("attention.dtype", Value::of(is_known ? word : "bfloat16"),
        is_known ? given->mark : config_.mark);
  }

  void write_heads() {
    const bool is_encoder = is_one_of(model_type_, kEncoderOnly);
    set("attention.type", Value::of(is_encoder ? "encoder_only" : "decoder"), config_.mark);
    const Value& heads = required_integer(
        config_, "attention heads",
        {"num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"});
    set("attention.num_heads", heads);
    write_kv_heads(heads);
    if (const Value* size = integer_of(config_, {"head_dim", "kv_channels", "d_kv"})) {
      set("attention.head_size", *size);
    } else {
      const Value& hidden =
          required_integer(config_, "hidden size", {"hidden_size", "n_embd", "d_model"});
      if (hidden.integer % heads.integer != 0) {
        fail(ErrorKind::kFormat,
             "{}expected head_dim, or a hidden size that is a multiple of the {} heads, found {}",
             location(hidden.mark), heads.integer, hidden.integer);
      }
      set("attention.head_size", Value::of(hidden.integer / heads.integer), hidden.mark);
    }
    write_dtype();
  }

  void write_kv_heads(const Value& heads) {
    const bool has_groups = is_true(config_, {"multi_query_attention"});
    const Value* given = integer_of(
        config_, {"num_key_value_heads", "num_kv_heads", "n_head_kv", "attn_config.kv_n_heads"});
    if (given == nullptr && has_groups) given = integer_of(config_, {"multi_query_group_num"});
    if (is_true(config_, {"multi_query"}) && !is_true(config_, {"new_decoder_architecture"})) {
      set("attention.num_kv_heads", Value::of(std::int64_t{1}), config_.find("multi_query")->mark);
    } else {
      set("attention.num_kv_heads", given == nullptr ? heads : *given);
    }
  }

  bool has_layers_of(const char* kind) const {
    const Value* const types = config_.find("layer_types");
    return types != nullptr && types->is_list() &&
           std::any_of(types->items.begin(), types->items.end(),
                       [&](const Value& type) { return type.is_string(kind); });
  }

  void write_window() {
    const Value* const use = config_.find("use_sliding_window");
    const bool is_off = use != nullptr && use->is_bool() && !use->boolean;
    const bool lists_layers = config_.find("layer_types") != nullptr;
    if (is_off || (lists_layers && !has_layers_of("sliding_attention"))) return;
    const Value* const window = integer_of(config_, {"sliding_window"});
    if (window == nullptr) return;
    set("attention.sliding_window", *window);
    const bool has_both = has_layers_of("full_attention") ||
                          config_.find("sliding_window_pattern") != nullptr ||
                          model_type_ == "gemma2" || model_type_ == "gpt_oss";
    if (has_both) note_ = " (one with a window; attention.sliding_window: null for the others)";
  }

  /// Llama 4: three layers of four attend within chunks.
  void write_chunks() {
    const Value* const size = integer_of(config_, {"attention_chunk_size"});
    const bool lists_layers = config_.find("layer_types") != nullptr;
    if (size == nullptr || (lists_layers && !has_layers_of("chunked_attention"))) return;
    set("attention.chunk_size", *size);
    note_ = " (one with chunks; attention.chunk_size: null for the others)";
  }

  /// Scale, soft-cap, ALiBi and sinks.
  void write_score() {
    if (const Value* scalar = number_of(config_, {"query_pre_attn_scalar"})) {
      set("attention.scale", Value::of(1 / std::sqrt(scalar->as_double())), scalar->mark);
    } else if (const Value* scale =
                   number_of(config_, {"attention_multiplier", "attn_config.softmax_scale"})) {
      set("attention.scale", *scale);
    }
    if (const Value* cap = number_of(config_, {"attn_logit_softcapping"})) {
      set("attention.logits_soft_cap", *cap);
    }
    if (model_type_ == "bloom" || is_true(config_, {"alibi", "attn_config.alibi"})) {
      set("attention.alibi", Value::of("linear"), config_.mark);
    }
    if (model_type_ == "gpt_oss") set("attention.sinks", Value::of("normal"), config_.mark);
  }

  void write_mla(const Value& latent) {
    set("attention.type", Value::of("mla"), config_.mark);
    set("attention.num_heads",
        required_integer(config_, "attention heads", {"num_attention_heads"}));
    write_dtype();
    const Value& nope = required_integer(config_, "dimensions of MLA", {"qk_nope_head_dim"});
    const Value& rope = required_integer(config_, "dimensions of MLA", {"qk_rope_head_dim"});
    write_mla_scale(nope.integer + rope.integer);
    set("mla.kv_lora_rank", latent);
    set("mla.qk_nope_head_dim", nope);
    set("mla.qk_rope_head_dim", rope);
    set("mla.v_head_dim", required_integer(config_, "dimensions of MLA", {"v_head_dim"}));
    if (const Value* topk = integer_of(config_, {"index_topk"})) set("mla.sparse_topk", *topk);
    set("kv_cache.block_size", Value::of(std::int64_t{64}), config_.mark);
  }

  /// YaRN multiplies the scale by the square of 0.1 * mscale_all_dim * ln(factor) + 1 where the
  /// context is extended.
  void write_mla_scale(std::int64_t head_size) {
    const Value* const all_dim =
        number_of(config_, {"rope_scaling.mscale_all_dim", "rope_parameters.mscale_all_dim"});
    const Value* const factor =
        number_of(config_, {"rope_scaling.factor", "rope_parameters.factor"});
    if (all_dim == nullptr || factor == nullptr || factor->as_double() <= 1) return;
    const double mscale = 0.1 * all_dim->as_double() * std::log(factor->as_double()) + 1;
    set("attention.scale", Value::of(mscale * mscale / std::sqrt(static_cast<double>(head_size))),
        factor->mark);
  }

  /// A checkpoint whose KV cache was quantised to eight bits by compressed-tensors or ModelOpt.
  void write_cache() {
    const Value* const scheme = first_of(config_, {"quantization_config.kv_cache_scheme"});
    const Value* const bits = scheme == nullptr ? nullptr : scheme->find("num_bits");
    const bool is_float = scheme != nullptr && text_of(*scheme, {"type"}) == "float";
    const bool is_fp8 = (is_float && bits != nullptr && bits->is_int() && bits->integer == 8) ||
                        text_of(config_, {"quantization_config.kv_cache_quant_algo"}) == "FP8";
    if (is_fp8) set("kv_cache.dtype", Value::of("fp8_e4m3"), config_.mark);
  }

  const Value& config_;
  std::string model_type_;
  std::string note_;
  Value scenario_ = Value::map();
};

}  // namespace

bool is_hf_config(const Value& document) {
  if (!document.is_map()) return false;
  for (const char* key : {"schema", "attention", "batch", "extends"}) {
    if (document.find(key) != nullptr) return false;
  }
  return first_of(document, {"model_type", "architectures", "num_attention_heads"}) != nullptr;
}

Value scenario_of_hf_config(const Value& config) {
  const Value flat = text_model(config);
  return Translation(flat).scenario();
}

}  // namespace attnbench
