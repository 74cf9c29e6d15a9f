// The batch metadata of the splitting builder (layout IX) with its decode and prefill slices, and
// the replacement of its block table (semantics §1.6).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "metadata/batch.h"

namespace attnbench {

/// Borrowed arrays of one batch; they must outlive the metadata built on them.
struct BatchArrays {
  std::span<const int32_t> query_start_loc;  // [B+1]
  std::span<const int32_t> seq_lens;         // [B]
  std::span<const int32_t> block_table;      // [B, block_table_columns]
  int64_t block_table_columns = 0;
  std::span<const int64_t> slot_mapping;  // [T]
  int max_query_len = 0;                  // at least the longest query
};

/// Rows [0, num_decodes) of the batch; its tokens are output rows [0, num_decode_tokens).
struct DecodeSlice {
  std::span<const int32_t> query_start_loc;  // [num_decodes+1]
  std::span<const int32_t> seq_lens;         // [num_decodes]
  std::span<const int32_t> block_table;      // [num_decodes, columns]
  int max_query_len = 0;                     // over the decodes
  int max_decode_seq_len = 0;                // over the decodes
  bool use_graph = false;                    // only without prefills
};

/// Rows [num_decodes, B) of the batch; its tokens are the output rows after the decode tokens.
struct PrefillSlice {
  std::shared_ptr<const std::vector<int32_t>> query_start_loc;  // [num_prefills+1], from 0
  std::shared_ptr<const std::vector<int32_t>> key_start_loc;    // [num_prefills+1], from 0
  std::span<const int32_t> block_table;                         // [num_prefills, columns]
  int max_query_len = 0;                                        // of the whole batch
};

struct BatchMetadata {
  BatchArrays arrays;
  BatchSplit split;
  std::optional<DecodeSlice> decode;    // set when there are decodes
  std::optional<PrefillSlice> prefill;  // set when there are prefills
};

/// Wrong extents are E-SHAPE.
BatchMetadata build_batch_metadata(const BatchArrays& arrays, const BatchSplit& split);

/// A copy that shares everything but the block table, the slot mapping and the rows of the table in
/// both slices. The new arrays have the extents of the old ones (E-SHAPE); meta stays as it is.
BatchMetadata update_block_table(const BatchMetadata& meta, std::span<const int32_t> block_table,
                                 std::span<const int64_t> slot_mapping);

}  // namespace attnbench
