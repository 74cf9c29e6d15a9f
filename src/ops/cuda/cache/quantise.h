// What CacheWriteParams::quantise says of keys and values that are written to the cache, as far as
// launchers tell the values apart.
#pragma once

namespace attnbench::cuda {

inline constexpr int kPerTokenHead = 2;
inline constexpr int kInt4 = 3;
inline constexpr int kSlots = 5;

}  // namespace attnbench::cuda
