// The slices of a batch as a step of its own: what the splitting builder makes of the arrays of a
// batch for its decodes and its prefills, and what becomes of them when another block table comes
// (semantics §1.6, §1.7).
//
// An engine makes the slices on the host and has their arrays on the device before the first kernel
// that reads them. The host's part is done when the case is prepared; the step that counts moves
// the arrays, so its time is that of the device.
//
// A slice of decodes is nothing but rows of the batch's own arrays, so its arrays are copied from
// where the batch has them. Prefills begin at 0 again: their cumulative lengths are new arrays,
// uploaded beforehand. Whether a view was taken at the right row, and with the right length, shows
// in the bytes that it moves.
//
// Operands          query_start_loc i32 [B+1], seq_lens i32 [B], block_table i32 [B, MB],
//                   slot_mapping i64 [T]; new_block_table and new_slot_mapping of a later step of
//                   the same batch
// batch_split       i32 [8]: num_decodes, num_prefills, num_decode_tokens, num_prefill_tokens;
//                   max_query_len, max_decode_seq_len and use_graph of the decodes; max_query_len
//                   of the prefills; 0 where there are none
// decode_*          query_start_loc [num_decodes+1], seq_lens [num_decodes], block_table
//                   [num_decodes * MB]; left out without decodes
// prefill_*         query_start_loc and key_start_loc [num_prefills+1], both from 0, block_table
//                   [num_prefills * MB]; left out without prefills
// updated_*         decode_block_table, prefill_block_table and slot_mapping of
//                   update_block_table()
//
// Tables are flat in the outputs, row after row with all of their columns, the garbage behind the
// pages of a request included. There is no arithmetic on the device and so no tolerance.
// Arrays without elements are left poisoned, which is what no bytes are.
#pragma once

#include "backends/op/pipeline.h"

namespace attnbench {

/// Queues the step on an empty pipeline of op.name metadata. Errors: those of split_batch() and
/// build_batch_metadata(), for operands that do not fit each other.
void queue_metadata(OpPipeline& op);

}  // namespace attnbench
