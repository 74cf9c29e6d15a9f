// What a correct operation leaves behind, straight from the definitions (semantics §5 to §12): by
// the reference's float64 maths and its own quantisers, without a line of the code that is judged.
//
// By concern: op_expect_cache.h (writes, gathers, rotations), op_expect_partial.h (merges, the
// correction of ranks), op_expect_quant.h (codes and scales). Each gives the outputs in the order
// in which they are judged, the tensor of PipelineOutput::output first; the error figures of a
// result are those of the first output.
#pragma once

#include <string>

#include "backends/backend.h"
#include "bench/judge/op_judge.h"
#include "core/problem/problem.h"
#include "inputs/op_inputs.h"

namespace attnbench {

/// `inputs` are those of the problem. `output`: what the pipeline left, or null before it ran. Only
/// fused writes look at it: they are expected to store the very rows that they rotated (§12.2),
/// which are judged by themselves; without it the cache is left out.
OpExpectations expect_op(const Problem& problem, const OpInputs& inputs,
                         const PipelineOutput* output);

/// The name under which PipelineOutput::output is saved.
std::string op_output_name(const Problem& problem);

}  // namespace attnbench
