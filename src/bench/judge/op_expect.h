// What a correct operation leaves behind, straight from the definitions, and the verdict on what a
// pipeline left (semantics §5 to §12, §14.2).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "bench/judge/judge.h"
#include "core/problem/problem.h"
#include "core/tensor.h"
#include "inputs/op_inputs.h"
#include "metrics/compare.h"

namespace attnbench {

/// One output: bytes that it must equal, or values that it must come close to.
struct OpExpectation {
  std::string name;  // as it is saved
  std::string rule;
  Tensor exact;
  /// NVFP4 codes: two nibbles a byte; at most one e2m1 step apart, in at most 0.1 % of them (§9.4).
  bool e2m1_steps = false;

  bool by_values = false;
  bool is_lse = false;
  std::vector<std::int32_t> rows;
  std::vector<double> values;    // like Comparison::expected
  std::vector<double> emulated;  // like Comparison::emulated
  Tolerance tolerance;
};

/// What the operation should leave, the tensor of PipelineOutput::output first. Fused writes are
/// expected to store the very rows that `output` rotated (§12.2).
struct OpExpectations {
  std::vector<OpExpectation> outputs;
  std::int64_t num_tokens = 0;       // rows that equal bytes check
  std::vector<std::string> notices;  // e.g. how many elements saturate
};
OpExpectations expect_op(const Problem& problem, const OpInputs& inputs,
                         const PipelineOutput* output);

/// Errors of the first output, and every reason against any of them. `may_lack_lse`: of a kernel
/// that says whether it writes one. Errors: E-INTERNAL for an output that is not there.
Judgement judge_op(const OpExpectations& expected, const PipelineOutput& output,
                   bool may_lack_lse = false);

/// The name under which PipelineOutput::output is saved.
std::string op_output_name(const Problem& problem);

}  // namespace attnbench
