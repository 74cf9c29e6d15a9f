// Where a token's key and value go in the paged cache (semantics §1.2, §7.1): slot = block id *
// block_size + offset in the block. Under DCP each rank has a cache of its own and holds only its
// stripes, so the same token has a slot on one rank and kPadSlot on the others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "metadata/parts/dcp.h"

namespace attnbench {

inline constexpr int64_t kPadSlot = -1;

struct SlotGeometry {
  int block_size = 16;
  int64_t num_blocks = 0;
  DcpGroup group = {};
  int rank = 0;
};

/// Slot of absolute position p on geometry.rank through one row of the block table, or kPadSlot
/// when another rank holds it. One column serves block_size * W tokens. A position outside the row
/// or a table entry outside [0, num_blocks) is E-VALUE.
int64_t slot_of_position(int64_t position, std::span<const int32_t> block_row,
                         const SlotGeometry& geometry);

/// [padded_tokens] slots of the tokens of query_start_loc [B+1] at positions [T] through
/// block_table [B, columns]; rows past T are kPadSlot.
std::vector<int64_t> compute_slot_mapping(std::span<const int32_t> query_start_loc,
                                          std::span<const int64_t> positions,
                                          std::span<const int32_t> block_table, int64_t columns,
                                          const SlotGeometry& geometry, int64_t padded_tokens);

/// [T] absolute positions of the new tokens: context_len + i (§1.1).
std::vector<int64_t> token_positions(std::span<const int32_t> query_start_loc,
                                     std::span<const int32_t> seq_lens);

}  // namespace attnbench
