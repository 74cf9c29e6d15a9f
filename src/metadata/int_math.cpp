// The checked operations, by the compiler's own overflow tests. Lengths and counts come from files,
// so an overflow is a case that is too large (E-CAPACITY) and no defect of the program.
#include "metadata/int_math.h"

#include <limits>

#include "core/error.h"

namespace attnbench {

int64_t checked_mul(int64_t a, int64_t b, std::string_view what) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    fail(ErrorKind::kCapacity, "{}: {} * {} exceeds the 64-bit range", what, a, b);
  }
  return product;
}

int64_t checked_add(int64_t a, int64_t b, std::string_view what) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    fail(ErrorKind::kCapacity, "{}: {} + {} exceeds the 64-bit range", what, a, b);
  }
  return sum;
}

int32_t checked_int32(int64_t x, std::string_view what) {
  if (x < std::numeric_limits<int32_t>::min() || x > std::numeric_limits<int32_t>::max()) {
    fail(ErrorKind::kCapacity, "{}: {} exceeds the 32-bit range", what, x);
  }
  return static_cast<int32_t>(x);
}

}  // namespace attnbench
