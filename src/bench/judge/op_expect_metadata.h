// Expected slices of a batch (semantics §1.3, §1.6): integers, from the definitions and not by the
// functions that the operation calls.
//
// Every array is walked request by request, so that a slice that is off by a row, a table that was
// not replaced or a cumulative array that was not re-based differs from it. The mistakes that this
// is for:
//
//   - a short request behind the first prefill that is counted as a decode: every request from the
//     first prefill on is one, however short;
//   - a chunk of a prompt that is as short as a decode, where such chunks are prefills;
//   - cumulative lengths of the prefills that go on from those of the decodes;
//   - the longest query of the decodes taken for that of the whole batch, or the reverse;
//   - a new block table at the top of the metadata whose rows have not reached the slices.
//
// All of them leave attention right for most batches, and wrong for a few: a kernel that gets the
// rows of another request reads keys that are there, only not the right ones.
//
// The threshold of a decode is that of layout IX, one token and the speculative ones (§1.5), as no
// other layout hands decodes and prefills to different calls. Whether a request is of a prompt is
// asked of is_prefilling(), because that is what a scenario means and no arithmetic.
//
// What is expected is a list of equal bytes; nothing of it is within a tolerance.
//
// Operands are those that the case was made with, never what came back from a device: a kernel that
// wrote into its operands would otherwise be judged by what it left there. Slots and tables are
// copied whole, padding columns included, because an engine hands whole rows on; what stands in the
// columns behind a request's pages is garbage that must arrive as it was.
#pragma once

#include "bench/judge/op_judge.h"
#include "core/problem/problem.h"
#include "inputs/op_inputs.h"

namespace attnbench {

/// The outputs of backends/op/metadata_steps.h, in their order; all of them must be equal. Errors:
/// E-INTERNAL for an operand that the inputs do not have.
OpExpectations expect_metadata(const Problem& problem, const OpInputs& inputs);

}  // namespace attnbench
