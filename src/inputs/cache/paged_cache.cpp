#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/system/parallel.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/inputs.h"
#include "inputs/random.h"
#include "metadata/int_math.h"
#include "metadata/slots.h"

namespace attnbench {
namespace {

constexpr std::int64_t kExtraTableColumns = 2;
HeadOrder head_order(CacheLayout layout) {
  return layout == CacheLayout::kNhd ? HeadOrder::kNhd : HeadOrder::kHnd;
}

/// Physical ids in the order in which blocks are handed out.
std::vector<std::int32_t> block_order(const Problem& problem) {
  const std::int32_t count = checked_int32(physical_blocks(problem), "kv_cache.num_blocks");
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (!problem.kv_cache.shuffle_blocks) return order;
  // Fisher-Yates; the product picks one of i + 1 values from 32 random bits.
  const Stream stream{problem.inputs.seed, StreamId::kBlocks};
  for (std::size_t i = order.size(); i-- > 1;) {
    const std::uint64_t pick = (std::uint64_t{stream.bits(i)} * (i + 1)) >> 32;
    std::swap(order[i], order[static_cast<std::size_t>(pick)]);
  }
  return order;
}

/// Whether page `page` of request b holds shared prefix positions only, all written earlier.
bool is_shared_page(const Problem& problem, const PositionRange& fresh, std::int64_t page,
                    std::int64_t seq_len) {
  const std::int64_t end = (page + 1) * page_tokens(problem);
  const bool written_now = fresh.begin < fresh.end && fresh.begin < end;
  return end <= problem.cascade.common_prefix_len && end <= seq_len && !written_now;
}

}  // namespace

Tensor make_block_table(const Problem& problem, const std::vector<PositionRange>& fresh) {
  const std::int64_t tokens = page_tokens(problem);
  const std::int64_t columns = ceil_div(problem.max_seq_len(), tokens) + kExtraTableColumns;
  Tensor table(Dtype::kI32, {problem.num_requests(), columns});
  const std::vector<std::int32_t> order = block_order(problem);
  std::size_t next = 0;
  std::vector<std::int32_t> shared;  // block of every shared page handed out so far, else -1
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
    std::int32_t* row = table.data<std::int32_t>() + b * columns;
    for (std::int64_t page = 0; page < columns; ++page) {
      if (page >= pages) {
        row[page] = page % 2 == 0 ? -1 : std::numeric_limits<std::int32_t>::max();
      } else if (is_shared_page(problem, fresh[static_cast<std::size_t>(b)], page, seq_len)) {
        const auto slot = static_cast<std::size_t>(page);
        if (shared.size() <= slot) shared.resize(slot + 1, -1);
        if (shared[slot] < 0) shared[slot] = allocate();
        row[page] = shared[slot];
      } else {
        row[page] = allocate();
      }
    }
  }
  return table;
}

namespace {

/// Bytes that turn a result into NaN when they are read as `dtype`: NaN codes of both signs (and an
/// infinity for e5m2), the extremes for int8.
void fill_poison(Dtype dtype, std::byte* bytes, std::size_t size_bytes) {
  const auto fill = [&](auto even, auto odd) {
    auto* data = reinterpret_cast<decltype(even)*>(bytes);
    const auto count = static_cast<std::int64_t>(size_bytes / sizeof(even));
    for_each_chunk(count, 1 << 20, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) data[i] = i % 2 == 0 ? even : odd;
    });
  };
  using u8 = std::uint8_t;
  using u16 = std::uint16_t;
  switch (dtype) {
    case Dtype::kF32:
      return fill(std::uint32_t{0x7FC00000}, std::uint32_t{0xFFC00000});
    case Dtype::kF64:
      return fill(std::uint64_t{0x7FF8} << 48, std::uint64_t{0xFFF8} << 48);
    case Dtype::kF16:
      return fill(u16{0x7E00}, u16{0xFE00});
    case Dtype::kBF16:
      return fill(u16{0x7FC0}, u16{0xFFC0});
    case Dtype::kE4M3:
      return fill(u8{0x7F}, u8{0xFF});
    case Dtype::kE5M2:
      return fill(u8{0x7F}, u8{0xFC});
    case Dtype::kI8:
    case Dtype::kU8:
      return fill(u8{0x7F}, u8{0x80});
    case Dtype::kI32:
    case Dtype::kI64:
      break;
  }
  fail(ErrorKind::kInternal, "no poison for dtype {}", dtype_name(dtype));
}

}  // namespace

