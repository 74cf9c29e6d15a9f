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

namespace attnbench {

/// Acceptance limits of semantics §14.2 for one output.
struct Tolerance {
  double atol = 0;
  double rtol = 0;
  double min_cosine = -1;    // -1 = not tested
  double max_err_ratio = 2;  // 3 with soft-cap; contract §4; infinity = not judged (LSE)
  /// atol is a share of the largest reference magnitude, or of 4.5 times their RMS if that is more.
  bool relative_to_max = false;
  /// > 0: the output is e4m3 codes of o / e4m3_scale and is judged by codes: at most one step from
  /// the codes of [r - limit, r + limit], and outside of them in at most 1 % of the elements, with
  /// limit = atol + rtol * |r| of the value before it was quantised.
  double e4m3_scale = 0;
  std::string rule;  // e.g. "semantics 14.2 bfloat16"
};

/// What decides the row of §14.2.
struct ToleranceQuery {
  Dtype output = Dtype::kBF16;
  bool quantised_kv = false;      // fp8 or int8 K/V with 16-bit queries
  bool fp8_query = false;         // Q, K and V are e4m3
  bool e4m3_probability = false;  // and P too
  bool soft_cap = false;
  bool mla = false;             // 16-bit MLA, whose intermediates are rounded too
  double static_fp8_scale = 0;  // > 0: fused static fp8 output with this scale (§4.5)
  /// Static fp8 output: the type that attention is computed in. Its own row of §14.2 moves a value
  /// before it is quantised, which near zero is many codes. Empty = the value is exact.
  std::optional<Dtype> computed = std::nullopt;
};
Tolerance output_tolerance(const ToleranceQuery& query);
/// LSE: atol 1e-3 for 16-bit (and narrower) inputs, 1e-5 for f32; rtol 1e-5. MLA rounds its
/// projected queries or keys to 16 bits, which moves scores further: there the row of MLA holds,
/// with its err_ratio.
Tolerance lse_tolerance(Dtype input, bool mla = false);

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

/// Passed <=> NaN and infinities stand in the same places, |a-r| <= atol + rtol*|r| everywhere, the
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
