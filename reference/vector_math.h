// Element-wise functions over arrays in forms that compilers vectorise: the exponential and
// hyperbolic tangent of the softmax, rounding to storage formats, and loading of stored values.
#pragma once

#include <cstdint>

#include "core/numbers/dtype.h"

namespace attnbench {

/// values[i] = e^(values[i] - maximum) for values[i] <= maximum; about 1 ulp, gradual underflow to
/// exactly 0. NaN propagates, and so does infinity minus infinity.
template <typename Real>
void exp_minus(Real* values, std::int64_t count, Real maximum);

/// values[i] = cap * tanh(values[i] / cap), cap > 0 (semantics §3.1).
template <typename Real>
void soft_cap(Real* values, std::int64_t count, Real cap);

/// Every value as it reads back from storage as `dtype` (a floating type), like round_to.
void round_values(Dtype dtype, float* values, std::int64_t count);

/// Elements [first, first + count) of an array of a floating dtype, without any rounding for
/// Real = double; f64 data is rounded for Real = float.
template <typename Real>
void load_values(Dtype dtype, const void* data, std::int64_t first, std::int64_t count,
                 Real* destination);

}  // namespace attnbench
