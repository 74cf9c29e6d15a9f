// What a correct operation leaves behind, straight from the definitions (semantics §5 to §12): by
// the reference's float64 maths and its own quantisers, without a line of the code that is judged.
//
// Each kind of operation gives its outputs in the order in which they are judged, the tensor of
// PipelineOutput::output first; the error figures of a result are those of the first output. Caches
// and rotations are in op_expect_cache.h, codes and scales in op_expect_quant.h. Partial results
// are here: a prefix merged with a suffix (§6.3), and the correction of the ranks of a
// context-parallel group (§7.3, §7.5).
//
// Partial results come as an output and the logarithm of the sum of its weights (LSE). Some of the
// inputs have seen no key: their LSE is an infinity or NaN and their output NaN, and nothing of
// that may show in the result. Large merges are checked on a sample of rows, because float64 values
// and their emulation take sixteen bytes an element.
//
// A kind of operation that is added gets its expectation from its definition in docs/semantics.md.
// To take it from a run of the operation would make the judge agree with whatever the kernel does.
#pragma once

#include <string>

#include "backends/backend.h"
#include "bench/judge/op_judge.h"
#include "core/problem/problem.h"
#include "inputs/op_inputs.h"

namespace attnbench {

/// `inputs` are those of the problem. `output`: what the pipeline left, or null before it ran. Only
/// fused writes look at it: they are expected to store the very rows that they rotated (§12.2),
/// which are judged by themselves; without it the cache is left out. Notices (elements that
/// saturate) do not depend on it. Errors: those of reading a scale file; E-INTERNAL for an operand
/// that the inputs do not have.
OpExpectations expect_op(const Problem& problem, const OpInputs& inputs,
                         const PipelineOutput* output);

/// The name under which PipelineOutput::output is saved: "kv_cache" of a cache write, "query_codes"
/// of the encoder's quantisation, "output" of all others.
std::string op_output_name(const Problem& problem);

}  // namespace attnbench
