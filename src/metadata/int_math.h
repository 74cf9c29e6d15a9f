// Integer helpers of semantics §0.2 and overflow-checked 64-bit products. For sizes and offsets
// that are computed from lengths of a scenario: these are bounded one by one, their products are
// not.
#pragma once

#include <cstdint>
#include <string_view>

namespace attnbench {

/// ceil(a / b) for a >= 0, b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
/// floor(a / b) * b for a >= 0, b > 0.
constexpr int64_t round_down(int64_t a, int64_t b) { return a / b * b; }
/// ceil(a / b) * b for a >= 0, b > 0.
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/// a * b; E-CAPACITY naming `what` when it does not fit 64 bits.
int64_t checked_mul(int64_t a, int64_t b, std::string_view what);
/// a + b; E-CAPACITY naming `what` when it does not fit 64 bits.
int64_t checked_add(int64_t a, int64_t b, std::string_view what);
/// x as int32; E-CAPACITY naming `what` when it does not fit.
int32_t checked_int32(int64_t x, std::string_view what);

}  // namespace attnbench
