// The rows of semantics §14.2 as code. A number here is a promise to users: what passed must pass.
#include "metrics/tolerance.h"

#include <limits>

namespace attnbench {
namespace {

Tolerance by_output_dtype(Dtype output) {
  Tolerance tolerance;
  tolerance.rule = "semantics 14.2 " + std::string(dtype_name(output));
  if (output == Dtype::kF32 || output == Dtype::kF64) {
    tolerance.atol = tolerance.rtol = 2e-5;
    tolerance.min_cosine = 1 - 1e-9;
  } else if (output == Dtype::kF16) {
    tolerance.atol = tolerance.rtol = 2e-3;
    tolerance.min_cosine = 1 - 1e-6;
  } else {
    tolerance.atol = tolerance.rtol = 1e-2;
    tolerance.min_cosine = 1 - 1e-5;
  }
  return tolerance;
}

Tolerance fp8_query_tolerance(bool e4m3_probability) {
  Tolerance tolerance;
  tolerance.atol = tolerance.rtol = 3e-2;
  tolerance.min_cosine = e4m3_probability ? 1 - 1e-3 : 1 - 1e-4;
  tolerance.relative_to_max = e4m3_probability;
  tolerance.rule = e4m3_probability ? "semantics 14.2 fp8 Q K V with e4m3 P"
                                    : "semantics 14.2 fp8 Q K V, P of 16 bits or more";
  return tolerance;
}

bool is_16_bit(Dtype dtype) { return dtype == Dtype::kF16 || dtype == Dtype::kBF16; }

}  // namespace

Tolerance output_tolerance(const ToleranceQuery& query) {
  Tolerance tolerance;
  if (query.static_fp8_scale > 0) {
    if (query.computed) {
      ToleranceQuery before = query;
      before.output = *query.computed;
      before.static_fp8_scale = 0;
      tolerance = output_tolerance(before);
      tolerance.min_cosine = -1;
    }
    tolerance.e4m3_scale = query.static_fp8_scale;
    tolerance.rule = "semantics 14.2 static fp8 output";
  } else if (query.fp8_query) {
    tolerance = fp8_query_tolerance(query.e4m3_probability);
  } else if (query.mla && is_16_bit(query.output)) {
    tolerance.atol = tolerance.rtol = 2e-2;
    tolerance.min_cosine = 1 - 1e-5;
    tolerance.rule = "semantics 14.2 MLA 16-bit";
  } else {
    tolerance = by_output_dtype(query.output);
    // The quantised row of §14.2 names 16-bit outputs only; a float32 output keeps its own row.
    if (query.quantised_kv && is_16_bit(query.output)) {
      tolerance.atol *= 2;
      tolerance.rtol *= 2;
      tolerance.min_cosine = 1 - 1e-5;
      tolerance.rule += ", quantised K and V";
    }
  }
  tolerance.max_err_ratio = query.soft_cap ? 3 : 2;
  return tolerance;
}

Tolerance lse_tolerance(Dtype input, bool mla) {
  Tolerance tolerance;
  if (mla && is_16_bit(input)) {
    tolerance.atol = 2e-2;
    tolerance.rtol = 1e-5;
    tolerance.rule = "semantics 14.2 MLA 16-bit";
    return tolerance;
  }
  tolerance.atol = input == Dtype::kF32 ? 1e-5 : 1e-3;
  tolerance.rtol = 1e-5;
  tolerance.max_err_ratio = std::numeric_limits<double>::infinity();
  tolerance.rule = input == Dtype::kF32 ? "semantics 14.2 LSE, float32 inputs"
                                        : "semantics 14.2 LSE, 16-bit inputs";
  return tolerance;
}

}  // namespace attnbench
