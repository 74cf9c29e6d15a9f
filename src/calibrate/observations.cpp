#include "calibrate/observations.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "inputs/files/scale_text.h"

namespace attnbench {
namespace {

constexpr std::int64_t kMostLayers = 100'000;

/// "a.{}.b:3" -> a.0.b, a.1.b, a.2.b.
void expand_template(const std::string& text, std::size_t hole, std::vector<std::string>& layers) {
  const std::size_t colon = text.rfind(':');
  std::int64_t count = 0;
  if (colon != std::string::npos && colon > hole) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, count);
    if (error != std::errc{} || stop != end) count = 0;
  }
  if (count < 1 || count > kMostLayers) {
    fail(ErrorKind::kUsage,
         "--layers: expected a template with its number of layers, as in 'blocks.{{}}.attn:32', "
         "found '{}'",
         text);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    layers.push_back(text.substr(0, hole) + std::to_string(i) +
                     text.substr(hole + 2, colon - hole - 2));
  }
}

}  // namespace

std::vector<Role> scaled_roles(ScaleFormat format) {
  switch (format) {
    case ScaleFormat::kVllmMm:
    case ScaleFormat::kKvCache:
      return {kQueryRole, kKeyRole, kValueRole};
    case ScaleFormat::kKvCacheLegacy:
      return {kKeyRole, kValueRole};
    case ScaleFormat::kInt8Value:
      return {kValueRole};
  }
  return {};
}

std::vector<std::string> expand_layers(const std::vector<std::string>& names) {
  std::vector<std::string> layers;
  for (const std::string& name : names) {
    const std::size_t hole = name.find("{}");
    if (hole == std::string::npos) {
      layers.push_back(name);
    } else {
      expand_template(name, hole, layers);
    }
  }
  std::sort(layers.begin(), layers.end(),
            [](const auto& a, const auto& b) { return natural_less(a, b); });
  const auto twice = std::adjacent_find(layers.begin(), layers.end());
  if (twice != layers.end()) {
    fail(ErrorKind::kValue, "--layers: layer '{}' is given twice", *twice);
  }
  return layers;
}

}  // namespace attnbench
