#include "core/parallel.h"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace attnbench {

TEST_CASE("every index is visited exactly once by a thread of the pool") {
  ThreadPool pool(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::atomic<int>> visits(101);
    std::atomic<bool> thread_in_range{true};
    pool.parallel_for(101, [&](std::int64_t i, int thread) {
      visits[static_cast<std::size_t>(i)]++;
      if (thread < 0 || thread >= 3) thread_in_range = false;
    });
    for (const auto& count : visits) CHECK(count == 1);
    CHECK(thread_in_range);
  }
}

TEST_CASE("an exception of the body reaches the caller and the pool goes on working") {
  ThreadPool pool(2);
  const auto bad = [](std::int64_t i, int) {
    if (i == 5) throw std::runtime_error("five");
  };
  CHECK_THROWS_WITH(pool.parallel_for(10, bad), "five");
  std::atomic<int> sum{0};
  pool.parallel_for(4, [&](std::int64_t i, int) { sum += static_cast<int>(i); });
  CHECK(sum == 6);
}

TEST_CASE("an empty loop calls nothing") {
  ThreadPool pool(2);
  pool.parallel_for(0, [](std::int64_t, int) { FAIL("called"); });
}

}  // namespace attnbench
