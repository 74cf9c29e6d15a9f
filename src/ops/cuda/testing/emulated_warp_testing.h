// What CUDA itself gives the threads of an emulated CTA: barriers, shuffles and votes of a warp, by
// EmulatedCta::wait() and exchange(). Included by emulated_cta_testing.h, which has these.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace attnbench::cuda {

/// One value out of what all lanes have, the same for each.
template <typename T, typename Choose>
T reduce_lanes(T mine, Choose choose) {
  const std::array<T, 32> all = running_cta->exchange(mine);
  T result = all[0];
  for (const T& other : all) result = choose(result, other);
  return result;
}

}  // namespace attnbench::cuda

inline void __syncthreads() { attnbench::cuda::running_cta->wait(); }
inline int __syncthreads_or(int mine) {
  return attnbench::cuda::running_cta->any(mine != 0) ? 1 : 0;
}
inline void __syncwarp() { attnbench::cuda::running_cta->exchange(0); }
template <typename T>
T __shfl_xor_sync(unsigned, T mine, int mask) {
  return attnbench::cuda::running_cta->exchange(
      mine)[threadIdx.x % 32 ^ static_cast<unsigned>(mask)];
}
template <typename T>
T __shfl_sync(unsigned, T mine, int lane) {
  return attnbench::cuda::running_cta->exchange(mine)[static_cast<unsigned>(lane)];
}
inline unsigned __ballot_sync(unsigned, int mine) {
  const auto lanes = attnbench::cuda::running_cta->exchange(mine);
  unsigned all = 0;
  for (std::size_t i = 0; i < lanes.size(); ++i) all |= (lanes[i] != 0 ? 1u : 0u) << i;
  return all;
}
inline int __any_sync(unsigned, int mine) {
  return attnbench::cuda::reduce_lanes(mine, [](int a, int b) { return a != 0 || b != 0 ? 1 : 0; });
}
template <typename T>
T __reduce_max_sync(unsigned, T mine) {
  return attnbench::cuda::reduce_lanes(mine, [](T a, T b) { return a > b ? a : b; });
}
template <typename T>
T __reduce_min_sync(unsigned, T mine) {
  return attnbench::cuda::reduce_lanes(mine, [](T a, T b) { return a < b ? a : b; });
}
/// Byte i of the result is the byte of `high:low` that nibble i of the selector names.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{high} << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned at = selector >> 4 * i & 7u;
    result |= static_cast<unsigned>(bytes >> 8 * at & 0xFFu) << 8 * i;
  }
  return result;
}
inline std::size_t __cvta_generic_to_shared(const void*) {
  throw std::logic_error("an address outside of the emulation");
}
