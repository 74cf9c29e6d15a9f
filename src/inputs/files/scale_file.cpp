// One face for the formats of scale files. Each format is parsed and written by its own module;
// here they are told apart, and brought to the common form and back without changing a number.
#include "inputs/files/scale_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/system/printable.h"
#include "inputs/files/encoder_scale_file.h"
#include "inputs/files/kv_scale_file.h"
#include "inputs/files/scale_text.h"
#include "inputs/files/value_scale_file.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

bool has_any(const Json& object, std::initializer_list<const char*> keys) {
  return std::any_of(keys.begin(), keys.end(),
                     [&](const char* key) { return object.contains(key); });
}

/// Both vllm-mm and kv-cache may have the long keys. A cache's are known by its layers' names, by
/// lists of scales and by a query without one.
bool is_of_cache(std::string_view layer, const Json& entry) {
  if (has_any(entry, {"q", "k", "v"}) || !has_any(entry, {"k_scale", "v_scale"})) return false;
  return layer.find("self_attn") != std::string_view::npos || !entry.contains("q_scale") ||
         std::any_of(entry.begin(), entry.end(),
                     [](const Json& value) { return value.is_array(); });
}

ScaleFormat detect_format(std::string_view text, const std::string& name) {
  std::vector<std::string> duplicates;  // for the reader of the format to judge
  const Json document = parse_scale_json(text, fmt::format("scale file {}", name), &duplicates);
  if (has_any(document, {"num_kv_heads", "version"})) return ScaleFormat::kInt8Value;
  if (document.contains("kv_cache")) return ScaleFormat::kKvCacheLegacy;
  const auto nested = document.find("layers");
  const bool is_nested = nested != document.end() && nested->is_object();
  for (const auto& [layer, entry] : (is_nested ? *nested : document).items()) {
    if (entry.is_object() && is_of_cache(layer, entry)) return ScaleFormat::kKvCache;
  }
  return ScaleFormat::kVllmMm;
}

void take(MmScaleFile source, ScaleFile& file) {
  for (const auto& [layer, scales] : source.layers) {
    file.layers.push_back(
        {layer, {std::vector{scales.q}, std::vector{scales.k}, std::vector{scales.v}}});
  }
  file.notices = std::move(source.notices);
}

void take(KvScaleFile source, ScaleFile& file) {
  for (auto& [layer, scales] : source.layers) {
    std::vector<double> query;
    if (!source.is_legacy) query.push_back(scales.q);
    file.layers.push_back({layer, {query, std::move(scales.k), std::move(scales.v)}});
  }
  file.notices = std::move(source.notices);
}

/// Why zeros are refused here: only `run` may replace them, and says so then (§11.3).
void take(const ValueScaleFile& source, const std::string& where, ScaleFile& file) {
  file.num_kv_heads = source.num_kv_heads;
  file.head_size = source.head_size;
  for (const auto& [layer, scales] : source.layers) {
    const auto zero = std::find(scales.begin(), scales.end(), 0.0f) - scales.begin();
    if (static_cast<std::size_t>(zero) < scales.size()) {
      fail(ErrorKind::kValue, "{}: layer '{}': the scale of KV head {}, channel {} is 0", where,
           shown(layer), zero / source.head_size, zero % source.head_size);
    }
    LayerScales result{layer, {}};
    result.scale[2].assign(scales.begin(), scales.end());
    file.layers.push_back(std::move(result));
  }
}

std::string mm_text(const ScaleFile& file) {
  std::vector<std::pair<std::string, MmLayerScales>> layers;
  for (const LayerScales& layer : file.layers) {
    const auto& [q, k, v] = layer.scale;
    layers.push_back({layer.layer, {q.at(0), k.at(0), v.at(0)}});
  }
  return mm_scales_text(layers);
}

std::string kv_text(const ScaleFile& file) {
  std::vector<std::pair<std::string, KvLayerScales>> layers;
  for (const LayerScales& layer : file.layers) {
    const auto& [q, k, v] = layer.scale;
    layers.push_back({layer.layer, {k, v, q.at(0)}});
  }
  return kv_scales_text(layers);
}

std::string legacy_text(const ScaleFile& file, const std::string& model_type) {
  std::vector<double> scales;
  for (const LayerScales& layer : file.layers) {
    if (layer_number(layer.layer) != static_cast<std::int64_t>(scales.size())) {
      fail(ErrorKind::kValue,
           "kv-cache-legacy: expected layers numbered 0, 1, ...; layer {} is missing, found '{}'",
           scales.size(), shown(layer.layer));
    }
    scales.push_back(layer.scale[1].at(0));
  }
  return legacy_kv_scales_text(scales, model_type);
}

