// How somebody else writes log-sum-exps, and the way to ours: natural, -inf for rows without keys.
#pragma once

#include <cmath>
#include <limits>
#include <numbers>

namespace attnbench {

struct LseConvention {
  bool base_two = false;           // log2 of the sum instead of ln
  bool empty_is_plus_inf = false;  // rows that see no key: +inf instead of -inf
};

/// `value` written by `convention`, as we write it. Why both infinities change places: a row that
/// breaks the convention must stay as wrong as it is.
inline float to_natural(float value, const LseConvention& convention) {
  if (std::isinf(value)) return convention.empty_is_plus_inf ? -value : value;
  return convention.base_two ? value * std::numbers::ln2_v<float> : value;
}

/// One of ours as somebody who writes by `convention` reads it.
inline float from_natural(float value, const LseConvention& convention) {
  if (std::isinf(value)) return convention.empty_is_plus_inf ? -value : value;
  return convention.base_two ? value * std::numbers::log2e_v<float> : value;
}

}  // namespace attnbench
