// How far an output may be from the reference: the rows of semantics §14.2, chosen by what was
// rounded on the way. compare.h applies them.
//
// A row is a limit for each element (atol + rtol * |reference|), a cosine for the whole and a limit
// of err_ratio, which compares the error with that of an honest emulation in the same precision.
// The first catches single elements, the second a small error everywhere, the third an error that
// is within the limits and still larger than it needs to be.
#pragma once

#include <optional>
#include <string>

#include "core/numbers/dtype.h"

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
  std::optional<Dtype> probability =
      std::nullopt;  // what P is rounded to; empty = the output's type
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

}  // namespace attnbench
