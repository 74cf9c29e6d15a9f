// Scale files of an fp8 cache in both forms, and their way into a Problem. The file never wins
// silently over a number that the scenario gives, nor the other way round: they agree exactly or
// the case is refused.
#include "inputs/files/kv_scale_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/system/printable.h"
#include "inputs/files/scale_text.h"

namespace attnbench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kKvScaleFile = "KV-cache scale file";
constexpr const char* kLegacyDtype = "float8_e4m3fn";

void check_scale(double scale, const std::string& where) {
  if (is_scale(scale)) return;
  fail(ErrorKind::kValue, "{}: expected a finite number > 0 in float32, got {}", where,
       python_repr(scale));
}

/// A number, or a list of one a KV head.
std::vector<double> read_scales(const Json& value, const std::string& where) {
  std::vector<double> scales;
  if (value.is_array()) {
    for (const Json& item : value) scales.push_back(scale_number(item, where));
    if (scales.empty()) fail(ErrorKind::kFormat, "{}: expected numbers, got an empty list", where);
  } else {
    scales.push_back(scale_number(value, where));
  }
  for (const double scale : scales) check_scale(scale, where);
  return scales;
}

class KvScaleParser {
 public:
  explicit KvScaleParser(const std::string& name)
      : name_(fmt::format("{} {}", kKvScaleFile, name)) {}

  KvScaleFile parse(std::string_view text) {
    const Json document = parse_scale_json(text, name_);
    if (document.contains("kv_cache")) {
      read_legacy(document["kv_cache"]);
    } else {
      const auto nested = document.find("layers");
      const bool is_nested = nested != document.end() && nested->is_object();
      if (is_nested) name_the_left_out(document, {"layers"}, "");
      for (const auto& [layer, entry] : (is_nested ? *nested : document).items()) {
        read_layer(layer, entry);
      }
    }
    if (file_.layers.empty()) fail(ErrorKind::kValue, "{}: it has no layers", name_);
    return std::move(file_);
  }

 private:
  std::string where(const std::string& layer, std::string_view key) const {
    return fmt::format("{}: {} of layer '{}'", name_, key, shown(layer));
  }

  void read_layer(const std::string& layer, const Json& entry) {
    if (!entry.is_object()) {
      fail(ErrorKind::kFormat,
           "{}: layer '{}': expected an object with k_scale and v_scale, got {}", name_,
           shown(layer), shown_json(entry));
    }
    KvLayerScales scales;
    for (const auto& [key, target] :
         {std::pair{"k_scale", &scales.k}, std::pair{"v_scale", &scales.v}}) {
      const auto found = entry.find(key);
      if (found == entry.end()) {
        fail(ErrorKind::kFormat, "{}: layer '{}': {} is missing", name_, shown(layer), key);
      }
      *target = read_scales(*found, where(layer, key));
    }
    const auto query = entry.find("q_scale");
    if (query == entry.end()) {
      file_.notices.push_back(
          fmt::format("{}: layer '{}' has no q_scale, which is 1 then", name_, shown(layer)));
    } else {
      scales.q = scale_number(*query, where(layer, "q_scale"));
      check_scale(scales.q, where(layer, "q_scale"));
    }
    name_the_left_out(entry, {"k_scale", "v_scale", "q_scale"},
                      fmt::format("layer '{}': ", shown(layer)));
    file_.layers.emplace_back(layer, std::move(scales));
  }

  /// A notice of the members that are not `known`: one of them may be a misspelt scale.
  void name_the_left_out(const Json& object, std::initializer_list<std::string_view> known,
                         const std::string& where) {
    std::vector<std::string> left_out;
    for (const auto& [key, value] : object.items()) {
      const bool is_known = std::find(known.begin(), known.end(), key) != known.end();
      if (!is_known) left_out.push_back(key);
    }
    if (left_out.empty()) return;
    file_.notices.push_back(
        fmt::format("{}: {}left out: {}", name_, where, quoted_names(left_out)));
  }

  const Json& member(const Json& object, const char* key) const {
    if (!object.is_object() || !object.contains(key) || !object[key].is_object()) {
      fail(ErrorKind::kFormat, "{}: expected an object '{}'", name_, key);
    }
    return object[key];
  }

