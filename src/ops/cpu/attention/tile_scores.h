// What happens to one tile of raw scores before the softmax (semantics §3.1 steps 2 to 4).
#pragma once

#include <cstdint>

#include "kernels/params.h"
#include "ops/cpu/scratch.h"

namespace attnbench::cpu {

enum class TileVisibility { kNone, kSome, kAll };

/// How much of keys [begin, end) the rows of the block may see.
TileVisibility tile_visibility(const Scratch& scratch, std::int64_t begin, std::int64_t end);

/// Whether the block's row may see the key at position `key`.
bool is_visible(const Scratch& scratch, int row, std::int64_t key);

/// Soft-cap and ALiBi on scratch.scores [keys, row_stride] of keys from `first_key` on.
void transform_scores(const attn::ScoreParams& score, std::int64_t first_key, int keys,
                      Scratch& scratch);

/// Sets the scores that a row may not see to -inf, whatever they were.
void mask_scores(std::int64_t first_key, int keys, Scratch& scratch);

}  // namespace attnbench::cpu
