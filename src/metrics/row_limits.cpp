// Floors by type first, then the limits of an output and of an LSE.
#include "metrics/row_limits.h"

#include <fmt/format.h>

#include <algorithm>

namespace attnbench {
namespace {

/// The floor of rows whose output, or P, is stored in this type (docs/verdicts.md).
double row_floor(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return 7.5e-4;
    case Dtype::kBF16:
      return 6e-3;
    case Dtype::kE4M3:
      return 6.5e-2;
    default:
      return 1e-6;
  }
}

/// Of MLA, whose kernels also round what they project queries, latents and outputs to.
constexpr double kMlaRoundings = 5.0 / 3;

/// What sums of e4m3 products in a tensor core move an LSE by, which no kernel can mend.
constexpr double kFp8Products = 2.5e-3;

}  // namespace

RowLimits output_row_limits(const ToleranceQuery& query) {
  RowLimits limits;
  Dtype output = query.output;
  if (query.static_fp8_scale > 0) {
    limits.e4m3_scale = query.static_fp8_scale;
    output = query.computed.value_or(Dtype::kF32);
  }
  const Dtype probability = query.probability.value_or(output);
  limits.floor = std::max(row_floor(output), row_floor(probability));
  if (query.mla) limits.floor = std::max(limits.floor, kMlaRoundings * row_floor(output));
  limits.rule = fmt::format("semantics 14.2 rows, output {}, P {}", dtype_name(output),
                            dtype_name(probability));
  if (query.mla) limits.rule += ", MLA";
  if (query.fp8_query) {
    limits.rule += ", fp8 Q K V";
  } else if (query.quantised_kv) {
    limits.rule += ", quantised K and V";
  }
  if (query.static_fp8_scale > 0) limits.rule += ", static fp8 output";
  return limits;
}

LseLimits lse_row_limits(Dtype input, bool mla, bool fp8_products) {
  LseLimits limits;
  limits.floor = input == Dtype::kF32 ? 4e-6 : 2e-5;
  limits.rule = fmt::format("semantics 14.2 rows, LSE, inputs {}", dtype_name(input));
  if (fp8_products) {
    limits.floor = std::max(limits.floor, kFp8Products);
    limits.rule += ", fp8 Q K";
  }
  if (!mla) return limits;
  limits.rule += ", MLA";
  // The latent query is rounded, which moves scores of ordinary size by as much.
  if (input != Dtype::kF32) limits.floor = std::max(limits.floor, row_floor(input) * 2 / 3);
  return limits;
}

}  // namespace attnbench