  void read_legacy(const Json& cache) {
    file_.is_legacy = true;
    if (!cache.is_object() || !cache.contains("dtype") || cache["dtype"] != kLegacyDtype) {
      fail(ErrorKind::kFormat, "{}: expected kv_cache with dtype \"{}\"", name_, kLegacyDtype);
    }
    const Json& ranks = member(cache, "scaling_factor");
    if (ranks.size() > 1) {
      file_.notices.push_back(
          fmt::format("{}: {} ranks, the scales of rank 0 are used", name_, ranks.size()));
    }
    for (const auto& [layer, value] : member(ranks, "0").items()) {
      const double scale = scale_number(value, where(layer, "scaling_factor"));
      check_scale(scale, where(layer, "scaling_factor"));
      KvLayerScales scales;
      scales.k = scales.v = {scale};
      file_.layers.emplace_back(layer, std::move(scales));
    }
  }

  std::string name_;
  KvScaleFile file_;
};

/// One number as such, several as a list.
Json number_or_list(const std::vector<double>& scales, const std::string& layer) {
  for (const double scale : scales) check_scale(scale, fmt::format("scale of layer '{}'", layer));
  return scales.size() == 1 ? Json(scales.front()) : Json(scales);
}

std::string numbers_text(const std::vector<double>& numbers) {
  if (numbers.size() == 1) return fmt::format("{}", numbers.front());
  return fmt::format("[{}]", fmt::join(numbers, ", "));
}

/// What the file says for `key`. Why another number beside it is refused and not preferred: whoever
/// wrote it would take one of the two for what was used.
void adopt(const std::string& key, std::vector<double>& target, const std::vector<double>& scales,
           const Problem& problem, const std::map<std::string, std::string>& given) {
  const auto heads = static_cast<std::size_t>(problem.attention.num_kv_heads);
  const std::string& path = *problem.kv_cache.scale_file;
  if (scales.size() != 1 && scales.size() != heads) {
    fail(ErrorKind::kShape, "{} {}: {}: expected one number or num_kv_heads = {} of them, got {}",
         kKvScaleFile, path, key, heads, scales.size());
  }
  const auto place = given.find(key);
  if (place != given.end() && target != scales) {
    fail(ErrorKind::kConfig,
         "{}{}: expected no number beside scale_file {}, which says {}; found {}", place->second,
         key, path, numbers_text(scales), numbers_text(target));
  }
  target = scales;
}

}  // namespace

KvScaleFile parse_kv_scales(std::string_view text, const std::string& name) {
  return KvScaleParser(name).parse(text);
}

KvScaleFile read_kv_scales(const fs::path& path) {
  return parse_kv_scales(read_scale_text(path, kKvScaleFile), path.string());
}

std::string kv_scales_text(const std::vector<std::pair<std::string, KvLayerScales>>& layers) {
  Json document = Json::object();
  for (const auto& [layer, scales] : layers) {
    document[layer] = {{"k_scale", number_or_list(scales.k, layer)},
                       {"v_scale", number_or_list(scales.v, layer)},
                       {"q_scale", number_or_list({scales.q}, layer)}};
  }
  return document.dump(2);
}

std::string legacy_kv_scales_text(const std::vector<double>& scales,
                                  const std::string& model_type) {
  Json factors = Json::object();
  for (std::size_t layer = 0; layer < scales.size(); ++layer) {
    check_scale(scales[layer], fmt::format("scale of layer {}", layer));
    factors[std::to_string(layer)] = scales[layer];
  }
  const Json document = {
      {"model_type", model_type},
      {"kv_cache", {{"dtype", kLegacyDtype}, {"scaling_factor", {{"0", factors}}}}}};
  return document.dump(2);
}

std::vector<std::string> adopt_kv_scale_file(Problem& problem,
                                             const std::map<std::string, std::string>& given) {
  KvCacheSpec& cache = problem.kv_cache;
  if (!cache.scale_file) return {};
  KvScaleFile file = read_kv_scales(*cache.scale_file);
  const auto& [layer, scales] = *std::min_element(
      file.layers.begin(), file.layers.end(),
      [](const auto& a, const auto& b) { return natural_less(a.first, b.first); });
  std::vector<double> query{cache.q_scale};
  adopt("kv_cache.k_scale", cache.k_scale, scales.k, problem, given);
  adopt("kv_cache.v_scale", cache.v_scale, scales.v, problem, given);
  if (!file.is_legacy) adopt("kv_cache.q_scale", query, {scales.q}, problem, given);
  cache.q_scale = query.front();
  if (file.layers.size() > 1) {
    file.notices.push_back(fmt::format("{} {}: {} layers, layer '{}' is used", kKvScaleFile,
                                       *cache.scale_file, file.layers.size(), shown(layer)));
  }
  return std::move(file.notices);
}

}  // namespace attnbench
