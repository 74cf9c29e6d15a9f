// Elements of an output beside float64 values: what a record of screening is the sum of.
#pragma once

#include "kernels/measure/screen_operands.cuh"

namespace attn {

/// Half of the distance between the e4m3 code of value `x` and the next one.
ATTN_FN double screen_e4m3_half_step(double x) {
  const int exponent = static_cast<int>(float_bits(static_cast<float>(x)) >> 23 & 0xFFu) - 127;
  const u32 least = static_cast<u32>((exponent < -6 ? -6 : exponent) - 4 + 127);
  return double{float_from_bits(least << 23)};
}

/// Of the columns of a row that one thread has seen.
struct ScreenErrors {
  double error_squares = 0.0;
  double reference_squares = 0.0;
  double largest_error = 0.0;
  double misplaced = 0.0;

  __device__ __forceinline__ void add(const ScreenOutputParams& output, double actual,
                                      double expected) {
    if (expected > output.limit || expected < -output.limit) {
      // What the type cannot hold is its limit or an infinity; values between the largest one and
      // where rounding goes over to infinity may be either.
      if (output.saturates != 0) {
        expected = expected < 0.0 ? -output.limit : output.limit;
      } else if (screen_is_finite(expected) && !screen_is_finite(actual) && actual == actual &&
                 (actual < 0.0) == (expected < 0.0)) {
        return;
      }
    }
    if (!screen_is_finite(actual) || !screen_is_finite(expected)) {
      const bool both_nan = actual != actual && expected != expected;
      if (!both_nan && actual != expected) misplaced += 1.0;
      return;
    }
    const double error = actual - expected;
    double size = error < 0.0 ? -error : error;
    if (output.saturates != 0) {
      size -= output.scale * screen_e4m3_half_step(actual / output.scale);
      size = size > 0.0 ? size : 0.0;
    }
    error_squares += size * size;
    reference_squares += expected * expected;
    largest_error = size > largest_error ? size : largest_error;
  }

  /// Sums over the threads of the row, in each of them; spread and LSE are left.
  __device__ __forceinline__ ScreenRecord record() const {
    ScreenRecord whole;
    whole.error_squares = screen_row_sum(error_squares);
    whole.reference_squares = screen_row_sum(reference_squares);
    whole.spread_squares = 0.0;
    whole.largest_error = screen_row_max(largest_error);
    whole.lse = 0.0;
    whole.misplaced = static_cast<i64>(screen_row_sum(misplaced));
    return whole;
  }
};

}  // namespace attn
