// What happens to one tile of raw scores S = Q K^T before the softmax (semantics §3.1 steps 2 to 4,
// §11.4). The order is fixed: the scales of int8 codes, soft-cap, ALiBi, mask. A soft-cap after the
// mask would turn -inf into -c; that ALiBi comes before it changes nothing, since -inf plus a bias
// stays -inf, and lets one pass over the tile write the mask.
//
// Scores lie in scratch.scores [keys, row_stride], a key after the other; columns from num_rows on
// are padding and hold anything.
#pragma once

#include <cstdint>

#include "kernels/params.h"
#include "ops/cpu/attention/row_block.h"
#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

enum class TileVisibility { kNone, kSome, kAll };

/// How much of keys [begin, end) the rows of the block may see. kSome is also the answer where the
/// tile is covered only by several intervals of a row together: the mask then finds nothing to do.
TileVisibility tile_visibility(const Scratch& scratch, std::int64_t begin, std::int64_t end);

/// Whether the block's row may see the key at position `key`.
bool is_visible(const Scratch& scratch, int row, std::int64_t key);

/// Soft-cap and ALiBi on the scores of `keys` keys from position `first_key` on. Linear forms of
/// ALiBi leave out the row's constant, which is in scratch.shift.
void transform_scores(const attn::ScoreParams& score, std::int64_t first_key, int keys,
                      Scratch& scratch);

/// Sets the scores that a row may not see to -inf, whatever they were, NaN included.
void mask_scores(std::int64_t first_key, int keys, Scratch& scratch);

// int8 queries and keys: the codes go through the same product as floats would, their scales
// follow. A float32 sum of integers is exact in any order while |S| <= 128 * 128 * D stays within
// 2^24, so up to D = 1024 (the int8 head sizes end at 256).

/// Whether query and key are int8 codes with a scale each, which only scale_int8_scores() applies.
inline bool is_int8(const attn::AttendParams& params) { return params.int8.query_scale != nullptr; }

/// Query scales of the block's rows into scratch.row_scale, 0 for padding rows.
void load_query_scales(const attn::AttendParams& params, const RowBlock& block, Scratch& scratch);

/// Multiplies the scores of the keys of `tile` by softmax_scale * (q_s * k_s), in this order of
/// products, which §11.4 gives.
void scale_int8_scores(const attn::AttendParams& params, const RowBlock& block, KeyRun tile,
                       Scratch& scratch);

}  // namespace attnbench::cpu
