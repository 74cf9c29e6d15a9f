// Integer helpers of semantics §0.2 and overflow-checked 64-bit products. For sizes and offsets
// that are computed from lengths of a scenario: these are bounded one by one, their products are
// not, so an overflow is a case that is too large (E-CAPACITY) and no defect of the program.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "core/error.h"

namespace attnbench {

/// ceil(a / b) for a >= 0, b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
/// floor(a / b) * b for a >= 0, b > 0.
constexpr int64_t round_down(int64_t a, int64_t b) { return a / b * b; }
/// ceil(a / b) * b for a >= 0, b > 0.
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/// a * b; E-CAPACITY naming `what` when it does not fit 64 bits.
inline int64_t checked_mul(int64_t a, int64_t b, std::string_view what) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    fail(ErrorKind::kCapacity, "{}: {} * {} exceeds the 64-bit range", what, a, b);
  }
  return product;
}
/// a + b; E-CAPACITY naming `what` when it does not fit 64 bits.
inline int64_t checked_add(int64_t a, int64_t b, std::string_view what) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    fail(ErrorKind::kCapacity, "{}: {} + {} exceeds the 64-bit range", what, a, b);
  }
  return sum;
}
/// x as int32; E-CAPACITY naming `what` when it does not fit.
inline int32_t checked_int32(int64_t x, std::string_view what) {
  if (x < std::numeric_limits<int32_t>::min() || x > std::numeric_limits<int32_t>::max()) {
    fail(ErrorKind::kCapacity, "{}: {} exceeds the 32-bit range", what, x);
  }
  return static_cast<int32_t>(x);
}

}  // namespace attnbench