void fill_poison(Tensor& tensor) {
  fill_poison(tensor.dtype(), tensor.bytes(), tensor.size_bytes());
}

namespace {

/// §5.5: all scales are 1.0 when the cache is created.
void set_initial_scales(const Problem& problem, const KvLayout& layout, const CellWriter& cells,
                        std::byte* data) {
  const float one = 1.0f;
  const auto set_plane = [&](std::byte* plane) {
    for (std::int64_t slot = 0; slot < problem.kv_cache.block_size; ++slot) {
      for (std::int64_t head = 0; head < problem.attention.num_kv_heads; ++head) {
        std::memcpy(plane + cells.cell(slot, head, true) + layout.scale_offset, &one, sizeof(one));
      }
    }
  };
  for_each_chunk(physical_blocks(problem), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      set_plane(data + cells.key_plane(block));
      set_plane(data + cells.value_plane(block));
    }
  });
}

/// The context positions of one rank into its cache at `data`.
void write_context(const Problem& problem, const std::vector<PositionRange>& fresh,
                   const CellWriter& cells, const RankSlots& rank, PagedCache& cache,
                   std::byte* data) {
  const std::int64_t block_size = problem.kv_cache.block_size;
  const std::vector<BlockOwner> owners = block_owners(problem, cache.block_table);
  const std::vector<std::int64_t> starts = first_rows(problem);
  const auto write_blocks = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const BlockOwner owner = owners[static_cast<std::size_t>(block)];
      if (!owner.exists()) continue;
      const auto request = static_cast<std::size_t>(owner.request);
      for (std::int64_t slot = 0; slot < block_size; ++slot) {
        const std::int64_t position = owner.page * page_tokens(problem) + rank.offset_in_page(slot);
        if (position >= problem.batch[request].seq_len) break;
        if (position >= fresh[request].begin && position < fresh[request].end) continue;
        const std::int64_t row = starts[request] + position;
        cells.write_key(data + cells.key_plane(block), row, slot);
        cells.write_value(data + cells.value_plane(block), row, slot);
        if (cache.key_scale_cache.empty()) continue;
        const std::int64_t scales_per_block = block_size * problem.attention.num_kv_heads;
        cells.write_key_scales(cache.key_scale_cache.data<float>() + block * scales_per_block, row,
                               slot);
      }
    }
  };
  for_each_chunk(physical_blocks(problem), 16, write_blocks);
}

/// Slots of the new positions on one rank, and padding behind them.
void append_slots(const Problem& problem, const std::vector<PositionRange>& fresh,
                  const Tensor& block_table, int rank, std::vector<std::int64_t>& slots) {
  const SlotGeometry geometry{problem.kv_cache.block_size, physical_blocks(problem),
                              DcpGroup::of(problem), rank};
  const auto columns = static_cast<std::size_t>(block_table.dim(1));
  for (std::size_t b = 0; b < fresh.size(); ++b) {
    const std::span<const std::int32_t> row{block_table.data<std::int32_t>() + b * columns,
                                            columns};
    for (std::int64_t p = fresh[b].begin; p < fresh[b].end; ++p) {
      slots.push_back(slot_of_position(p, row, geometry));
    }
  }
  slots.insert(slots.end(), kPaddingSlots.begin(), kPaddingSlots.end());
}

