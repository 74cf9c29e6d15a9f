// The paged cache of an MLA case before the step, and its check after it. One entry a position and
// no heads, so both work on whole slots; the ranks of a DCP group are counted through as one range
// of blocks, which makes the first difference the first of the lowest rank.
#include "inputs/cache/mla_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/system/parallel.h"
#include "inputs/cache/cache_cells.h"
#include "inputs/cache/poison.h"
#include "inputs/make_inputs.h"
#include "metadata/slots.h"

namespace attnbench {
namespace {

/// Bytes of one slot of the cache.
std::size_t entry_bytes(const Tensor& entries) {
  return static_cast<std::size_t>(entries.dim(1)) * dtype_size(entries.dtype());
}

void poison(Tensor& tensor) {
  // Why: the parts of a packed entry are of different types; 0xFF is NaN in each of them.
  if (tensor.dtype() == Dtype::kU8) {
    std::memset(tensor.bytes(), 0xFF, tensor.size_bytes());
  } else {
    fill_poison(tensor);
  }
}

/// Bytes of these entries that lie behind the block. Why by their size: "fp8" is another word for a
/// packed type of some backends.
std::size_t footer_of(const Problem& problem, const Tensor& entries) {
  const std::optional<PackedEntry>& packed = kv_format(problem.kv_cache.dtype).packed;
  const bool is_packed_entry =
      packed && entries.dtype() == Dtype::kU8 && entries.dim(1) == packed->bytes;
  return is_packed_entry ? static_cast<std::size_t>(packed->footer_bytes) : 0;
}

/// Slot and byte of its entry at a byte of a block.
struct EntryByte {
  std::int64_t slot;
  std::size_t byte;
};
EntryByte entry_byte(std::size_t at, std::size_t bytes, std::size_t footer,
                     std::int64_t block_size) {
  const std::size_t data = bytes - footer;
  const std::size_t all_data = static_cast<std::size_t>(block_size) * data;
  if (at < all_data) return {static_cast<std::int64_t>(at / data), at % data};
  return {static_cast<std::int64_t>((at - all_data) / footer), data + (at - all_data) % footer};
}

SlotGeometry geometry_of(const Problem& problem, int rank) {
  return {problem.kv_cache.block_size, physical_blocks(problem), DcpGroup::of(problem), rank};
}

/// Row of the table of request b.
std::span<const std::int32_t> table_row(const Tensor& block_table, std::size_t b) {
  const auto columns = static_cast<std::size_t>(block_table.dim(1));
  return {block_table.data<std::int32_t>() + b * columns, columns};
}

/// Writes blocks of the caches of all ranks, counted through.
class BlockWriter {
 public:
  BlockWriter(const Problem& problem, const Tensor& block_table, const Tensor& entries)
      : problem_(problem),
        entries_(entries),
        footer_(footer_of(problem, entries)),
        owners_(block_owners(problem, block_table)),
        starts_(first_rows(problem)) {}

  std::int64_t num_blocks() const {
    return problem_.dcp.world_size * static_cast<std::int64_t>(owners_.size());
  }
  std::size_t block_bytes() const {
    return static_cast<std::size_t>(problem_.kv_cache.block_size) * entry_bytes(entries_);
  }

  /// The entries of those positions in a block that `chosen` accepts.
  template <typename Chosen>
  void write(std::int64_t block, const Chosen& chosen, std::byte* data) const {
    const auto blocks_of_rank = static_cast<std::int64_t>(owners_.size());
    const RankSlots rank(problem_, static_cast<int>(block / blocks_of_rank));
    const BlockOwner owner = owners_[static_cast<std::size_t>(block % blocks_of_rank)];
    if (!owner.exists()) return;
    const auto b = static_cast<std::size_t>(owner.request);
    const std::size_t bytes = entry_bytes(entries_);
    for (std::int64_t slot = 0; slot < problem_.kv_cache.block_size; ++slot) {
      const std::int64_t p = owner.page * page_tokens(problem_) + rank.offset_in_page(slot);
      if (p >= problem_.batch[b].seq_len) break;
      if (!chosen(b, p)) continue;
      place_entry(entries_.bytes() + static_cast<std::size_t>(starts_[b] + p) * bytes, bytes,
                  footer_, problem_.kv_cache.block_size, slot, data);
    }
  }

