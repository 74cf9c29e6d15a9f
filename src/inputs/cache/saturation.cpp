#include "inputs/cache/saturation.h"

#include <atomic>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/system/parallel.h"

namespace attnbench {
namespace {

constexpr std::int64_t kCountedRows = 64;

/// The largest magnitude that still rounds to the largest code: halfway to the next one that the
/// format would have. At it e4m3 and e5m2 round to the even code below, int8 to the one above.
float last_rounded(Dtype codes) {
  switch (codes) {
    case Dtype::kE4M3:
      return 464.0f;
    case Dtype::kE5M2:
      return 61440.0f;
    case Dtype::kI8:
      return std::nextafter(127.5f, 0.0f);
    default:
      fail(ErrorKind::kInternal, "{} has no scales that clip", dtype_name(codes));
  }
}

double share(std::int64_t count, std::int64_t of) {
  return of > 0 ? static_cast<double>(count) / static_cast<double>(of) : 0;
}

double share_of(const Tensor& source, const std::vector<float>& scales, Dtype codes) {
  return share(count_saturated(source, scales, codes), source.num_elements());
}

}  // namespace

std::int64_t count_saturated(const Tensor& source, std::span<const float> scales, Dtype codes) {
  if (source.empty()) return 0;
  const std::int64_t width = source.num_elements() / source.dim(0);
  const auto parts = static_cast<std::int64_t>(scales.size());
  if (parts < 1 || width % parts != 0) {
    fail(ErrorKind::kInternal, "{} scales do not divide rows of {} elements", parts, width);
  }
  const std::int64_t part = width / parts;
  const float limit = last_rounded(codes);
  const auto row_bytes = width * static_cast<std::int64_t>(dtype_size(source.dtype()));
  std::atomic<std::int64_t> total{0};
  for_each_chunk(source.dim(0), kCountedRows, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(static_cast<std::size_t>(width));
    std::int64_t here = 0;
    for (std::int64_t row = begin; row < end; ++row) {
      load_floats(source.dtype(), source.bytes() + row * row_bytes, width, values.data());
      for (std::int64_t p = 0; p < parts; ++p) {
        const float scale = scales[static_cast<std::size_t>(p)];
        const float* const first = values.data() + p * part;
        for (std::int64_t i = 0; i < part; ++i) here += std::fabs(first[i] / scale) > limit ? 1 : 0;
      }
    }
    total += here;
  });
  return total;
}

KvSaturation kv_saturation(const AttentionInputs& inputs, const StoreRule& rule) {
  if (inputs.shapes_only) return {};
  if (rule.int8_level == 1) {
    return {0, share_of(inputs.value, inputs.value_channel_scale, Dtype::kI8)};
  }
  if (rule.int8_level > 0 || !has_tensor_scales(rule.dtype)) return {};
  return {share_of(inputs.key, rule.k_scale, rule.element),
          share_of(inputs.value, rule.v_scale, rule.element)};
}

double query_saturation(const AttentionInputs& inputs, double q_scale) {
  const std::int64_t tokens = inputs.num_tokens();
  if (inputs.shapes_only || tokens == 0) return 0;
  // Rows behind the tokens are NaN, which counts nowhere.
  const std::vector<float> scale{static_cast<float>(q_scale)};
  const std::int64_t count = count_saturated(inputs.query, scale, Dtype::kE4M3);
  return share(count, tokens * inputs.query.dim(1) * inputs.query.dim(2));
}

}  // namespace attnbench
