// Single operations of the indexer of sparse MLA (semantics §8.10): the write of its key cache, the
// logits of keys, and the choice of the largest of them as slots of the cache of latents.
//
// Operands                new_index_key [T + padding, 128] and slot_mapping; index_query e4m3
//                         [T, H, 128] and index_weights f32 [T, H]; block_table, query_start_loc
//                         and seq_lens of the batch
// index_cache             u8 [NB, block_size * 132], an operand of the logits, and what a write
//                         leaves: codes of a block's keys, then their scales. It starts as the case
//                         drew it (index_cache_before), so that a write next to its slot shows
// logits                  f32 [T, longest of seq_lens], an operand of the choice and what
//                         index_logits leaves: -inf in columns behind the token
// topk_slots              i32 [T, mla.sparse_topk]: block * block_size + offset, -1 where there are
//                         no more keys
//
// An engine runs the three in this order, the logits of long prompts in pieces of rows: a row of
// 128 Ki keys is half a megabyte. Here every row is there at once, so a case is as large as its
// logits are. Each is timed by itself, and `index_topk` begins with logits that are given, so what
// it chooses does not depend on how another kernel rounded them; the choice out of logits of the
// step itself is that of sparse MLA with an indexer (backends/mla/index_steps.h).
#pragma once

#include "backends/op/pipeline.h"

namespace attnbench {

/// new_index_key at slot_mapping into "index_cache".
void queue_index_key_cache(OpPipeline& op);

/// "logits" of index_query and index_weights over index_cache.
void queue_index_logits(OpPipeline& op);

/// "topk_slots" of the largest of the operand logits, through block_table.
void queue_index_topk(OpPipeline& op);

/// Bytes that the operations have to move (contract section 4), each operand and each result once:
/// new keys, their codes, scales and slots; queries, weights, the keys that some token of a request
/// sees, and logits; logits that are seen, and slots.
double index_traffic(const Problem& problem);

}  // namespace attnbench
