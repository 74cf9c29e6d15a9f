#include "inputs/chunks.h"

#include <algorithm>

#include "core/parallel.h"
#include "metadata/int_math.h"

namespace attnbench {

void for_each_chunk(std::int64_t count, std::int64_t chunk,
                    const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= 0) return;
  const std::int64_t chunks = ceil_div(count, chunk);
  const auto threads = static_cast<int>(std::min<std::int64_t>(available_cores(), chunks));
  ThreadPool(threads).parallel_for(chunks, [&](std::int64_t index, int) {
    body(index * chunk, std::min(count, (index + 1) * chunk));
  });
}

}  // namespace attnbench
