// Slices of a batch for decode and prefill. Decode slices are views of the caller's arrays; a
// prefill slice owns its re-based cumulative lengths, shared by copies, so that the block table can
// be replaced without computing them again.
#include "metadata/batch_metadata.h"

#include <algorithm>

#include "core/error.h"
#include "metadata/validation.h"

namespace attnbench {
namespace {

void check_extents(const BatchArrays& arrays) {
  const size_t num_requests = arrays.seq_lens.size();
  if (arrays.query_start_loc.size() != num_requests + 1) {
    fail(ErrorKind::kShape, "query_start_loc: expected {} elements, got {}", num_requests + 1,
         arrays.query_start_loc.size());
  }
  if (arrays.block_table.size() != num_requests * static_cast<size_t>(arrays.block_table_columns)) {
    fail(ErrorKind::kShape, "block_table: expected {} x {} entries, got {}", num_requests,
         arrays.block_table_columns, arrays.block_table.size());
  }
}

std::span<const int32_t> table_rows(const BatchArrays& arrays, int first, int count) {
  const auto columns = static_cast<size_t>(arrays.block_table_columns);
  return arrays.block_table.subspan(static_cast<size_t>(first) * columns,
                                    static_cast<size_t>(count) * columns);
}

void set_table_rows(BatchMetadata& meta) {
  const BatchSplit& split = meta.split;
  if (meta.decode) meta.decode->block_table = table_rows(meta.arrays, 0, split.num_decodes);
  if (meta.prefill) {
    meta.prefill->block_table = table_rows(meta.arrays, split.num_decodes, split.num_prefills);
  }
}

DecodeSlice make_decode_slice(const BatchArrays& arrays, const BatchSplit& split) {
  const auto count = static_cast<size_t>(split.num_decodes);
  DecodeSlice slice;
  slice.query_start_loc = arrays.query_start_loc.first(count + 1);
  slice.seq_lens = arrays.seq_lens.first(count);
  const std::vector<int32_t> query_lens = query_lens_of(slice.query_start_loc);
  slice.max_query_len = *std::ranges::max_element(query_lens);
  slice.max_decode_seq_len = *std::ranges::max_element(slice.seq_lens);
  slice.use_graph = split.num_prefills == 0;
  return slice;
}

PrefillSlice make_prefill_slice(const BatchArrays& arrays, const BatchSplit& split) {
  const auto first = static_cast<size_t>(split.num_decodes);
  const std::vector<int32_t> query_lens = query_lens_of(arrays.query_start_loc);
  PrefillSlice slice;
  slice.query_start_loc = std::make_shared<const std::vector<int32_t>>(
      cumulative(std::span(query_lens).subspan(first)));
  slice.key_start_loc =
      std::make_shared<const std::vector<int32_t>>(cumulative(arrays.seq_lens.subspan(first)));
  slice.max_query_len = arrays.max_query_len;
  return slice;
}

}  // namespace

BatchMetadata build_batch_metadata(const BatchArrays& arrays, const BatchSplit& split) {
  check_extents(arrays);
  check_split(split, static_cast<int>(arrays.seq_lens.size()),
              split.num_decode_tokens + split.num_prefill_tokens);
  BatchMetadata meta{.arrays = arrays, .split = split, .decode = {}, .prefill = {}};
  if (split.num_decodes > 0) meta.decode = make_decode_slice(arrays, split);
  if (split.num_prefills > 0) meta.prefill = make_prefill_slice(arrays, split);
  set_table_rows(meta);
  return meta;
}

BatchMetadata update_block_table(const BatchMetadata& meta, std::span<const int32_t> block_table,
                                 std::span<const int64_t> slot_mapping) {
  BatchMetadata updated = meta;
  updated.arrays.block_table = block_table;
  updated.arrays.slot_mapping = slot_mapping;
  check_extents(updated.arrays);
  if (slot_mapping.size() != meta.arrays.slot_mapping.size()) {
    fail(ErrorKind::kShape, "slot_mapping: expected {} elements, got {}",
         meta.arrays.slot_mapping.size(), slot_mapping.size());
  }
  set_table_rows(updated);
  return updated;
}

}  // namespace attnbench
