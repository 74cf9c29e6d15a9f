// The paged cache of an MLA case before the step, and its check after it.
#include <fmt/format.h>

#include <cstring>
#include <span>
#include <vector>

#include "core/error.h"
#include "inputs/cache_cells.h"
#include "inputs/inputs.h"
#include "inputs/mla_inputs.h"
#include "metadata/slots.h"

namespace attnbench {
namespace {

/// Bytes of one slot of the cache.
std::size_t entry_bytes(const Tensor& entries) {
  return static_cast<std::size_t>(entries.dim(1)) * dtype_size(entries.dtype());
}

void poison(Tensor& tensor) {
  // Why: the parts of a 656-byte entry are of different types; 0xFF is NaN in each of them.
  if (tensor.dtype() == Dtype::kU8) {
    std::memset(tensor.bytes(), 0xFF, tensor.size_bytes());
  } else {
    fill_poison(tensor);
  }
}

SlotGeometry geometry_of(const Problem& problem, int rank) {
  return {problem.kv_cache.block_size,
          physical_blocks(problem),
          {problem.dcp.world_size, problem.dcp.interleave_size},
          rank};
}

/// Row of the table of request b.
std::span<const std::int32_t> table_row(const Tensor& block_table, std::size_t b) {
  const auto columns = static_cast<std::size_t>(block_table.dim(1));
  return {block_table.data<std::int32_t>() + b * columns, columns};
}

/// Copies the entry of every position that `chosen` accepts to its slot on the rank that holds it.
/// `data` is the cache of one rank, or of all of them one behind the other.
template <typename Chosen>
void write_entries(const Problem& problem, const Tensor& block_table, const Tensor& entries,
                   const Chosen& chosen, Tensor& data) {
  const std::size_t bytes = entry_bytes(entries);
  const std::vector<std::int64_t> starts = first_rows(problem);
  for (int rank = 0; rank < problem.dcp.world_size; ++rank) {
    const SlotGeometry geometry = geometry_of(problem, rank);
    const std::int64_t first_slot = rank * geometry.num_blocks * geometry.block_size;
    for (std::size_t b = 0; b < problem.batch.size(); ++b) {
      for (std::int64_t p = 0; p < problem.batch[b].seq_len; ++p) {
        const std::int64_t slot = slot_of_position(p, table_row(block_table, b), geometry);
        if (slot == kPadSlot || !chosen(b, p)) continue;
        std::memcpy(data.bytes() + static_cast<std::size_t>(first_slot + slot) * bytes,
                    entries.bytes() + static_cast<std::size_t>(starts[b] + p) * bytes, bytes);
      }
    }
  }
}

Tensor gather_new_rows(const Problem& problem, const std::vector<PositionRange>& fresh,
                       const Tensor& source, std::int64_t num_rows) {
  Tensor result(source.dtype(), {num_rows, source.dim(1)});
  fill_poison(result);
  const std::size_t row_bytes = entry_bytes(source);
  const std::vector<std::int64_t> starts = first_rows(problem);
  std::size_t row = 0;
  for (std::size_t b = 0; b < fresh.size(); ++b) {
    for (std::int64_t p = fresh[b].begin; p < fresh[b].end; ++p) {
      std::memcpy(result.bytes() + row++ * row_bytes,
                  source.bytes() + static_cast<std::size_t>(starts[b] + p) * row_bytes, row_bytes);
    }
  }
  return result;
}

/// `slot` counts through the caches of all ranks.
std::string describe(const Problem& problem, const Tensor& block_table, std::int64_t slot,
                     std::size_t byte) {
  const std::int64_t block_size = problem.kv_cache.block_size;
  const std::int64_t slots_of_rank = physical_blocks(problem) * block_size;
  const RankSlots rank(problem, static_cast<int>(slot / slots_of_rank));
  const std::int64_t block = slot % slots_of_rank / block_size;
  const BlockOwner owner = block_owners(problem, block_table)[static_cast<std::size_t>(block)];
  const std::int64_t position =
      owner.page * page_tokens(problem) + rank.offset_in_page(slot % block_size);
  const std::string prefix =
      problem.dcp.world_size > 1 ? fmt::format("rank {}: ", rank.rank) : std::string();
  if (owner.exists() && position < problem.batch[static_cast<std::size_t>(owner.request)].seq_len) {
    return fmt::format("{}request {}, position {}, byte {}", prefix, owner.request, position, byte);
  }
  return fmt::format("{}block {}, slot {} (unused, must stay unchanged), byte {}", prefix, block,
                     slot % block_size, byte);
}

}  // namespace

MlaCache make_mla_cache(const Problem& problem, const MlaInputs& inputs, const Tensor& entries) {
  const std::vector<PositionRange> fresh = new_key_ranges(problem);
  MlaCache cache;
  cache.block_table = make_block_table(problem, fresh);
  std::vector<std::int64_t> shape{physical_blocks(problem), problem.kv_cache.block_size,
                                  entries.dim(1)};
  const int world_size = problem.dcp.world_size;
  if (world_size > 1) shape.insert(shape.begin(), world_size);
  cache.data = Tensor(entries.dtype(), shape);
  if (!problem.inputs.shapes_only) {
    poison(cache.data);
    write_entries(
        problem, cache.block_table, entries,
        [&](std::size_t b, std::int64_t p) { return p < fresh[b].begin || p >= fresh[b].end; },
        cache.data);
  }

  std::vector<std::int64_t> slots;
  for (int rank = 0; rank < world_size; ++rank) {
    const SlotGeometry geometry = geometry_of(problem, rank);
    for (std::size_t b = 0; b < fresh.size(); ++b) {
      for (std::int64_t p = fresh[b].begin; p < fresh[b].end; ++p) {
        slots.push_back(slot_of_position(p, table_row(cache.block_table, b), geometry));
      }
    }
    slots.insert(slots.end(), kPaddingSlots.begin(), kPaddingSlots.end());
  }
  const auto num_rows = static_cast<std::int64_t>(slots.size()) / world_size;
  cache.new_kv_c = gather_new_rows(problem, fresh, inputs.kv_c, num_rows);
  cache.new_k_pe = gather_new_rows(problem, fresh, inputs.k_pe, num_rows);
  std::vector<std::int64_t> mapping_shape{num_rows};
  if (world_size > 1) mapping_shape.insert(mapping_shape.begin(), world_size);
  cache.slot_mapping = Tensor::from_i64(slots, mapping_shape);
  return cache;
}

std::string check_mla_cache(const Problem& problem, const Tensor& entries, const MlaCache& before,
                            const Tensor& after) {
  if (after.dtype() != before.data.dtype() || after.size_bytes() != before.data.size_bytes()) {
    fail(ErrorKind::kShape, "cache after the step: expected {} bytes of {}, got {} of {}",
         before.data.size_bytes(), dtype_name(before.data.dtype()), after.size_bytes(),
         dtype_name(after.dtype()));
  }
  Tensor expected = before.data;
  write_entries(
      problem, before.block_table, entries, [](std::size_t, std::int64_t) { return true; },
      expected);
  if (std::memcmp(expected.bytes(), after.bytes(), after.size_bytes()) == 0) return {};
  const std::size_t bytes = entry_bytes(entries);
  std::size_t i = 0;
  while (expected.bytes()[i] == after.bytes()[i]) ++i;
  return fmt::format(
      "{}: expected byte {:#04x}, got {:#04x}",
      describe(problem, before.block_table, static_cast<std::int64_t>(i / bytes), i % bytes),
      std::to_integer<int>(expected.bytes()[i]), std::to_integer<int>(after.bytes()[i]));
}

}  // namespace attnbench
