// The operands of one operation by itself, drawn from the seed of the case.
//
// They are laid out to find what a kernel does wrong beside its sums. Whatever it must not read
// holds poison (0xFF bytes, NaN as floats): rows behind the last token, blocks of no request,
// columns between a row's end and its stride. Slots of padding rows are negative, and the rows
// behind them hold plausible values, because poison written over poison would not show. Partial
// results contain parts that have seen no key, in every combination that a merge can meet, also
// with an output of NaN, whose weight of 0 must leave no trace. A row is quantised that is all
// zeros.
//
// Operations that write or read a cache get the whole case that the cache belongs to: the attention
// inputs, what a correct write stores of them and by which rule, and the cache before the
// operation. The judge builds its expectations from these and nothing else, so everything that
// decides the right bytes has to be in OpInputs.
#pragma once

#include <cstdint>

#include "inputs/cache/stored_kv.h"
#include "inputs/op_inputs.h"

namespace attnbench {

/// `problem` has attention.type op, all of its fields resolved. The same bytes on every machine and
/// for every number of threads.
///
/// Partial results: about one row in eight of each part has seen no key; its LSE is an infinity (of
/// a rank: or NaN) and its data NaN. Some rows were seen by no part at all. Tokens past the rows
/// that have a context are NaN in the prefix.
///
/// Rotations: positions go on from the context; rows of padding stand at position 0 and repeat the
/// first rows, as a token without a slot is rotated like any other.
///
/// Gathers: every position is in the cache, and a request takes those of its new tokens. Rows of
/// padding name the first request and lie behind its end.
///
/// Caches: those of the backend whose layout op.cache_layout names, FA where it names none, with
/// that backend's rule of what a write stores; of latents the one layout there is.
///
/// Errors: as make_inputs and make_mla_inputs, E-SHAPE and E-DTYPE of the cache's format.
OpInputs make_op_inputs(const Problem& problem);

/// `inputs` of the problem with the signs that a timed sample of `nonce` has in
/// redrawn_operands(): in these, and in whatever a judge reads that was made of them.
void redraw_operands(const Problem& problem, std::uint64_t nonce, OpInputs& inputs);

}  // namespace attnbench
