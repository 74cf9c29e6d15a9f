// Tensors of inputs.file in place of seeded ones (contract section 5).
#pragma once

#include "core/problem/problem.h"
#include "inputs/files/file_tensors.h"
#include "inputs/inputs.h"

namespace attnbench {

/// Reads query, key, value (required), sinks and alibi_slopes from problem.inputs.file into
/// `inputs`, whose query_start_loc, seq_lens and key_start_loc are set already. Numbers given in
/// the scenario win over the file's. Adds notices. Errors: as make_inputs.
void load_input_file(const Problem& problem, AttentionInputs& inputs);

}  // namespace attnbench
