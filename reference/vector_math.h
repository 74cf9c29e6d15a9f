// Element-wise functions over arrays in forms that compilers vectorise: the exponential and
// hyperbolic tangent of the softmax, rounding to storage formats, and loading of stored values.
//
// The standard library's functions work on one value at a time and would take most of the time of
// the reference. The results here are within about 1 ulp of theirs (the tests compare), and NaN,
// infinity and subnormal results are kept (semantics §0.6.6).
#pragma once

#include <cstdint>

#include "core/numbers/dtype.h"

namespace attnbench {

// Real is double (the reference) or float (the emulation of storage precision); both are
// instantiated in vector_math.cpp. Arrays are dense and may not overlap.

/// values[i] = e^(values[i] - maximum) for values[i] <= maximum; about 1 ulp, gradual underflow to
/// exactly 0. NaN propagates, and so does infinity minus infinity.
template <typename Real>
void exp_minus(Real* values, std::int64_t count, Real maximum);

/// values[i] = cap * tanh(values[i] / cap), cap > 0 (semantics §3.1). Scores far below the cap keep
/// their relative precision.
template <typename Real>
void soft_cap(Real* values, std::int64_t count, Real cap);

/// Every value as it reads back from storage as `dtype`, like round_to for each: nearest even, f16
/// and bf16 overflow to infinity, e4m3 and e5m2 saturate (semantics §0.4). f32 only, because
/// storage precision is emulated in f32; nothing happens for f32 and f64.
void round_values(Dtype dtype, float* values, std::int64_t count);

/// Elements [first, first + count) of an array of a floating dtype, without any rounding for
/// Real = double; f64 data is rounded for Real = float. Codes are converted as they are: whoever
/// has scales multiplies afterwards.
template <typename Real>
void load_values(Dtype dtype, const void* data, std::int64_t first, std::int64_t count,
                 Real* destination);

}  // namespace attnbench
