// The checks. Each stops at the first fault and names array, index, what was expected and what was
// found; they run on every batch, so all are linear in its size.
#include "metadata/validation.h"

#include <cmath>
#include <unordered_set>

#include "core/error.h"
#include "metadata/int_math.h"

namespace attnbench {

void check_cumulative(std::span<const int32_t> values, int64_t total, std::string_view name) {
  if (values.empty()) fail(ErrorKind::kShape, "{}: expected at least one element, got none", name);
  if (values[0] != 0) fail(ErrorKind::kValue, "{}[0]: expected 0, got {}", name, values[0]);
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i] < values[i - 1]) {
      fail(ErrorKind::kValue, "{}[{}]: expected at least {}, got {}", name, i, values[i - 1],
           values[i]);
    }
  }
  if (values.back() != total) {
    fail(ErrorKind::kValue, "{}: expected the last element to be {}, got {}", name, total,
         values.back());
  }
}

void check_block_table(std::span<const int32_t> block_table, int64_t columns,
                       std::span<const int32_t> seq_lens, int64_t block_size, int64_t num_blocks) {
  const auto num_requests = static_cast<int64_t>(seq_lens.size());
  if (static_cast<int64_t>(block_table.size()) != num_requests * columns) {
    fail(ErrorKind::kShape, "block_table: expected {} x {} entries, got {}", num_requests, columns,
         block_table.size());
  }
  for (int64_t b = 0; b < num_requests; ++b) {
    const int32_t seq_len = seq_lens[static_cast<size_t>(b)];
    if (seq_len < 0) fail(ErrorKind::kValue, "seq_lens[{}]: expected >= 0, got {}", b, seq_len);
    const int64_t used = ceil_div(seq_len, block_size);
    if (used > columns) {
      fail(ErrorKind::kShape, "block_table: request {} of {} tokens needs {} columns, got {}", b,
           seq_len, used, columns);
    }
    for (int64_t c = 0; c < used; ++c) {
      const int32_t block = block_table[static_cast<size_t>(b * columns + c)];
      if (block < 0 || block >= num_blocks) {
        fail(ErrorKind::kValue, "block_table[{}][{}]: expected a block in [0, {}), got {}", b, c,
             num_blocks, block);
      }
    }
  }
}

void check_slot_mapping(std::span<const int64_t> slot_mapping, int64_t num_blocks,
                        int64_t block_size) {
  const int64_t num_slots = checked_mul(num_blocks, block_size, "cache slots");
  std::unordered_set<int64_t> seen;
  seen.reserve(slot_mapping.size());
  for (size_t t = 0; t < slot_mapping.size(); ++t) {
    const int64_t slot = slot_mapping[t];
    if (slot < 0) continue;
    if (slot >= num_slots) {
      fail(ErrorKind::kValue, "slot_mapping[{}]: expected a slot below {}, got {}", t, num_slots,
           slot);
    }
    if (!seen.insert(slot).second) {
      fail(ErrorKind::kValue, "slot_mapping[{}]: expected distinct slots, got {} twice", t, slot);
    }
  }
}

void check_scale(float scale, std::string_view name) {
  if (!std::isfinite(scale) || scale <= 0) {
    fail(ErrorKind::kValue, "{}: expected a finite scale > 0, got {}", name, scale);
  }
}

std::vector<int32_t> query_lens_of(std::span<const int32_t> query_start_loc,
                                   std::string_view name) {
  check_cumulative(query_start_loc, query_start_loc.empty() ? 0 : query_start_loc.back(), name);
  std::vector<int32_t> lens(query_start_loc.size() - 1);
  for (size_t b = 0; b < lens.size(); ++b) lens[b] = query_start_loc[b + 1] - query_start_loc[b];
  return lens;
}

std::vector<int32_t> context_lens_of(std::span<const int32_t> query_start_loc,
                                     std::span<const int32_t> seq_lens) {
  std::vector<int32_t> lens = query_lens_of(query_start_loc);
  if (lens.size() != seq_lens.size()) {
    fail(ErrorKind::kShape, "seq_lens: expected {} elements, got {}", lens.size(), seq_lens.size());
  }
  for (size_t b = 0; b < lens.size(); ++b) {
    if (seq_lens[b] < lens[b]) {
      fail(ErrorKind::kValue, "seq_lens[{}]: expected at least the query length {}, got {}", b,
           lens[b], seq_lens[b]);
    }
    lens[b] = seq_lens[b] - lens[b];
  }
  return lens;
}

std::vector<int32_t> cumulative(std::span<const int32_t> lengths) {
  std::vector<int32_t> sums(lengths.size() + 1, 0);
  for (size_t b = 0; b < lengths.size(); ++b) {
    if (lengths[b] < 0) {
      fail(ErrorKind::kValue, "lengths[{}]: expected >= 0, got {}", b, lengths[b]);
    }
    sums[b + 1] = checked_int32(int64_t{sums[b]} + lengths[b], "cumulative length");
  }
  return sums;
}

void check_key_start_loc(std::span<const int32_t> key_start_loc,
                         std::span<const int32_t> seq_lens) {
  const std::vector<int32_t> expected = cumulative(seq_lens);
  if (key_start_loc.size() != expected.size()) {
    fail(ErrorKind::kShape, "key_start_loc: expected {} elements, got {}", expected.size(),
         key_start_loc.size());
  }
  for (size_t b = 0; b < expected.size(); ++b) {
    if (key_start_loc[b] != expected[b]) {
      fail(ErrorKind::kValue, "key_start_loc[{}]: expected {}, got {}", b, expected[b],
           key_start_loc[b]);
    }
  }
}

}  // namespace attnbench
