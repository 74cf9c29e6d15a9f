// Scores of int8 queries and keys (semantics §11.4): the codes go through the same products as
// floats would, their scales follow. A float32 sum of integers is exact in any order while
// |S| <= 128 * 128 * D stays within 2^24, so up to D = 1024 (the int8 head sizes end at 256).
#pragma once

#include <cstdint>

#include "kernels/params.h"
#include "ops/cpu/attention/row_block.h"
#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

inline bool is_int8(const attn::AttendParams& params) { return params.int8.query_scale != nullptr; }

/// Query scales of the block's rows into scratch.row_scale, 0 for padding rows.
void load_query_scales(const attn::AttendParams& params, const RowBlock& block, Scratch& scratch);

/// Multiplies scratch.scores of keys [begin, end) by softmax_scale * (q_s * k_s).
void scale_int8_scores(const attn::AttendParams& params, const RowBlock& block, KeyRun tile,
                       Scratch& scratch);

}  // namespace attnbench::cpu
