// What an operation must leave behind, as a value, and the verdict on what its pipeline left.
//
// op_expect.h computes the expectations of a problem straight from the definitions; judge_op()
// knows nothing of operations. An expectation is of one of two kinds. Bytes: codes, scales, caches
// and everything else that has one right answer, compared by metrics/byte_verdicts.h. Values:
// results of floating-point sums, within the limits of semantics §14.2 of float64 values, with the
// same maths in float32 beside them as the measure of what an honest kernel may lose (err_ratio).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "bench/judge/judge.h"
#include "core/problem/problem.h"
#include "core/tensor.h"
#include "metrics/compare.h"
#include "reference/ops/merge_states.h"

namespace attnbench {

/// One output: bytes that it must equal, or values that it must come close to.
struct OpExpectation {
  std::string name;  // as it is saved
  std::string rule;
  Tensor exact;
  /// NVFP4 codes: two nibbles a byte; at most one e2m1 step apart, in at most 0.1 % of them (§9.4).
  bool e2m1_steps = false;

  /// Where more than one tensor is right: why this one is not, or empty.
  std::function<std::string(const Tensor&)> wrong;

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

/// Errors of the first output, and every reason against any of them. `may_lack_lse`: of a kernel
/// that says whether it writes one. Errors: E-INTERNAL for an output that is not there.
Judgement judge_op(const OpExpectations& expected, const PipelineOutput& output,
                   bool may_lack_lse = false);

/// Bytes that must be the same.
OpExpectation equal(std::string name, std::string rule, Tensor bytes);
/// Values within a row of §14.2; `emulated` are those of the same maths in f32, which the storage
/// type rounds.
OpExpectation close(std::string name, const Tolerance& tolerance, std::vector<double> values,
                    std::vector<double> emulated, Dtype storage, std::vector<std::int32_t> rows);
OpExpectation close_lse(MergedState state, MergedState emulated, std::vector<std::int32_t> rows);
std::vector<std::int32_t> all_rows(std::int64_t count);
/// All rows while that is affordable, or a sample of max_rows.
std::vector<std::int32_t> checked_rows(const Problem& problem, std::int64_t row_elements);

/// [T, heads, columns first..first + count of x]: a part of every row that rotates on its own.
Tensor slice(const Tensor& x, std::int64_t first_head, std::int64_t heads, std::int64_t first,
             std::int64_t count);

}  // namespace attnbench
