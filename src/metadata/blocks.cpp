// Choice and mapping of block sizes. A rule with a base means every multiple of it; the two
// questions of the header read it differently on purpose: support of a configured size is generous,
// the common size must be one that each backend takes as it is.
#include "metadata/blocks.h"

#include <algorithm>

#include "core/error.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

bool suits(int block_size, const std::vector<BlockSizeRule>& rules) {
  return std::ranges::any_of(rules, [&](const BlockSizeRule& rule) {
    return rule.any_multiple ? block_size % rule.size == 0 : block_size == rule.size;
  });
}

}  // namespace

std::vector<int32_t> map_to_kernel_blocks(std::span<const int32_t> manager_blocks,
                                          int manager_block_size, int kernel_block_size) {
  if (kernel_block_size < 1 || manager_block_size % kernel_block_size != 0) {
    fail(ErrorKind::kConfig, "kernel block size: expected a divisor of {}, got {}",
         manager_block_size, kernel_block_size);
  }
  const int64_t ratio = manager_block_size / kernel_block_size;
  std::vector<int32_t> kernel_blocks;
  kernel_blocks.reserve(manager_blocks.size() * static_cast<size_t>(ratio));
  for (const int32_t block : manager_blocks) {
    for (int64_t i = 0; i < ratio; ++i) {
      kernel_blocks.push_back(checked_int32(block * ratio + i, "kernel block id"));
    }
  }
  return kernel_blocks;
}

bool supports_block_size(std::optional<int> block_size, std::span<const BlockSizeRule> rules) {
  if (!block_size) return true;
  return std::ranges::any_of(
      rules, [&](const BlockSizeRule& rule) { return *block_size % rule.size == 0; });
}

int select_common_block_size(int manager_block_size,
                             std::span<const std::vector<BlockSizeRule>> backends) {
  const auto suits_all = [&](int size) {
    return std::ranges::all_of(backends, [&](const auto& rules) { return suits(size, rules); });
  };
  if (suits_all(manager_block_size)) return manager_block_size;
  int best = 0;
  for (const auto& rules : backends) {
    for (const BlockSizeRule& rule : rules) {
      const bool usable = !rule.any_multiple && manager_block_size % rule.size == 0;
      if (usable && rule.size > best && suits_all(rule.size)) best = rule.size;
    }
  }
  if (best == 0) {
    fail(ErrorKind::kConfig,
         "block size: expected one that every backend supports and that divides {}, found none",
         manager_block_size);
  }
  return best;
}

}  // namespace attnbench
