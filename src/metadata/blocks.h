// Block sizes of the KV manager against those of the kernels (semantics §1.7).
//
// The manager hands out memory in blocks of its size; a kernel may page in smaller ones. Where they
// differ, each manager block stands for several kernel blocks in a row: with sizes 64 and 16 block
// 5 becomes 20, 21, 22, 23.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace attnbench {

/// One entry of a backend's list: exactly `size`, or every multiple of it.
/// A kernel that was built for one page size has exact ones, one that takes it as an argument a
/// base.
struct BlockSizeRule {
  int size = 16;
  bool any_multiple = false;
};

/// The mapping of a block table's row, in its order. Kernel block ids of manager block ids: m ->
/// m*q ... m*q+q-1 with q = manager_block_size / kernel_block_size; a remainder is E-CONFIG, an id
/// beyond int32 E-CAPACITY.
std::vector<int32_t> map_to_kernel_blocks(std::span<const int32_t> manager_blocks,
                                          int manager_block_size, int kernel_block_size);

/// Whether a backend that lists `rules` can be configured with that size: true for nullopt, which
/// leaves the choice to the backend, or a multiple of any listed size or base.
bool supports_block_size(std::optional<int> block_size, std::span<const BlockSizeRule> rules);

/// The size in which kernels page when several backends share one cache: the manager's block size
/// where every backend lists it (or a base of it), else the largest exact size listed by any
/// backend that divides it and suits all backends, else E-CONFIG. Why the largest: fewer entries of
/// the block table for the same keys. Bases are no candidates, since a base may stand for any of
/// its multiples.
int select_common_block_size(int manager_block_size,
                             std::span<const std::vector<BlockSizeRule>> backends);

}  // namespace attnbench
