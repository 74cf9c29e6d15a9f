// Operands of the operations of the sparse indexer (semantics §8.10).
//
// The index cache lies in the pages of the batch's block table, codes of a block before its scales;
// whatever belongs to no key holds poison: slots between requests, blocks of nobody, and behind the
// keys of a request the rest of its last block. Keys of padding rows, whose slots are negative, are
// copies of a real one, because poison written over poison would not show.
//
// All of them are of the batch's new tokens: a token sees the keys of its request up to its own
// position, the ones before the batch among them. Tables and lengths are those of a case of
// attention with the same seed, so that an operation can be looked at where a case fails.
//
// A problem whose shapes alone are wanted (inputs.shapes_only) gets tensors of the right sizes
// without content; tables and slots are whole all the same.
//
// Logits from which keys are chosen are drawn coarsely, so
// that many are equal, and hold NaN behind what a token sees: a choice that looks there shows.
#pragma once

#include "core/problem/problem.h"
#include "inputs/op_inputs.h"

namespace attnbench {

/// What a write of the new keys works on: new_index_key [T + padding, 128], slot_mapping,
/// index_cache_before with the context of the requests.
void make_index_key_cache(const Problem& problem, OpInputs& inputs);

/// What an engine has in front of its kernel, drawn like attention's inputs and therefore rounded
/// by every sum, unlike those of a case of attention (inputs/index_inputs.h): index_query e4m3 [T,
/// H, 128], index_weights f32 [T, H], index_cache with all keys, block_table, query_start_loc,
/// seq_lens.
void make_index_logits(const Problem& problem, OpInputs& inputs);

/// Of a batch without new tokens the tensors have no rows, but tables and lengths are there.
///
/// logits f32 [T, longest of seq_lens] and the same table and lengths. Quarters of a deviation, so
/// that a row of a thousand keys has a few dozen different logits.
void make_index_topk(const Problem& problem, OpInputs& inputs);

}  // namespace attnbench
