#include "ops/cuda/zone_scan.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "ops/cuda/testing/emulated_cta_testing.h"
// Device code comes behind what stands in for CUDA's keywords.
#include "kernels/measure/referee.cuh"

namespace attnbench::cuda {
namespace {

/// What all threads of a scan find together.
bool finds(const std::vector<unsigned char>& bytes, std::size_t begin, std::size_t size) {
  constexpr attn::i64 kThreads = 5;
  const attn::GuardedZone zone{bytes.data() + begin, static_cast<attn::i64>(size)};
  bool found = false;
  for (attn::i64 thread = 0; thread < kThreads; ++thread) {
    found |= attn::zone_differs(zone, kGuardWord, thread, kThreads);
  }
  return found;
}

}  // namespace

TEST_CASE("a scan sees every byte of a zone, wherever it begins and ends, and none outside") {
  for (std::size_t begin = 0; begin < 5; ++begin) {
    for (std::size_t size = 0; size < 41; ++size) {
      std::vector<unsigned char> bytes(48, 0x12);
      fill_zone({&bytes[begin], size}, reinterpret_cast<std::uintptr_t>(&bytes[begin]));
      CHECK_FALSE(finds(bytes, begin, size));
      for (std::size_t i = begin; i < begin + size; ++i) {
        const unsigned char whole = std::exchange(bytes[i], std::uint8_t{0x7E});
        CHECK(finds(bytes, begin, size));
        bytes[i] = whole;
      }
    }
  }
}

}  // namespace attnbench::cuda
