#include "inputs/value_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"

namespace attnbench {
namespace {

using json = nlohmann::json;

constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;

/// Text of a file in a message: a hostile name may be as long as the file.
std::string shown(const std::string& text) {
  constexpr std::size_t kLongest = 100;
  return text.substr(0, kLongest) + (text.size() > kLongest ? "..." : "");
}

/// Numbers inside names count as numbers: "layers.2" stands before "layers.10".
bool natural_less(const std::string& a, const std::string& b) {
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
      continue;
    }
    const auto digits = [&](const std::string& text, std::size_t& at) {
      while (at + 1 < text.size() && text[at] == '0' && is_digit(text[at + 1])) ++at;
      const std::size_t begin = at;
      while (at < text.size() && is_digit(text[at])) ++at;
      return text.substr(begin, at - begin);
    };
    const std::string x = digits(a, i);
    const std::string y = digits(b, j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorKind::kIo, "kv_cache.value_scale_file '{}': cannot be opened", path);
  std::string text;
  std::vector<char> block(1 << 16);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMaxFileBytes) {
      fail(ErrorKind::kFormat, "kv_cache.value_scale_file '{}': expected at most {} MiB", path,
           kMaxFileBytes >> 20);
    }
  }
  if (file.bad()) fail(ErrorKind::kIo, "kv_cache.value_scale_file '{}': cannot be read", path);
  return text;
}

class Reader {
 public:
  explicit Reader(const Problem& problem)
      : path_(*problem.kv_cache.value_scale_file),
        num_kv_heads_(problem.attention.num_kv_heads),
        head_size_(problem.attention.v_head_size) {}

  ValueScales read() {
    const json document = parse();
    if (!document.is_object()) wrong_format("expected a JSON object");
    require_integer(document, "version", 1, ErrorKind::kFormat);
    require_integer(document, "num_kv_heads", num_kv_heads_, ErrorKind::kShape);
    require_integer(document, "head_size", head_size_, ErrorKind::kShape);
    const auto layers = document.find("layers");
    if (layers == document.end() || !layers->is_object() || layers->empty()) {
      wrong_format("expected 'layers', an object with at least one layer");
    }
    std::vector<std::string> names;
    for (const auto& [name, rows] : layers->items()) names.push_back(name);
    std::sort(names.begin(), names.end(), natural_less);
    ValueScales result;
    for (const std::string& name : names) {
      std::vector<float> scale = read_layer(name, (*layers)[name], result.notices);
      if (result.scale.empty()) result.scale = std::move(scale);
    }
    if (names.size() > 1) {
      result.notices.push_back(
          fmt::format("kv_cache.value_scale_file '{}': {} layers, layer '{}' is used", path_,
                      names.size(), shown(names.front())));
    }
    return result;
  }

 private:
  [[noreturn]] void wrong_format(const std::string& text) const {
    fail(ErrorKind::kFormat, "kv_cache.value_scale_file '{}': {}", path_, text);
  }

  json parse() const {
    // Names of the objects that are open; the last name of a repeated one would win otherwise.
    std::vector<std::set<std::string>> names;
    const auto callback = [&](int, json::parse_event_t event, json& parsed) {
      if (event == json::parse_event_t::object_start) names.emplace_back();
      if (event == json::parse_event_t::object_end) names.pop_back();
      if (event == json::parse_event_t::key &&
          !names.back().insert(parsed.get<std::string>()).second) {
        wrong_format(fmt::format("duplicate name '{}'", shown(parsed.get<std::string>())));
      }
      return true;
    };
    try {
      return json::parse(read_text(path_), callback);
    } catch (const json::exception& error) {
      wrong_format(fmt::format("expected JSON: {}", shown(error.what())));
    }
  }

  void require_integer(const json& document, const char* name, std::int64_t expected,
                       ErrorKind kind) const {
    const auto found = document.find(name);
    if (found == document.end() || !found->is_number_integer()) {
      wrong_format(fmt::format("expected '{}', an integer", name));
    }
    if (*found == expected) return;
    fail(kind, "kv_cache.value_scale_file '{}': {}: expected {}, got {}", path_, name, expected,
         found->dump());
  }

  std::vector<float> read_layer(const std::string& name, const json& rows,
                                std::vector<std::string>& notices) const {
    const auto wrong_shape = [&](const std::string& got) {
      fail(ErrorKind::kShape,
           "kv_cache.value_scale_file '{}': layer '{}': expected {} rows (num_kv_heads) of {} "
           "numbers (head_size), got {}",
           path_, shown(name), num_kv_heads_, head_size_, got);
    };
    if (!rows.is_array()) wrong_shape("no list");
    if (static_cast<std::int64_t>(rows.size()) != num_kv_heads_) {
      wrong_shape(fmt::format("{} rows", rows.size()));
    }
    std::vector<float> scale;
    std::int64_t zeros = 0;
    for (const json& row : rows) {
      if (!row.is_array() || static_cast<std::int64_t>(row.size()) != head_size_) {
        wrong_shape(row.is_array() ? fmt::format("a row of {}", row.size()) : "a row that is none");
      }
      for (const json& number : row) {
        scale.push_back(read_scale(name, number));
        if (scale.back() == 0.0f) {
          scale.back() = 1.0f;
          ++zeros;
        }
      }
    }
    if (zeros > 0) {
      notices.push_back(fmt::format(
          "warning: kv_cache.value_scale_file '{}': layer '{}': {} scales of 0 became 1", path_,
          shown(name), zeros));
    }
    return scale;
  }

  float read_scale(const std::string& layer, const json& number) const {
    if (!number.is_number()) {
      wrong_format(fmt::format("layer '{}': expected numbers, got {}", shown(layer),
                               shown(number.dump(-1, ' ', false, json::error_handler_t::replace))));
    }
    const auto scale = static_cast<float>(number.get<double>());
    if (std::isfinite(scale) && scale >= 0.0f) return scale;
    fail(ErrorKind::kValue,
         "kv_cache.value_scale_file '{}': layer '{}': expected finite scales > 0, got {}", path_,
         shown(layer), number.dump());
  }

  std::string path_;
  std::int64_t num_kv_heads_;
  std::int64_t head_size_;
};

}  // namespace

ValueScales read_value_scales(const Problem& problem) { return Reader(problem).read(); }

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