std::string value_text(const ScaleFile& file) {
  ValueScaleFile result{file.num_kv_heads, file.head_size, {}};
  for (const LayerScales& layer : file.layers) {
    std::vector<float> scales;
    for (const double scale : layer.scale[2]) scales.push_back(static_cast<float>(scale));
    result.layers.emplace_back(layer.layer, std::move(scales));
  }
  return value_scale_file_text(result);
}

bool is_layer_digit(char c) { return c >= '0' && c <= '9'; }

std::optional<std::int64_t> number_at(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  return number;
}

}  // namespace

std::span<const EnumRow<ScaleFormat>> enum_rows(ScaleFormat) {
  using enum ScaleFormat;
  static constexpr auto kRows = every_value<EnumRow<ScaleFormat>>({
      {kVllmMm, "vllm-mm", "q, k and v of the layers of a vision encoder"},
      {kKvCache, "kv-cache", "k and v of the layers of a decoder, with q where it has one"},
      {kKvCacheLegacy, "kv-cache-legacy", "one scale a layer, by rank and number of the layer"},
      {kInt8Value, "int8-value", "a scale for each channel of the values (int8 level 1)"},
  });
  return kRows;
}

ScaleFile parse_scale_file(std::string_view text, const std::string& name,
                           std::optional<ScaleFormat> format) {
  ScaleFile file;
  file.name = name;
  file.format = format ? *format : detect_format(text, name);
  const std::string where = fmt::format("scale file {}", name);
  switch (file.format) {
    case ScaleFormat::kVllmMm:
      take(parse_mm_scales(text, name), file);
      break;
    case ScaleFormat::kKvCache:
    case ScaleFormat::kKvCacheLegacy: {
      KvScaleFile source = parse_kv_scales(text, name);
      if (source.is_legacy != (file.format == ScaleFormat::kKvCacheLegacy)) {
        fail(ErrorKind::kFormat, "{}: expected the format {}, found the other form of a cache's",
             where, to_string(file.format));
      }
      take(std::move(source), file);
      break;
    }
    case ScaleFormat::kInt8Value:
      take(parse_value_scale_file(text, where), where, file);
      break;
  }
  if (file.layers.empty()) fail(ErrorKind::kValue, "{}: it has no layers", where);
  return file;
}

ScaleFile read_scale_file(const std::filesystem::path& path, std::optional<ScaleFormat> format) {
  const char* what = format == ScaleFormat::kInt8Value ? "scale file" : "FP8 scale file";
  return parse_scale_file(read_scale_text(path, what), path.string(), format);
}

std::string scale_file_text(const ScaleFile& file, const std::string& model_type) {
  switch (file.format) {
    case ScaleFormat::kVllmMm:
      return mm_text(file);
    case ScaleFormat::kKvCache:
      return kv_text(file);
    case ScaleFormat::kKvCacheLegacy:
      return legacy_text(file, model_type);
    case ScaleFormat::kInt8Value:
      return value_text(file);
  }
  fail(ErrorKind::kInternal, "no such scale format");
}

std::optional<std::int64_t> layer_number(std::string_view layer) {
  constexpr std::string_view kMark = "layers.";
  if (const std::size_t mark = layer.find(kMark); mark != std::string_view::npos) {
    return number_at(layer.substr(mark + kMark.size()));
  }
  const auto first = std::find_if(layer.begin(), layer.end(), is_layer_digit);
  const auto end = std::find_if_not(first, layer.end(), is_layer_digit);
  if (std::any_of(end, layer.end(), is_layer_digit)) return std::nullopt;  // which of them?
  return number_at(layer.substr(static_cast<std::size_t>(first - layer.begin())));
}

bool same_layer(ScaleFormat format, std::string_view a, std::string_view b) {
  if (a == b) return true;
  if (format != ScaleFormat::kKvCacheLegacy) return false;
  const auto number = layer_number(a);
  return number && number == layer_number(b);
}

const LayerScales& require_layer(const ScaleFile& file, const std::string& layer) {
  for (const LayerScales& scales : file.layers) {
    if (same_layer(file.format, scales.layer, layer)) return scales;
  }
  std::vector<std::string> available;
  for (const LayerScales& scales : file.layers) available.push_back(scales.layer);
  fail_without_scales(layer, file.name, available);
}

}  // namespace attnbench
