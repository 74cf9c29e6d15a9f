// How other libraries write log-sum-exps, and the way to the form that attnbench compares: the
// natural logarithm, -inf for rows that see no key.
//
// Plugins declare theirs, since the libraries behind them differ: those that compute softmax with
// exp2 keep the base-2 logarithm of the sum, and some mark a row without keys by +inf. A
// log-sum-exp is converted once, where a plugin's buffer is read or filled; everything else holds
// the natural form.
#pragma once

#include <cmath>
#include <limits>
#include <numbers>

namespace attnbench {

/// lse = ln(sum over the allowed keys of exp(score)), the sink included where there is one. The
/// default is the natural form itself, which both functions below then return bit by bit.
struct LseConvention {
  /// log2 of the sum instead of ln. Infinities are the same in both.
  bool base_two = false;
  /// +inf instead of -inf for rows that see no key. A row with an infinite sink has the logarithm
  /// +inf by right, so such cases cannot be told apart under this convention and are refused.
  bool empty_is_plus_inf = false;
};

/// Costs one rounding to float32, far below the limits of any comparison: 2^-24 of the value.
/// `value` written by `convention`, in the natural form. Why both infinities change places: a row
/// that breaks the convention must stay as wrong as it is. A NaN stays one.
inline float to_natural(float value, const LseConvention& convention) {
  if (std::isinf(value)) return convention.empty_is_plus_inf ? -value : value;
  return convention.base_two ? value * std::numbers::ln2_v<float> : value;
}

/// The inverse: a natural one as a library that writes by `convention` reads it.
inline float from_natural(float value, const LseConvention& convention) {
  if (std::isinf(value)) return convention.empty_is_plus_inf ? -value : value;
  return convention.base_two ? value * std::numbers::log2e_v<float> : value;
}

}  // namespace attnbench
