// Chunked local attention (semantics §3.11): a row sees the keys of its own chunk only, so each
// piece of a request that lies in one chunk is attended like a request of its own, over the pages
// of that chunk. That is how vLLM does it, and why no kernel knows of chunks.
//
// With chunks of 32 a request of 40 new tokens behind a context of 30 has three pieces: rows 30 and
// 31 over the keys 0 to 31, rows 32 to 63 over the keys 32 to 63, rows 64 to 69 over six keys. Keys
// before the chunk of a row are in the cache, and no piece names their pages.
//
// A chunk is whole pages, so the pages of a piece are a run of its request's row of the block table
// and need no copy of a key. Pieces without a full chunk behind them are what decodes are; how many
// splits they get goes by the longest piece and not by the longest request.
//
// The reference does not cut: it masks (metadata/mask), which is what the pieces are held against.
// Positions count from the start of the request, so where a chunk begins does not depend on how
// many tokens a step brings, and a decode right behind a border sees one key, its own.
//
// Slots of the cache write stay those of the whole request.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem/problem.h"

namespace attnbench {

/// The rows of a request that lie in one chunk, and the keys of that chunk which they may see.
struct LocalChunk {
  std::int64_t request = 0;    // in the batch
  std::int64_t first_key = 0;  // where the chunk begins, a multiple of its size
  Request rows;                // query_len rows, seq_len keys from first_key on
};

/// Chunk by chunk, request by request, in the order of the rows. A request without rows gives one
/// without keys. `chunk_size` >= 1 divides positions.
std::vector<LocalChunk> local_chunks(const std::vector<Request>& batch, std::int64_t chunk_size);

/// The problem whose requests are the chunks; the same problem where it has none.
Problem problem_of_chunks(const Problem& problem);

}  // namespace attnbench
