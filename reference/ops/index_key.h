// The fp8 keys of the sparse indexer's cache (semantics §8.9).
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace attnbench {

inline constexpr int kIndexKeySize = 128;

struct IndexKey {
  std::array<std::uint8_t, kIndexKeySize> codes{};  // e4m3
  float scale = 0.0f;
};

/// s = max(amax, 1e-4) / 448, rounded up to a power of two with ue8m0; code = rn_e4m3(x / s).
IndexKey quantise_index_key(std::span<const float, kIndexKeySize> key, bool ue8m0);

}  // namespace attnbench
