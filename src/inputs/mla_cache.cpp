// The paged cache of an MLA case before the step, and its check after it.
#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "core/error.h"
#include "inputs/cache_cells.h"
#include "inputs/inputs.h"
#include "inputs/mla_inputs.h"

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

/// Copies the entry of every position that `chosen` accepts to its slot.
template <typename Chosen>
void write_entries(const Problem& problem, const Tensor& block_table, const Tensor& entries,
                   const Chosen& chosen, Tensor& data) {
  const std::int64_t block_size = problem.kv_cache.block_size;
  const std::size_t bytes = entry_bytes(entries);
  const std::vector<std::int64_t> starts = first_rows(problem);
  for (std::size_t b = 0; b < problem.batch.size(); ++b) {
    const std::int32_t* table =
        block_table.data<std::int32_t>() + static_cast<std::int64_t>(b) * block_table.dim(1);
    for (std::int64_t p = 0; p < problem.batch[b].seq_len; ++p) {
      if (!chosen(b, p)) continue;
      const auto slot =
          static_cast<std::size_t>(table[p / block_size] * block_size + p % block_size);
      std::memcpy(data.bytes() + slot * bytes,
                  entries.bytes() + static_cast<std::size_t>(starts[b] + p) * bytes, bytes);
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

std::string describe(const Problem& problem, const Tensor& block_table, std::int64_t slot,
                     std::size_t byte) {
  const std::int64_t block_size = problem.kv_cache.block_size;
  const std::int64_t block = slot / block_size;
  const BlockOwner owner = block_owners(problem, block_table)[static_cast<std::size_t>(block)];
  const std::int64_t position = owner.page * block_size + slot % block_size;
  if (owner.exists() && position < problem.batch[static_cast<std::size_t>(owner.request)].seq_len) {
    return fmt::format("request {}, position {}, byte {}", owner.request, position, byte);
  }
  return fmt::format("block {}, slot {} (unused, must stay unchanged), byte {}", block,
                     slot % block_size, byte);
}

}  // namespace

MlaCache make_mla_cache(const Problem& problem, const MlaInputs& inputs, const Tensor& entries) {
  const std::vector<PositionRange> fresh = new_key_ranges(problem);
  const std::int64_t block_size = problem.kv_cache.block_size;
  MlaCache cache;
  cache.block_table = make_block_table(problem, fresh);
  cache.data = Tensor(entries.dtype(), {physical_blocks(problem), block_size, entries.dim(1)});
  poison(cache.data);
  write_entries(
      problem, cache.block_table, entries,
      [&](std::size_t b, std::int64_t p) { return p < fresh[b].begin || p >= fresh[b].end; },
      cache.data);

  std::vector<std::int64_t> slots;
  for (std::size_t b = 0; b < fresh.size(); ++b) {
    const std::int32_t* table = cache.block_table.data<std::int32_t>() +
                                static_cast<std::int64_t>(b) * cache.block_table.dim(1);
    for (std::int64_t p = fresh[b].begin; p < fresh[b].end; ++p) {
      slots.push_back(table[p / block_size] * block_size + p % block_size);
    }
  }
  slots.insert(slots.end(), kPaddingSlots.begin(), kPaddingSlots.end());
  const auto num_rows = static_cast<std::int64_t>(slots.size());
  cache.new_kv_c = gather_new_rows(problem, fresh, inputs.kv_c, num_rows);
  cache.new_k_pe = gather_new_rows(problem, fresh, inputs.k_pe, num_rows);
  cache.slot_mapping = Tensor::from_i64(slots);
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
