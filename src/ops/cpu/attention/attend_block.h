// One block of rows against a run of keys: the loop over key tiles that every dense attention
// operation shares, and what is done with a finished row. An operation deals blocks and runs of
// keys to threads, calls attend_block(), and stores the rows as output or as partial results:
//
//   attend_block(params, block, run, with_sink, scratch);  // m, l and sum of P V of every row
//   for every row: row_lse(), normalise_row(), store_lse(), store_output_row()
//
// Tiles are folded in the order of the keys, by one thread, so no result depends on how many
// threads there are or on which of them came first.
#pragma once

#include <cstdint>

#include "kernels/params.h"
#include "ops/cpu/attention/row_block.h"
#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

/// Leaves sum, maximum and unnormalised output of every row in `scratch`. Only keys of `run` are
/// looked at. The sink counts when with_sink, which of several runs of the same rows exactly one
/// may be given (semantics §3.5).
void attend_block(const attn::AttendParams& params, const RowBlock& block, KeyRun run,
                  bool with_sink, Scratch& scratch);

/// LSE = m + ln l, or -inf for a row that saw neither a key nor a sink (semantics §3.8).
float row_lse(const Scratch& scratch, int row);

/// Normalised output of a row into scratch.line [Dv]; 0 for a row that saw nothing. The channel
/// scales of int8 values, which are the same for every key, are multiplied in here.
void normalise_row(const attn::AttendParams& params, int row, Scratch& scratch);

/// Rounds values [Dv] to the output element and stores them at (token, head); a static FP8 output
/// is divided by its scale first (semantics §4.5). Changes `values`.
void store_output_row(const attn::AttendParams& params, std::int64_t token, int head,
                      float* values);

/// Stores the LSE of (token, head) where one is wanted.
void store_lse(const attn::AttendParams& params, std::int64_t token, int head, float lse);

}  // namespace attnbench::cpu
