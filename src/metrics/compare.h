// Output against reference -> ErrorStats and the verdict of contract section 4 and semantics §14.2.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/numbers/dtype.h"
#include "core/numbers/lse_convention.h"
#include "core/result/result.h"
#include "core/tensor.h"
#include "metrics/tolerance.h"

namespace attnbench {

/// One comparison: `actual` against `expected` on the checked rows.
struct Comparison {
  const Tensor* actual = nullptr;      // [T, H, Dv], or LSE [H, T]
  std::span<const double> expected;    // [rows, H, Dv], or [H, rows]
  std::span<const double> emulated;    // like expected; empty = err_ratio null
  std::span<const std::int32_t> rows;  // token indices
  bool is_lse = false;
};

struct Verdict {
  ErrorStats stats;
  bool passed = false;
  std::vector<std::string> reasons;  // why not: "NaN where the reference is finite at ...", ...
};

/// Passed <=> NaN and infinities are in the same places, |a-r| <= atol + rtol*|r| everywhere, the
/// cosine holds, and (err_ratio <= limit or max_abs <= atol / 10). An err_ratio that does not exist
/// (emulation without error, or no emulation) counts as infinite. An infinity also stands right
/// where a finite reference overflows the output's type. Errors and norms are taken over the
/// elements that are finite in both; without such an element they do not exist (NaN).
Verdict compare(const Comparison& comparison, const Tolerance& tolerance);

/// Names a known mistake that explains a failed LSE: "LSE is in base 2, expected natural" when
/// lse * ln 2 fits the reference. `declared` is what its author says of it; the LSE was converted
/// accordingly, so that a wrong declaration is the mistake. Empty when nothing fits.
std::string diagnose_lse(const Comparison& comparison, const Tolerance& tolerance,
                         const std::optional<LseConvention>& declared = std::nullopt);

}  // namespace attnbench
