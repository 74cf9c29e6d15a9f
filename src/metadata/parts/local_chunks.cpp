// A piece ends where its chunk or its request does. Its last row is the last of its keys, so the
// causal mask of a request, bottom-right, is right for it as well. Rows keep their order, so that
// queries and outputs lie where they lay, and a piece never has rows of two requests.
//
// A request without rows keeps a place of its own, empty, as padding rows of a captured batch do.
#include "metadata/parts/local_chunks.h"

#include <algorithm>

namespace attnbench {

std::vector<LocalChunk> local_chunks(const std::vector<Request>& batch, std::int64_t chunk_size) {
  std::vector<LocalChunk> chunks;
  for (std::size_t b = 0; b < batch.size(); ++b) {
    const auto request = static_cast<std::int64_t>(b);
    const std::int64_t end = batch[b].seq_len;
    std::int64_t position = end - batch[b].query_len;
    if (position == end) chunks.push_back({request, 0, {0, 0}});
    while (position < end) {
      const std::int64_t first_key = position - position % chunk_size;
      const std::int64_t last = std::min(end, first_key + chunk_size);
      chunks.push_back({request, first_key, {last - position, last - first_key}});
      position = last;
    }
  }
  return chunks;
}

Problem problem_of_chunks(const Problem& problem) {
  if (!problem.attention.chunk_size) return problem;
  Problem local = problem;
  local.attention.chunk_size.reset();
  local.batch.clear();
  for (const LocalChunk& chunk : local_chunks(problem.batch, *problem.attention.chunk_size)) {
    local.batch.push_back(chunk.rows);
  }
  return local;
}

}  // namespace attnbench
