// What is special to a mode of attention: MLA, the vision encoder, quantised output, and a single
// operation run for itself (attention.type op).
//
// Rules of one section are together here, so that a new key of a mode has one place. An operation
// reads few of the keys that attention has; those that it does not read must stand at their
// defaults, since a result file says every key and would otherwise claim what had no effect.
#pragma once

#include "core/problem/problem.h"
#include "scenario/resolve/case_values.h"

namespace attnbench {

/// Before the heads: whether an operation works on latent entries (op.mla), which heads follow
/// from. Does nothing for other types.
void resolve_op_entries(const CaseValues& values, Problem& problem);

/// After the batch: cache layout and rotated elements of an operation where they are not given.
/// E-FORMAT without op.name.
void resolve_op(const CaseValues& values, Problem& problem);

/// Last, since it reads the whole problem: contradictions inside of mla, op, mm_encoder and
/// output_quant, the chunk plan of MLA (semantics §8.5) included: a batch that no dense MLA backend
/// could run is an error here. Errors: as resolve_case().
void check_modes(const CaseValues& values, const Problem& problem);

}  // namespace attnbench
