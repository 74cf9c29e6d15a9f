// Expected codes and scales (semantics §8.7, §9, §10.5, §11.2), from the reference's quantisers.
//
// All of it is bytes. A scale decides every code that is divided by it, so scales that are made
// from the data are expected to the last bit; only NVFP4 codes may be a step beside
// (byte_verdicts.h). Rows of padding behind the last token are no part of what is expected; padding
// inside of a layout of scales (rows up to a multiple of four, tiles) is part of it.
//
// Elements that saturate are counted: "num_saturated" is an output of the operation, and a notice
// for the user, since a scale that is too small makes a kernel look right and the model wrong.
//
// Expectations are of whole tensors, however large: a quantiser that is wrong in one row of a
// thousand, at the border of two tiles, is the usual mistake, and a sample would miss it.
//
// The quantisers round, pack and lay out as the definitions say, each by itself; here they are only
// chosen by the problem, and given the rows without padding. That is why nothing of this may be
// shared with the operations that are judged: a mistake in shared code would be expected.
#pragma once

#include "backends/backend.h"
#include "bench/judge/op_judge.h"
#include "core/problem/problem.h"
#include "inputs/op_inputs.h"

namespace attnbench {

/// Queries to fp8 by one scale; with int8 queries, keys and values with their scales; of MLA the
/// latent query and its rotated part together.
/// Outputs: "output" and, by kind, "output_scales", "key_output", "key_scales", "value_output",
/// "value_scales", "num_saturated".
OpExpectations expect_quantize(const Problem& problem, const OpInputs& inputs);

/// Rows of attention output by output_quant.type, in the layout of scales that it states.
/// Outputs: "output" and "output_scales", or "num_saturated" for one static scale.
OpExpectations expect_output_quant(const Problem& problem, const OpInputs& inputs);

/// Q, K and V of the encoder with their scales, loaded or made of these very tensors. Errors: those
/// of reading the scale file.
OpExpectations expect_mm_quant(const Problem& problem, const OpInputs& inputs);

}  // namespace attnbench
