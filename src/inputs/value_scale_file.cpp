#include "inputs/value_scale_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "inputs/scale_text.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMaxExtent = 1 << 20;
constexpr std::size_t kMaxNames = 50'000;

class Parser {
 public:
  explicit Parser(const std::string& where) : where_(where) {}

  ValueScaleFile parse(std::string_view text) {
    const Json document = parse_json(text);
    if (!document.is_object()) wrong_format("expected a JSON object");
    if (const std::int64_t version = integer(document, "version"); version != kVersion) {
      wrong_format(fmt::format("version: expected {}, got {}", kVersion, version));
    }
    file_.num_kv_heads = extent(document, "num_kv_heads");
    file_.head_size = extent(document, "head_size");
    const auto layers = document.find("layers");
    if (layers == document.end() || !layers->is_object() || layers->empty()) {
      wrong_format("expected 'layers', an object with at least one layer");
    }
    for (const auto& [name, rows] : layers->items()) {
      file_.layers.emplace_back(name, read_layer(name, rows));
    }
    std::sort(file_.layers.begin(), file_.layers.end(),
              [](const auto& a, const auto& b) { return natural_less(a.first, b.first); });
    return std::move(file_);
  }

 private:
  [[noreturn]] void wrong_format(const std::string& text) const {
    fail(ErrorKind::kFormat, "{}: {}", where_, text);
  }

  Json parse_json(std::string_view text) const {
    // Names of the objects that are open; the last name of a repeated one would win otherwise.
    std::vector<std::set<std::string>> names;
    const auto callback = [&](int, Json::parse_event_t event, Json& parsed) {
      if (event == Json::parse_event_t::object_start) names.emplace_back();
      if (event == Json::parse_event_t::object_end) names.pop_back();
      if (event == Json::parse_event_t::key &&
          !names.back().insert(parsed.get<std::string>()).second) {
        wrong_format(fmt::format("duplicate name '{}'", shown(parsed.get<std::string>())));
      }
      // An object that keeps its order looks for each new name among all others.
      if (!names.empty() && names.back().size() > kMaxNames) {
        wrong_format(fmt::format("expected at most {} names", kMaxNames));
      }
      return true;
    };
    try {
      return Json::parse(text, callback);
    } catch (const Json::exception& error) {
      wrong_format(fmt::format("expected JSON: {}", shown(error.what())));
    }
  }

  std::int64_t integer(const Json& document, const char* name) const {
    const auto found = document.find(name);
    if (found == document.end() || !found->is_number_integer()) {
      wrong_format(fmt::format("expected '{}', an integer", name));
    }
    return found->get<std::int64_t>();
  }

  std::int64_t extent(const Json& document, const char* name) const {
    const std::int64_t value = integer(document, name);
    if (value < 1 || value > kMaxExtent) {
      fail(ErrorKind::kShape, "{}: {}: expected 1 to {}, got {}", where_, name, kMaxExtent, value);
    }
    return value;
  }

  std::vector<float> read_layer(const std::string& name, const Json& rows) const {
    const auto wrong_shape = [&](const std::string& got) {
      fail(ErrorKind::kShape,
           "{}: layer '{}': expected {} rows (num_kv_heads) of {} numbers (head_size), got {}",
           where_, shown(name), file_.num_kv_heads, file_.head_size, got);
    };
    if (!rows.is_array()) wrong_shape("no list");
    if (static_cast<std::int64_t>(rows.size()) != file_.num_kv_heads) {
      wrong_shape(fmt::format("{} rows", rows.size()));
    }
    std::vector<float> scale;
    for (const Json& row : rows) {
      if (!row.is_array() || static_cast<std::int64_t>(row.size()) != file_.head_size) {
        wrong_shape(row.is_array() ? fmt::format("a row of {}", row.size()) : "a row that is none");
      }
      for (const Json& number : row) scale.push_back(read_scale(name, number));
    }
    return scale;
  }

  float read_scale(const std::string& layer, const Json& number) const {
    if (!number.is_number()) {
      wrong_format(
          fmt::format("layer '{}': expected numbers, got {}", shown(layer), shown_json(number)));
    }
    const auto scale = static_cast<float>(number.get<double>());
    if (std::isfinite(scale) && scale >= 0.0f) return scale;
    fail(ErrorKind::kValue, "{}: layer '{}': expected finite scales > 0, got {}", where_,
         shown(layer), number.dump());
  }

  std::string where_;
  ValueScaleFile file_;
};

}  // namespace

ValueScaleFile parse_value_scale_file(std::string_view text, const std::string& where) {
  return Parser(where).parse(text);
}

std::string value_scale_file_text(const ValueScaleFile& file) {
  Json layers = Json::object();
  const auto width = static_cast<std::size_t>(file.head_size);
  for (const auto& [name, scales] : file.layers) {
    Json rows = Json::array();
    for (std::size_t i = 0; i < scales.size(); ++i) {
      if (!is_scale(scales[i])) {
        fail(ErrorKind::kValue,
             "value scale of layer '{}', KV head {}, channel {}: expected a finite number > 0, got "
             "{}",
             name, i / width, i % width, scales[i]);
      }
      if (i % width == 0) rows.push_back(Json::array());
      rows.back().push_back(scales[i]);
    }
    layers[name] = std::move(rows);
  }
  const Json document = {{"version", kVersion},
                         {"num_kv_heads", file.num_kv_heads},
                         {"head_size", file.head_size},
                         {"layers", layers}};
  return document.dump(2);
}

}  // namespace attnbench