 private:
  const Problem& problem_;
  const Tensor& entries_;
  std::size_t footer_;
  std::vector<BlockOwner> owners_;
  std::vector<std::int64_t> starts_;
};

constexpr std::int64_t kLatentBlocksPerTask = 64;

/// Everything but the positions that the step writes.
void write_context(const BlockWriter& writer, const std::vector<PositionRange>& fresh,
                   Tensor& data) {
  const auto in_context = [&](std::size_t b, std::int64_t p) {
    return p < fresh[b].begin || p >= fresh[b].end;
  };
  for_each_chunk(
      writer.num_blocks(), kLatentBlocksPerTask, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t block = begin; block < end; ++block) {
          writer.write(block, in_context,
                       data.bytes() + static_cast<std::size_t>(block) * writer.block_bytes());
        }
      });
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

void place_entry(const std::byte* entry, std::size_t bytes, std::size_t footer,
                 std::int64_t block_size, std::int64_t slot, std::byte* block) {
  const std::size_t data = bytes - footer;
  const auto index = static_cast<std::size_t>(slot);
  std::memcpy(block + index * data, entry, data);
  if (footer == 0) return;
  std::memcpy(block + static_cast<std::size_t>(block_size) * data + index * footer, entry + data,
              footer);
}

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
    write_context(BlockWriter(problem, cache.block_table, entries), fresh, cache.data);
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

MlaCache make_extra_mla_cache(const Problem& problem, const MlaInputs& inputs,
                              const Tensor& entries) {
  MlaInputs keys;
  keys.kv_c = inputs.extra.kv_c;
  keys.k_pe = inputs.extra.k_pe;
  return make_mla_cache(problem_of_extra_keys(problem), keys, entries);
}

std::string check_mla_cache(const Problem& problem, const Tensor& entries, const MlaCache& before,
                            const Tensor& after) {
  if (after.dtype() != before.data.dtype() || after.size_bytes() != before.data.size_bytes()) {
    fail(ErrorKind::kShape, "cache after the step: expected {} bytes of {}, got {} of {}",
         before.data.size_bytes(), dtype_name(before.data.dtype()), after.size_bytes(),
         dtype_name(after.dtype()));
  }
  const BlockWriter writer(problem, before.block_table, entries);
  const std::size_t block_bytes = writer.block_bytes();
  // First byte that differs, counted through the caches of all ranks.
  std::atomic<std::size_t> first_wrong{after.size_bytes()};
  const auto set_expected = [&](std::int64_t block, std::vector<std::byte>& expected) {
    const std::byte* bytes = before.data.bytes() + static_cast<std::size_t>(block) * block_bytes;
    expected.assign(bytes, bytes + block_bytes);
    writer.write(
        block, [](std::size_t, std::int64_t) { return true; }, expected.data());
  };
  const auto check_block = [&](std::int64_t block, std::vector<std::byte>& expected) {
    const std::size_t first = static_cast<std::size_t>(block) * block_bytes;
    if (first >= first_wrong) return;
    set_expected(block, expected);
    const std::byte* actual = after.bytes() + first;
    if (std::memcmp(expected.data(), actual, block_bytes) == 0) return;
    const auto differs = std::mismatch(expected.begin(), expected.end(), actual).first;
    const std::size_t wrong = first + static_cast<std::size_t>(differs - expected.begin());
    std::size_t known = first_wrong;
    while (wrong < known && !first_wrong.compare_exchange_weak(known, wrong)) {
    }
  };
  for_each_chunk(writer.num_blocks(), kLatentBlocksPerTask,
                 [&](std::int64_t begin, std::int64_t end) {
                   std::vector<std::byte> expected;
                   for (std::int64_t block = begin; block < end; ++block)
                     check_block(block, expected);
                 });
  const std::size_t i = first_wrong;
  if (i == after.size_bytes()) return {};
  std::vector<std::byte> expected;
  set_expected(static_cast<std::int64_t>(i / block_bytes), expected);
  const std::int64_t block_size = problem.kv_cache.block_size;
  const EntryByte at =
      entry_byte(i % block_bytes, entry_bytes(entries), footer_of(problem, entries), block_size);
  return fmt::format(
      "{}: expected byte {:#04x}, got {:#04x}",
      describe(problem, before.block_table,
               static_cast<std::int64_t>(i / block_bytes) * block_size + at.slot, at.byte),
      std::to_integer<int>(expected[i % block_bytes]), std::to_integer<int>(after.bytes()[i]));
}

}  // namespace attnbench
