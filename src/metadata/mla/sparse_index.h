// Sparse MLA: request-relative top-k key positions to slots of the cache (semantics §8.9).
//
// The indexer of the model names keys by their position in the request; the kernel reads slots. A
// prefill whose context was gathered into the workspace reads rows of that instead. Entries that
// name no key become -1 and are skipped by the kernel, wherever in the list they are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace attnbench {

/// Borrowed arrays of one batch of T query tokens and B requests.
struct SparseIndexArgs {
  std::span<const int32_t> request_ids;   // [T] the request of each query token
  std::span<const int32_t> topk_indices;  // [T, topk]; -1 = none
  int64_t topk = 2048;                    // a multiple of 128, the kernel's step
  std::span<const int32_t> block_table;   // [B, columns]
  int64_t columns = 0;
  int block_size = 64;
  /// [B] or empty: requests with an entry >= 0 lie in the prefill workspace from that row on.
  std::span<const int32_t> workspace_starts = {};
};

/// In the places of the indices, holes included: the kernel takes the list as it is.
struct SparseSlots {
  std::vector<int32_t> slots;         // [T, topk]; -1 where there is no key
  std::vector<int32_t> valid_counts;  // [T] slots >= 0
};

/// Positions are not held against the length of the request: what lies past it but inside the table
/// has a slot all the same, and whoever makes the indices must not name it.
///
/// Index i becomes block_table[request, i / bs] * bs + i % bs, -1 for i < 0, a column outside the
/// table or a block id < 0; in the workspace it becomes start + i. topk % 128 != 0 is E-CONFIG, a
/// wrong extent E-SHAPE, a request outside the table E-VALUE, a slot beyond int32 E-CAPACITY.
SparseSlots convert_request_indices(const SparseIndexArgs& args);

}  // namespace attnbench
