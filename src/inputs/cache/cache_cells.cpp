// Handing out of blocks and copying of rows into cells. All that fills, checks or reads back a
// paged cache goes through these functions, so that the owner of a block is decided in one place.
#include "inputs/cache/cache_cells.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "inputs/random.h"
#include "metadata/blocks.h"
#include "metadata/int_math.h"
#include "metadata/parts/cascade.h"

namespace attnbench {
namespace {

constexpr std::int64_t kExtraTableColumns = 2;

/// Kernel blocks of a block of the manager, which hands them out (§1.7).
std::int64_t blocks_of_manager(const Problem& problem) {
  const KvCacheSpec& cache = problem.kv_cache;
  return cache.manager_block_size.value_or(cache.block_size) / cache.block_size;
}

/// Ids of the manager in the order in which its blocks are handed out.
std::vector<std::int32_t> block_order(const Problem& problem) {
  const std::int32_t count =
      checked_int32(physical_blocks(problem) / blocks_of_manager(problem), "kv_cache.num_blocks");
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (!problem.kv_cache.shuffle_blocks) return order;
  // Fisher-Yates; the product picks one of i + 1 values from 32 random bits.
  const RandomStream stream{problem.inputs.seed, StreamId::kBlocks};
  for (std::size_t i = order.size(); i-- > 1;) {
    const std::uint64_t pick = (std::uint64_t{stream.bits(i)} * (i + 1)) >> 32;
    std::swap(order[i], order[static_cast<std::size_t>(pick)]);
  }
  return order;
}

/// Whether block `page` of request b, of `tokens` tokens, holds shared prefix positions only, all
/// written earlier.
bool is_shared_page(const SharedPrefix& prefix, const PositionRange& fresh, std::int64_t page,
                    std::int64_t tokens, std::int64_t seq_len) {
  const std::int64_t end = (page + 1) * tokens;
  const bool written_now = fresh.begin < fresh.end && fresh.begin < end;
  return end <= prefix.num_keys && end <= seq_len && !written_now;
}

}  // namespace

std::int64_t page_tokens(const Problem& problem) {
  return std::int64_t{problem.kv_cache.block_size} * problem.dcp.world_size;
}

std::int64_t physical_blocks(const Problem& problem) {
  return std::max<std::int64_t>(1, problem.kv_cache.num_blocks);
}

std::vector<BlockOwner> block_owners(const Problem& problem, const Tensor& block_table) {
  std::vector<BlockOwner> owners(static_cast<std::size_t>(physical_blocks(problem)));
  for (std::int64_t b = 0; b < problem.num_requests(); ++b) {
    const std::int64_t pages =
        ceil_div(problem.batch[static_cast<std::size_t>(b)].seq_len, page_tokens(problem));
    const std::int32_t* row = block_table.data<std::int32_t>() + b * block_table.dim(1);
    for (std::int64_t page = 0; page < pages; ++page) {
      BlockOwner& owner = owners[static_cast<std::size_t>(row[page])];
      if (!owner.exists()) owner = {b, page};
    }
  }
  return owners;
}

std::vector<std::int64_t> first_rows(const Problem& problem) {
  std::vector<std::int64_t> starts{0};
  for (const Request& request : problem.batch) starts.push_back(starts.back() + request.seq_len);
  return starts;
}

std::int64_t block_table_columns(const Problem& problem) {
  return ceil_div(problem.max_seq_len(), page_tokens(problem)) + kExtraTableColumns;
}

Tensor make_block_table(const Problem& problem, const std::vector<PositionRange>& fresh) {
  const std::int64_t tokens = page_tokens(problem) * blocks_of_manager(problem);
  const std::int64_t columns = block_table_columns(problem);
  Tensor table(Dtype::kI32, {problem.num_requests(), columns});
  const std::vector<std::int32_t> order = block_order(problem);
  std::size_t next = 0;
  const std::vector<SharedPrefix> prefixes = shared_prefixes(problem);
  // Of each group the block of every shared page handed out so far, else -1.
  std::vector<std::vector<std::int32_t>> shared_of_group(prefix_groups(problem).size());
  const auto allocate = [&]() -> std::int32_t {
    if (next >= order.size()) {
      fail(ErrorKind::kConfig, "kv_cache.num_blocks: expected enough for the batch, got {}",
           problem.kv_cache.num_blocks);
    }
    return order[next++];
  };
  for (std::int64_t b = 0; b < problem.num_requests(); ++b) {
    const std::int64_t seq_len = problem.batch[static_cast<std::size_t>(b)].seq_len;
    const std::int64_t pages = ceil_div(seq_len, tokens);
    const SharedPrefix& prefix = prefixes[static_cast<std::size_t>(b)];
    std::vector<std::int32_t> blocks;
    for (std::int64_t page = 0; page < pages; ++page) {
      if (is_shared_page(prefix, fresh[static_cast<std::size_t>(b)], page, tokens, seq_len)) {
        auto& shared = shared_of_group[static_cast<std::size_t>(prefix.group)];
        const auto slot = static_cast<std::size_t>(page);
        if (shared.size() <= slot) shared.resize(slot + 1, -1);
        if (shared[slot] < 0) shared[slot] = allocate();
        blocks.push_back(shared[slot]);
      } else {
        blocks.push_back(allocate());
      }
    }
    if (const std::optional<int>& manager = problem.kv_cache.manager_block_size) {
      blocks = map_to_kernel_blocks(blocks, *manager, problem.kv_cache.block_size);
    }
    std::int32_t* row = table.data<std::int32_t>() + b * columns;
    for (std::int64_t page = 0; page < columns; ++page) {
      const bool is_known = page < std::ssize(blocks);
      const std::int32_t garbage = page % 2 == 0 ? -1 : std::numeric_limits<std::int32_t>::max();
      row[page] = is_known ? blocks[static_cast<std::size_t>(page)] : garbage;
    }
  }
  return table;
}

void CellWriter::write_key_scales(float* block_scales, std::int64_t row, std::int64_t slot) const {
  const std::int64_t heads = stored_.key_scales.dim(1);
  for (std::int64_t head = 0; head < heads; ++head) {
    block_scales[head * block_size_ + slot] = stored_.key_scales.data<float>()[row * heads + head];
  }
}

void CellWriter::write(std::byte* plane, std::int64_t row, std::int64_t slot, bool is_key) const {
  const Tensor& codes = is_key ? stored_.key_codes : stored_.value_codes;
  const Tensor& scales = is_key ? stored_.key_scales : stored_.value_scales;
  const std::int64_t heads = codes.dim(1);
  const std::int64_t vector_bytes = codes.dim(2) * element_size(is_key);
  for (std::int64_t head = 0; head < heads; ++head) {
    std::byte* destination = plane + cell(slot, head, is_key);
    const std::int64_t source = row * heads + head;
    std::memcpy(destination, codes.bytes() + source * vector_bytes,
                static_cast<std::size_t>(vector_bytes));
    if (layout_.scale_offset >= 0) {
      std::memcpy(destination + layout_.scale_offset, scales.data<float>() + source, sizeof(float));
    }
    for (std::int64_t block = 0; block < layout_.block_scales; ++block) {
      plane[block_scale(slot, head, block, is_key)] =
          scales.bytes()[source * layout_.block_scales + block];
    }
  }
}

std::int64_t CellWriter::block_scale(std::int64_t slot, std::int64_t head, std::int64_t block,
                                     bool is_key) const {
  std::int64_t at = block;
  if (!is_key) {
    // The scales of four slots are [4 slots, 4, S / 4]; they stand as [4, S / 4, 4 slots].
    const std::int64_t parts = layout_.block_scales / 4;
    const std::int64_t index = block / parts * layout_.block_scales + block % parts * 4 + slot % 4;
    slot = slot / 4 * 4 + index / layout_.block_scales;
    at = index % layout_.block_scales;
  }
  return layout_.block_scale_offset + slot * layout_.block_scale_slot_stride +
         head * layout_.block_scale_head_stride + at;
}

}  // namespace attnbench
