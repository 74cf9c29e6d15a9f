// What the operations of the sparse indexer leave (semantics §8.10): bytes of the key cache, logits
// within a limit, and a choice of keys that no other choice is better than.
//
// A choice is no list of bytes. Any order of the list is right, because attention does not know
// one, and so is any choice among equal logits: the rule that the first positions go first is that
// of the native operations, and tests hold them to it. Of logits that a kernel computed itself the
// last that is chosen and the first that is not may have changed places within their rounding;
// wrong_choice() of the reference takes that as a number, which is 0 where logits are given.
//
// Whether a list is right cannot be seen from one of its entries, so the verdict of a case has one
// figure, right or wrong, and names the first token whose list is wrong. An entry that names a slot
// of another request counts as a key that is not there: which requests share a block is not asked,
// as the slots of a shared prefix are in each of their tables. A batch without new tokens has no
// lists and nothing that could be wrong.
#pragma once

#include "bench/judge/op_judge.h"
#include "core/problem/problem.h"
#include "inputs/op_inputs.h"

namespace attnbench {

/// index_cache, byte for byte: whatever is not in a slot of a new key has to stay. Codes are those
/// of the reference's quantise_index_key(), a division and one rounding; a kernel that multiplies
/// by the reciprocal differs where a quotient is near a tie.
OpExpectations expect_index_key_cache(const Problem& problem, const OpInputs& inputs);

/// logits [T, longest of seq_lens], -inf where a token sees no key, on the rows that
/// checked_rows() chooses. |a - r| <= 1e-3 of the largest logit + 1e-3 |r|: matrix units add e4m3
/// products with fewer bits than f32 has, and upstream allows a difference of 1e-3 between vectors.
OpExpectations expect_index_logits(const Problem& problem, const OpInputs& inputs);

/// topk_slots [T, topk], by wrong_choice() of every row. The first row that is wrong is named, with
/// the positions and the logits that are in each other's place.
///
/// `problem` and `inputs` must outlive what is returned: a choice is held against the logits when
/// it is there.
OpExpectations expect_index_topk(const Problem& problem, const OpInputs& inputs);

}  // namespace attnbench
