// Scales from magnitudes: largest value, percentile, and the least squared error on the very grid
// of codes that the elements are rounded to. Results are the same on every machine, bit by bit: a
// scale file is compared and committed like source code.
#pragma once

#include <array>
#include <span>

#include "calibrate/magnitudes.h"
#include "core/enum_names.h"

namespace attnbench {

enum class ScaleMethod { kAmax, kPercentile, kMse };
/// As --method takes them.
inline constexpr auto kScaleMethodRows = every_value<EnumRow<ScaleMethod>>({
    {ScaleMethod::kAmax, "amax", "largest magnitude / largest code"},
    {ScaleMethod::kPercentile, "percentile", "a percentile of the magnitudes / largest code"},
    {ScaleMethod::kMse, "mse", "the least squared error"},
});
constexpr std::span<const EnumRow<ScaleMethod>> enum_rows(ScaleMethod) { return kScaleMethodRows; }
inline constexpr auto kScaleMethods = values_of(kScaleMethodRows);

/// The codes that x / scale is rounded to.
enum class CodeGrid { kE4M3, kInt8 };
/// 448 or 127.
float largest_code(CodeGrid grid);

/// What an element of magnitude `value` reads back as.
float read_back(float value, float scale, CodeGrid grid);

/// Sum of (x - read_back(x))^2 over all elements.
double squared_error(const Magnitudes& magnitudes, float scale, CodeGrid grid);

/// The scale of least squared error between twice amax / largest code and 1/32 of it: 16 steps an
/// octave, then 16 times finer around the best three. The larger one of equals. 0 when all is 0.
float best_scale(const Magnitudes& magnitudes, CodeGrid grid);

/// Shares of the elements that a scale costs more than rounding.
struct ScaleLosses {
  double saturated = 0;  // |x| / scale rounds beyond the largest code
  double flushed = 0;    // not 0, but reads back as 0
};
ScaleLosses scale_losses(const Magnitudes& magnitudes, float scale, CodeGrid grid);

}  // namespace attnbench
