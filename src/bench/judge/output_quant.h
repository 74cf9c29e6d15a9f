// A quantised attention output against what its own 16-bit output must give (semantics §9).
#pragma once

#include "bench/judge/judge.h"
#include "core/problem/problem.h"
#include "core/tensor.h"
#include "reference/attention.h"

namespace attnbench {

struct QuantisedOutput {
  const Tensor& unquantised;  // [T, N, V] in the attention dtype
  const Tensor& codes;        // as output_quant_layout() says
  const Tensor& scales;
};

/// Adds a reason for codes or scales that are not the specified bytes, and states the error of the
/// dequantised output against `exact`, the reference on nothing quantised, as quantization_error.
/// Exact but for NVFP4, where a code may be one e2m1 step off in 0.1 % of the elements.
void judge_quantised_output(const Problem& problem, const QuantisedOutput& output,
                            const ReferenceOutput& exact, Judgement& judgement);

}  // namespace attnbench