/// slot_mapping, new_key and new_value of the positions that the step writes.
void make_new_rows(const Problem& problem, const AttentionInputs& inputs,
                   const std::vector<PositionRange>& fresh, PagedCache& cache) {
  std::vector<std::int64_t> slots;
  const int world_size = problem.dcp.world_size;
  for (int rank = 0; rank < world_size; ++rank) {
    append_slots(problem, fresh, cache.block_table, rank, slots);
  }
  std::vector<std::int64_t> rows;
  for (std::size_t b = 0; b < fresh.size(); ++b) {
    for (std::int64_t p = fresh[b].begin; p < fresh[b].end; ++p) {
      rows.push_back(inputs.key_start_loc[b] + p);
    }
  }
  const std::size_t num_slots = slots.size() / static_cast<std::size_t>(world_size);
  const auto gather = [&](const Tensor& source) {
    Tensor result(source.dtype(),
                  {static_cast<std::int64_t>(num_slots), source.dim(1), source.dim(2)});
    fill_poison(result);
    const std::size_t row_bytes = result.size_bytes() / num_slots;
    const auto num_rows = static_cast<std::int64_t>(rows.size());
    for_each_chunk(num_rows, 1024, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        std::memcpy(result.bytes() + i * row_bytes,
                    source.bytes() + static_cast<std::size_t>(rows[i]) * row_bytes, row_bytes);
      }
    });
    return result;
  };
  cache.new_key = gather(inputs.key);
  cache.new_value = gather(inputs.value);
  std::vector<std::int64_t> shape{static_cast<std::int64_t>(num_slots)};
  if (world_size > 1) shape.insert(shape.begin(), world_size);
  cache.slot_mapping = Tensor::from_i64(slots, shape);
}

/// The cache of key scales, and the values, which at level 2 are of 16 bits.
void poison_int8_parts(const StoredKv& stored, PagedCache& cache) {
  fill_poison(cache.key_scale_cache);
  const auto first = static_cast<std::size_t>(cache.layout.value_offset);
  fill_poison(stored.value_codes.dtype(), cache.data.bytes() + first,
              cache.data.size_bytes() - first);
}

/// Poison everywhere but in the context positions.
void fill_cache(const Problem& problem, const std::vector<PositionRange>& fresh,
                const StoredKv& stored, PagedCache& cache) {
  const KvCacheSpec& spec = problem.kv_cache;
  fill_poison(cache.data);
  if (spec.int8_level > 0) poison_int8_parts(stored, cache);
  const CellWriter cells(cache.layout, stored, spec.block_size);
  const int world_size = problem.dcp.world_size;
  const std::size_t rank_bytes = cache.data.size_bytes() / static_cast<std::size_t>(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    std::byte* data = cache.data.bytes() + static_cast<std::size_t>(rank) * rank_bytes;
    if (is_per_token_head(spec.dtype)) set_initial_scales(problem, cache.layout, cells, data);
    write_context(problem, fresh, cells, RankSlots(problem, rank), cache, data);
  }
}

void check_head_sizes(const AttentionSpec& attention) {
  if (attention.v_head_size == attention.head_size) return;
  fail(ErrorKind::kShape, "KV cache: expected v_head_size = head_size = {}, got {}",
       attention.head_size, attention.v_head_size);
}

}  // namespace

PagedCache make_paged_cache(const Problem& problem, const AttentionInputs& inputs,
                            const StoredKv& stored, CacheLayoutKind kind) {
  const AttentionSpec& a = problem.attention;
  const KvCacheSpec& spec = problem.kv_cache;
  check_head_sizes(a);
  const std::vector<PositionRange> fresh = new_key_ranges(problem);
  PagedCache cache;
  cache.layout = make_kv_layout(kind, head_order(spec.layout), physical_blocks(problem),
                                spec.block_size, a.num_kv_heads, a.head_size,
                                is_per_token_head(spec.dtype), spec.int8_level == 2 ? 3 : 2);
  cache.block_table = make_block_table(problem, fresh);
  const int world_size = problem.dcp.world_size;
  std::vector<std::int64_t> shape = cache.layout.physical_shape;
  if (world_size > 1) shape.insert(shape.begin(), world_size);
  cache.data = Tensor(stored.key_codes.dtype(), shape);
  if (spec.int8_level > 0) {
    const std::vector<std::int64_t>& extents = cache.layout.logical_shape;  // [P, NB, Hk, bs, D]
    cache.key_scale_cache = Tensor(Dtype::kF32, {extents[1], extents[2], extents[3]});
  }
  if (!inputs.shapes_only) fill_cache(problem, fresh, stored, cache);
  make_new_rows(problem, inputs, fresh, cache);
  return cache;
}

}  // namespace attnbench
