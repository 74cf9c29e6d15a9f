#include "inputs/cache/value_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/printable.h"
#include "inputs/files/scale_text.h"
#include "inputs/files/value_scale_file.h"

namespace attnbench {
namespace {

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
