// From positions to slots. An index that names no key, by its sign, its column or its block, gives
// slot -1 and is not an error: the indexer pads its lists so.
#include "metadata/mla/sparse_index.h"

#include "core/error.h"
#include "metadata/int_math.h"

namespace attnbench {
namespace {

constexpr int64_t kTopkMultiple = 128;

/// Checks the extents and returns B.
int64_t check_extents(const SparseIndexArgs& args) {
  if (args.topk < 1 || args.topk % kTopkMultiple != 0) {
    fail(ErrorKind::kConfig, "topk: expected a positive multiple of {}, got {}", kTopkMultiple,
         args.topk);
  }
  const auto expected = args.request_ids.size() * static_cast<size_t>(args.topk);
  if (args.topk_indices.size() != expected) {
    fail(ErrorKind::kShape, "topk_indices: expected {} elements, got {}", expected,
         args.topk_indices.size());
  }
  const auto entries = static_cast<int64_t>(args.block_table.size());
  if (args.columns < 1 || entries % args.columns != 0) {
    fail(ErrorKind::kShape, "block_table: expected rows of {} columns, got {} entries",
         args.columns, entries);
  }
  const int64_t num_requests = entries / args.columns;
  const auto num_starts = static_cast<int64_t>(args.workspace_starts.size());
  if (num_starts != 0 && num_starts != num_requests) {
    fail(ErrorKind::kShape, "workspace_starts: expected {} elements, got {}", num_requests,
         num_starts);
  }
  return num_requests;
}

int32_t slot_of(const SparseIndexArgs& args, size_t request, int32_t index) {
  if (index < 0) return -1;
  if (!args.workspace_starts.empty() && args.workspace_starts[request] >= 0) {
    return checked_int32(int64_t{args.workspace_starts[request]} + index, "workspace row");
  }
  const int64_t column = index / args.block_size;
  if (column >= args.columns) return -1;
  const int32_t block =
      args.block_table[request * static_cast<size_t>(args.columns) + static_cast<size_t>(column)];
  if (block < 0) return -1;
  return checked_int32(int64_t{block} * args.block_size + index % args.block_size, "slot");
}

}  // namespace

SparseSlots convert_request_indices(const SparseIndexArgs& args) {
  const int64_t num_requests = check_extents(args);
  SparseSlots result;
  result.slots.reserve(args.topk_indices.size());
  result.valid_counts.assign(args.request_ids.size(), 0);
  for (size_t t = 0; t < args.request_ids.size(); ++t) {
    const int32_t request = args.request_ids[t];
    if (request < 0 || request >= num_requests) {
      fail(ErrorKind::kValue, "request_ids[{}]: expected a request in [0, {}), got {}", t,
           num_requests, request);
    }
    const auto topk = static_cast<size_t>(args.topk);
    for (const int32_t index : args.topk_indices.subspan(t * topk, topk)) {
      const int32_t slot = slot_of(args, static_cast<size_t>(request), index);
      result.slots.push_back(slot);
      if (slot >= 0) ++result.valid_counts[t];
    }
  }
  return result;
}

}  // namespace attnbench
