// Building of the cache before the step, in this order: poison everywhere, initial scales where the
// format has them, then the context positions. So a byte that was not written on purpose shows as
// NaN in any result that reads it.
#include "inputs/cache/paged_cache.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/system/parallel.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/cache/poison.h"
#include "metadata/slots.h"

namespace attnbench {
namespace {

HeadOrder head_order(CacheLayout layout) {
  return layout == CacheLayout::kNhd ? HeadOrder::kNhd : HeadOrder::kHnd;
}

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
  if (cache.layout.block_scales > 0 || cache.layout.slot_bytes > 0) {
    // Why 0xFF: NaN as the e4m3 of a scale or key and as f16; codes of 4 bits have none.
    for_each_chunk(static_cast<std::int64_t>(cache.data.size_bytes()), 4 << 20,
                   [&](std::int64_t begin, std::int64_t end) {
                     std::memset(cache.data.bytes() + begin, 0xFF,
                                 static_cast<std::size_t>(end - begin));
                   });
  } else {
    fill_poison(cache.data);
  }
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

KvLayout paged_layout(const Problem& problem, CacheLayoutKind kind) {
  const KvCacheSpec& spec = problem.kv_cache;
  const AttentionSpec& a = problem.attention;
  if (!spec.layers) {
    return make_kv_layout(kind, head_order(spec.layout), physical_blocks(problem), spec.block_size,
                          a.num_kv_heads, a.head_size, spec.dtype, spec.int8_level == 2 ? 3 : 2);
  }
  const bool per_token_head = is_per_token_head(spec.dtype);
  const int codes = a.head_size / kv_format(spec.dtype).columns_of_code;
  KvLayout layout =
      make_layered_kv_layout(kind, head_order(spec.layout), *spec.layers, physical_blocks(problem),
                             spec.block_size, a.num_kv_heads, codes, per_token_head);
  layout.key_offset += spec.layer * layout.layer_stride;
  layout.value_offset += spec.layer * layout.layer_stride;
  return layout;
}

PagedCache make_paged_cache(const Problem& problem, const AttentionInputs& inputs,
                            const StoredKv& stored, CacheLayoutKind kind) {
  const KvCacheSpec& spec = problem.kv_cache;
  check_head_sizes(problem.attention);
  const std::vector<PositionRange> fresh = new_key_ranges(problem);
  PagedCache cache;
  cache.layout = paged_layout(problem, kind);
  cache.block_table = make_block_table(problem, fresh);
  const int world_size = problem.dcp.world_size;
  std::vector<std::int64_t> shape = cache.layout.physical_shape;
  if (world_size > 1) shape.insert(shape.begin(), world_size);
  // Of shapes without values nothing is written, and zeros that nobody touches take no memory.
  cache.data = inputs.shapes_only ? Tensor(stored.key_codes.dtype(), shape)
                                  : Tensor::for_overwriting(stored.key_codes.dtype(), shape);
  if (spec.int8_level > 0) {
    const std::vector<std::int64_t>& extents = cache.layout.logical_shape;  // [P, NB, Hk, bs, D]
    cache.key_scale_cache = Tensor(Dtype::kF32, {extents[1], extents[2], extents[3]});
  }
  if (!inputs.shapes_only) fill_cache(problem, fresh, stored, cache);
  make_new_rows(problem, inputs, fresh, cache);
  return cache;
}

}  // namespace attnbench
