// The operands of one operation alone, drawn from the seed of the case, with poison in all that it
// must not read.
#pragma once

#include "inputs/op_inputs.h"

namespace attnbench {

/// Partial results: about one row in eight of each part has seen no key; its LSE is an infinity (of
/// a rank: or NaN) and its data NaN. Some rows were seen by no part at all. Tokens past the rows
/// that have a context are NaN in the prefix.
/// Errors: as make_inputs and make_mla_inputs, E-SHAPE and E-DTYPE of the cache's format.
OpInputs make_op_inputs(const Problem& problem);

}  // namespace attnbench
