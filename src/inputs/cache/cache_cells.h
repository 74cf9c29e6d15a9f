// Cells and blocks of a paged cache: who owns a block, and how a row of K or V lands in it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/problem/problem.h"
#include "core/tensor.h"
#include "inputs/cache/stored_kv.h"
#include "inputs/make_inputs.h"
#include "metadata/kv_layout.h"
#include "metadata/parts/dcp.h"

namespace attnbench {

/// Which page of which request a block holds; the first request wins for shared pages.
struct BlockOwner {
  std::int64_t request = -1;  // -1 = no request uses the block
  std::int64_t page = 0;

  bool exists() const { return request >= 0; }
};

/// Tokens that one column of the block table serves: block_size on every rank of a group (§7.1).
std::int64_t page_tokens(const Problem& problem);

/// Which positions the slots of one rank of a group hold.
struct RankSlots {
  int rank = 0;
  DcpGroup group;

  explicit RankSlots(const Problem& problem, int of_rank)
      : rank(of_rank), group(DcpGroup::of(problem)) {}
  /// Offset in its page of the position that slot `slot` of a block holds on this rank.
  std::int64_t offset_in_page(std::int64_t slot) const {
    return dcp_global_position(slot, rank, group);
  }
};

/// Blocks of the cache: kv_cache.num_blocks, and one of poison when the batch needs none.
std::int64_t physical_blocks(const Problem& problem);

/// Per physical block. block_table is i32 [B, MB] as in PagedCache.
std::vector<BlockOwner> block_owners(const Problem& problem, const Tensor& block_table);

/// First row of every request in StoredKv: exclusive sum of seq_lens, [B+1].
std::vector<std::int64_t> first_rows(const Problem& problem);

/// Rows of slot_mapping after the new tokens; every negative value means padding (§0.6).
inline constexpr std::array<std::int64_t, 3> kPaddingSlots{-1, -2, -1};

/// MB: pages of the longest request, and some columns that nobody may read.
std::int64_t block_table_columns(const Problem& problem);

/// i32 [B, MB] as in PagedCache; `fresh` = new_key_ranges(). E-CONFIG: too few blocks.
Tensor make_block_table(const Problem& problem, const std::vector<PositionRange>& fresh);

/// Copies rows of StoredKv into a cache; a cell is the vector of one slot and head, with its scale
/// in per-token-head caches. Borrows layout and stored.
class CellWriter {
 public:
  CellWriter(const KvLayout& layout, const StoredKv& stored, std::int64_t block_size)
      : layout_(layout), stored_(stored), block_size_(block_size) {}

  /// Writes row `row` of K (of V) into the slot of a block whose plane begins at `plane`; of a slot
  /// that both share, write_key writes both.
  void write_key(std::byte* plane, std::int64_t row, std::int64_t slot) const {
    write(plane, row, slot, true);
    if (layout_.slot_bytes > 0) write(plane + layout_.value_offset, row, slot, false);
  }
  void write_value(std::byte* plane, std::int64_t row, std::int64_t slot) const {
    write(plane, row, slot, false);
  }
  /// Writes the scales of row `row` of the int8 keys into slot `slot` of a block's [Hk, bs] scales.
  void write_key_scales(float* block_scales, std::int64_t row, std::int64_t slot) const;

  /// Byte offset in the cache of the K (V) plane of a block. At int8 level 2 the values are of 16
  /// bits in a cache of int8 elements, from the start of plane 1 on (§2.2).
  std::int64_t key_plane(std::int64_t block) const {
    return (layout_.key_offset + block * layout_.block_stride) * element_size(true);
  }
  std::int64_t value_plane(std::int64_t block) const {
    return layout_.value_offset * element_size(true) +
           block * layout_.block_stride * element_size(false);
  }
  /// Byte offset of a cell in its K (or V) plane.
  std::int64_t cell(std::int64_t slot, std::int64_t head, bool is_key) const {
    return (slot * layout_.slot_stride + head * layout_.head_stride) * element_size(is_key);
  }
  std::int64_t cell_bytes(bool is_key) const {
    return (layout_.padded_head_size - layout_.block_scales) * element_size(is_key);
  }
  /// A plane of a block is contiguous in every layout without layers, and in NHD with them.
  /// Where keys and values share slots it is the plane of keys, and that of values is empty.
  std::int64_t plane_bytes(bool is_key) const {
    if (layout_.slot_bytes > 0 && !is_key) return 0;
    return block_size_ * stored_.key_codes.dim(1) * layout_.padded_head_size * element_size(is_key);
  }
  std::int64_t element_size(bool is_key) const {
    return static_cast<std::int64_t>(
        dtype_size((is_key ? stored_.key_codes : stored_.value_codes).dtype()));
  }

 private:
  void write(std::byte* plane, std::int64_t row, std::int64_t slot, bool is_key) const;
  /// Byte offset in its plane of the scale of a block of columns (§5.7).
  std::int64_t block_scale(std::int64_t slot, std::int64_t head, std::int64_t block,
                           bool is_key) const;

  const KvLayout& layout_;
  const StoredKv& stored_;
  std::int64_t block_size_;
};

}  // namespace attnbench
