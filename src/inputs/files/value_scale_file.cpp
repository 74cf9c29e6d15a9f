// Parsing, writing and use of static value scales. Zeros pass the parser, because files from
// calibration hold them for dead channels: a run replaces them by 1 and says so, the commands that
// check files refuse them.
#include "inputs/files/value_scale_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/system/printable.h"
#include "inputs/files/scale_text.h"

namespace attnbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMaxExtent = 1 << 20;

class ValueScaleParser {
 public:
  explicit ValueScaleParser(const std::string& where) : where_(where) {}

  ValueScaleFile parse(std::string_view text) {
    const Json document = parse_scale_json(text, where_);
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
    const std::string where = fmt::format("{}: layer '{}'", where_, shown(layer));
    if (number.is_boolean())
      fail(ErrorKind::kFormat, "{}: expected a number, got a boolean", where);
    const auto scale = static_cast<float>(scale_number(number, where));
    if (std::isfinite(scale) && scale >= 0.0f) return scale;
    fail(ErrorKind::kValue, "{}: expected finite scales > 0, got {}", where, shown_json(number));
  }

  std::string where_;
  ValueScaleFile file_;
};

/// Extents that are not the problem's are E-SHAPE.
void check_extent(const std::string& where, const char* name, std::int64_t expected,
                  std::int64_t actual) {
  if (actual == expected) return;
  fail(ErrorKind::kShape, "{}: {}: expected {}, got {}", where, name, expected, actual);
}

/// Zeros become 1.0; returns how many.
std::int64_t replace_zeros(std::vector<float>& scales) {
  const auto zeros = std::count(scales.begin(), scales.end(), 0.0f);
  std::replace(scales.begin(), scales.end(), 0.0f, 1.0f);
  return zeros;
}

}  // namespace

ValueScaleFile parse_value_scale_file(std::string_view text, const std::string& where) {
  return ValueScaleParser(where).parse(text);
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
             shown(name), i / width, i % width, scales[i]);
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

ValueScales read_value_scales(const Problem& problem) {
  constexpr std::string_view kKey = "kv_cache.value_scale_file";
  const std::string& path = *problem.kv_cache.value_scale_file;
  const std::string where = fmt::format("{} '{}'", kKey, path);
  ValueScaleFile file = parse_value_scale_file(read_scale_text(path, kKey), where);
  check_extent(where, "num_kv_heads", problem.attention.num_kv_heads, file.num_kv_heads);
  check_extent(where, "head_size", problem.attention.v_head_size, file.head_size);
  ValueScales result;
  for (auto& [name, scales] : file.layers) {
    const std::int64_t zeros = replace_zeros(scales);
    if (zeros == 0) continue;
    result.notices.push_back(
        fmt::format("warning: {}: layer '{}': {} scales of 0 became 1", where, shown(name), zeros));
  }
  if (file.layers.size() > 1) {
    result.notices.push_back(fmt::format("{}: {} layers, layer '{}' is used", where,
                                         file.layers.size(), shown(file.layers.front().first)));
  }
  result.scale = std::move(file.layers.front().second);
  return result;
}

ValueScales make_value_scales(const Tensor& value) {
  const std::int64_t channels = value.dim(1) * value.dim(2);
  ValueScales result;
  result.scale.assign(static_cast<std::size_t>(channels), 0.0f);
  for (std::int64_t row = 0; row < value.dim(0); ++row) {
    for (std::int64_t c = 0; c < channels; ++c) {
      float& largest = result.scale[static_cast<std::size_t>(c)];
      largest = std::fmax(largest, std::fabs(value.at(row * channels + c)));
    }
  }
  std::int64_t zeros = 0;
  for (std::int64_t c = 0; c < channels; ++c) {
    float& scale = result.scale[static_cast<std::size_t>(c)];
    if (std::isinf(scale)) {
      fail(ErrorKind::kValue,
           "value scales of int8 attention: expected finite values, got an infinite one in KV head "
           "{}, channel {}",
           c / value.dim(2), c % value.dim(2));
    }
    scale /= 127.0f;
    if (scale > 0.0f) continue;
    scale = 1.0f;
    ++zeros;
  }
  if (zeros > 0 && value.dim(0) > 0) {
    result.notices.push_back(fmt::format(
        "warning: int8 attention: {} value channels hold only zeros, their scale is 1", zeros));
  }
  return result;
}

}  // namespace attnbench
