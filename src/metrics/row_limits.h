// What a row of attention may err by: floors of the types of output and P, and the factors on what
// honest rounding costs. What they are decided by is docs/verdicts.md.
#pragma once

#include <string>

#include "core/numbers/dtype.h"
#include "metrics/tolerance.h"

namespace attnbench {

/// A row may err by max(floor, emulation_factor * the emulation's error of the row,
/// emulation_factor * the median of those of its request, what float32 loses there), an element by
/// element_factor * that / sqrt(Dv) and a unit in the last place of the output's type besides.
struct RowLimits {
  double floor = 0;             // of ||a - r|| / n
  double emulation_factor = 2;  // of the row's, and of the median over its request
  double element_factor = 8;
  /// > 0: the output holds e4m3 codes of o / e4m3_scale. The error is then the least that a value
  /// before quantisation can have had, and an element may be one e4m3 step beyond its limit.
  double e4m3_scale = 0;
  std::string rule;  // e.g. "rows, bfloat16"
};

/// An LSE may err by max(floor, emulation_factor * the emulation's error, emulation_factor * its
/// median over the request, what float32 loses there); absolute, natural log.
struct LseLimits {
  double floor = 0;
  double emulation_factor = 4;
  std::string rule;
};

/// By the types of output and P; of an output that a static scale quantises, by the type that it is
/// computed in. MLA rounds more often, and its floor is higher.
RowLimits output_row_limits(const ToleranceQuery& query);
/// `input`: of the model; MLA rounds its latent query. `fp8_products`: query and keys are e4m3, and
/// a tensor core keeps some 14 bits of the sums of their products.
LseLimits lse_row_limits(Dtype input, bool mla = false, bool fp8_products = false);

}  // namespace attnbench
