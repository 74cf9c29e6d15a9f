// One block of rows against a run of keys: the loop over key tiles that every attend operation
// shares.
#pragma once

#include "kernels/params.h"
#include "ops/cpu/attention/row_block.h"
#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

/// Leaves sum, maximum and unnormalised output of every row in `scratch`. Only keys of `run` are
/// looked at; the sink counts when with_sink.
void attend_block(const attn::AttendParams& params, const RowBlock& block, KeyRun run,
                  bool with_sink, Scratch& scratch);

/// m + ln l, or -inf for a row that saw nothing.
float row_lse(const Scratch& scratch, int row);

/// Normalised output of a row into scratch.line [Dv]; 0 for a row that saw nothing.
void normalise_row(const attn::AttendParams& params, int row, Scratch& scratch);

}  // namespace attnbench::cpu
