// Slots from positions. Every entry of the block table that is read is checked, because a wrong one
// would make a kernel write outside the cache.
#include "metadata/slots.h"

#include "core/error.h"
#include "metadata/validation.h"

namespace attnbench {

int64_t slot_of_position(int64_t position, std::span<const int32_t> block_row,
                         const SlotGeometry& geometry) {
  const int64_t block_size = geometry.block_size;
  const int64_t column = position / (block_size * geometry.group.world_size);
  if (position < 0 || column >= static_cast<int64_t>(block_row.size())) {
    fail(ErrorKind::kValue, "position: expected one inside the {} block-table columns, got {}",
         block_row.size(), position);
  }
  if (dcp_rank_of(position, geometry.group) != geometry.rank) return kPadSlot;
  const int32_t block = block_row[static_cast<size_t>(column)];
  if (block < 0 || block >= geometry.num_blocks) {
    fail(ErrorKind::kValue, "block_table column {}: expected a block in [0, {}), got {}", column,
         geometry.num_blocks, block);
  }
  // Why: block_size % I == 0, so the local index runs through whole blocks of block_size.
  return block * block_size + dcp_local_index(position, geometry.group) % block_size;
}

std::vector<int64_t> compute_slot_mapping(std::span<const int32_t> query_start_loc,
                                          std::span<const int64_t> positions,
                                          std::span<const int32_t> block_table, int64_t columns,
                                          const SlotGeometry& geometry, int64_t padded_tokens) {
  check_dcp_group(geometry.group, geometry.block_size);
  const auto num_tokens = static_cast<int64_t>(positions.size());
  check_cumulative(query_start_loc, num_tokens, "query_start_loc");
  const size_t num_requests = query_start_loc.size() - 1;
  if (block_table.size() != num_requests * static_cast<size_t>(columns)) {
    fail(ErrorKind::kShape, "block_table: expected {} x {} entries, got {}", num_requests, columns,
         block_table.size());
  }
  if (padded_tokens < num_tokens) {
    fail(ErrorKind::kShape, "slot_mapping: expected room for {} tokens, got {}", num_tokens,
         padded_tokens);
  }
  std::vector<int64_t> slots(static_cast<size_t>(padded_tokens), kPadSlot);
  for (size_t b = 0; b < num_requests; ++b) {
    const auto row =
        block_table.subspan(b * static_cast<size_t>(columns), static_cast<size_t>(columns));
    const auto end = static_cast<size_t>(query_start_loc[b + 1]);
    for (auto t = static_cast<size_t>(query_start_loc[b]); t < end; ++t) {
      slots[t] = slot_of_position(positions[t], row, geometry);
    }
  }
  return slots;
}

std::vector<int64_t> token_positions(std::span<const int32_t> query_start_loc,
                                     std::span<const int32_t> seq_lens) {
  const std::vector<int32_t> context = context_lens_of(query_start_loc, seq_lens);
  std::vector<int64_t> positions;
  positions.reserve(static_cast<size_t>(query_start_loc.back()));
  for (size_t b = 0; b < context.size(); ++b) {
    for (int64_t p = context[b]; p < seq_lens[b]; ++p) positions.push_back(p);
  }
  return positions;
}

}  // namespace attnbench
