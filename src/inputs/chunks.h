// A loop over independent items in chunks on all cores.
#pragma once

#include <cstdint>
#include <functional>

namespace attnbench {

/// Calls body(begin, end) for disjoint ranges of at most `chunk` items that cover [0, count). The
/// first exception of a body is thrown again here.
void for_each_chunk(std::int64_t count, std::int64_t chunk,
                    const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace attnbench
