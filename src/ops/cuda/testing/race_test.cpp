// What race_testing.h has the thread sanitizer report of emulated threads. The planted race is
// skipped elsewhere: the test cuda.races.planted runs it, and wants the report.
#include <doctest/doctest.h>

#include "ops/cuda/testing/emulated_runs_testing.h"

namespace attnbench::cuda {
namespace {

constexpr int kThreads = 64;
constexpr int kSharedBytes = 1024;
constexpr attn::u32 kBarrier = 512;

int* shared_number() { return reinterpret_cast<int*>(running_cta->shared()); }

}  // namespace

TEST_CASE("a number that an mbarrier hands from one warp to the other is no race") {
  int seen = 0;
  run_emulated_cta(kThreads, kSharedBytes, [&] {
    if (threadIdx.x == 0) attn::init_barrier(kBarrier, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
      *shared_number() = 7;
      attn::arrive(kBarrier);
    }
    if (threadIdx.x == 32) {
      attn::await(kBarrier, 0);
      seen = *shared_number();
    }
  });
  CHECK(seen == 7);
}

TEST_CASE("planted: a number that is read without a wait" * doctest::skip()) {
  int seen = 0;
  run_emulated_cta(kThreads, kSharedBytes, [&] {
    if (threadIdx.x == 0) *shared_number() = 7;
    if (threadIdx.x == 32) seen = *shared_number();
  });
  CHECK(seen == 7);  // in the order of the emulation
}

}  // namespace attnbench::cuda
