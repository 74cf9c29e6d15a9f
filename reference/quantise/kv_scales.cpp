// A tensor that is zero everywhere gets the scale 1.0 and a warning: dividing by 0 would make NaN
// of every code. NaN or infinity in the data is refused, since no scale would represent it.
#include "reference/quantise/kv_scales.h"

#include <cmath>
#include <string_view>

#include "core/error.h"
#include "reference/quantise/amax_history.h"
#include "reference/quantise/number_formats.h"

namespace attnbench {
namespace {

float scale_of(const Tensor& x, std::optional<int> range, std::string_view name,
               std::vector<std::string>& warnings) {
  require_activation(x.dtype(), name);
  if (range && *range < 1) {
    fail(ErrorKind::kConfig, "scale range of {} must be >= 1, got {}", name, *range);
  }
  const float amax = tensor_amax(view_of(x), AmaxKind::kAbs);
  if (!std::isfinite(amax)) {
    fail(ErrorKind::kValue, "the largest |{}| must be finite to make a scale of it, got {}", name,
         amax);
  }
  const float scale = range ? amax / static_cast<float>(*range) : amax;
  if (scale != 0.0f) return scale;
  warnings.push_back(fmt::format("amax of {} is {}: its scale is set to 1.0", name, amax));
  return 1.0f;
}

}  // namespace

CalculatedKvScales calculate_kv_scales(const Tensor& query, const Tensor& key, const Tensor& value,
                                       const KvScaleRanges& ranges) {
  CalculatedKvScales scales;
  scales.query = scale_of(query, ranges.query, "query", scales.warnings);
  scales.key = scale_of(key, ranges.key, "key", scales.warnings);
  scales.value = scale_of(value, ranges.value, "value", scales.warnings);
  return scales;
}

CalculatedKvScales calculate_mla_kv_scales(const Tensor& query, const Tensor& kv_c_normed,
                                           const KvScaleRanges& ranges) {
  return calculate_kv_scales(query, kv_c_normed, kv_c_normed, ranges);
}

}  // namespace attnbench
