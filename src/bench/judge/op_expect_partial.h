// Expected results of merging partial attention: of a prefix and a suffix (semantics §6.3), and of
// the ranks of a context-parallel group (§7.3, §7.5).
//
// A part is an output and the logarithm of the sum of its weights (LSE). The inputs hold parts that
// have seen no key: their LSE is an infinity or NaN and their output NaN, and none of it may show
// in the result. Where no part has seen a key, the result is 0 and its LSE minus infinity.
//
// Both are compared by values on the rows that checked_rows() chooses: a large merge would cost
// more memory in float64 than it is worth.
#pragma once

#include "backends/backend.h"
#include "bench/judge/op_judge.h"
#include "core/problem/problem.h"
#include "inputs/op_inputs.h"

namespace attnbench {

/// Output and LSE. The first op.tokens_with_context tokens are merged, the others are those of the
/// suffix. A fused static fp8 output is judged by its codes.
OpExpectations expect_merge(const Problem& problem, const OpInputs& inputs);

/// Output and LSE of all ranks together and, where the group exchanges by other means than
/// all-to-all, "rank_output": each rank's part as it is corrected before the exchange, [W, W, T,
/// H / W, D] as rows of [W * W * T, H / W, D]. A group of one rank returns its bytes unchanged.
OpExpectations expect_dcp_correct(const Problem& problem, const OpInputs& inputs);

}  // namespace attnbench
